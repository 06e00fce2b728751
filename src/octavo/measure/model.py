"""A decoder to measure with: a model that is here, or weights out of the air in a model's sizes.

What a kernel takes does not depend on the weights' values, so that measuring needs no download.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from octavo import registry
from octavo.backends.protocol import Backend, RopeParams, Weight
from octavo.measure.shapes import Shapes
from octavo.models.decoder import DecoderWeights, LayerWeights, LinearWeights, MLPWeights, NormWeights
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.models.spec import DecoderSpec, LayerSpec
from octavo.weights.sources import open_checkpoint, resolve


@dataclass(frozen=True)
class Model:
    """A decoder and its weights on the CPU back end."""

    name: str
    spec: DecoderSpec
    weights: DecoderWeights
    backend: Backend
    dtype: str
    """Of weights that are not in groups, and of the KV memory unless said otherwise."""

    def close(self) -> None:
        """Stop its threads."""
        self.backend.close()


def loaded(name: str, *, num_threads: int | None = None) -> Model:
    """A model by its name or path, as `octavo serve` takes it.

    Raises:
        ModelError: If there is no such model, or it is of a kind that Octavo does not run.
    """
    checkpoint = open_checkpoint(resolve(name), num_threads=num_threads)
    backend, dtype = _backend(num_threads)
    try:
        spec = decoder_spec(checkpoint.config)
        return Model(name, spec, load(checkpoint, spec, backend, dtype, "auto"), backend, dtype)
    except BaseException:
        backend.close()
        raise
    finally:
        checkpoint.close()


def random_model(shapes: Shapes, name: str, *, num_threads: int | None = None, max_position: int = 2048) -> Model:
    """Weights out of the air, small enough that nothing overflows; in the back end's own dtype."""
    backend, dtype = _backend(num_threads)
    return Model(name, spec_of(shapes, max_position), _Drawn(shapes, backend).weights(), backend, dtype)


def _backend(num_threads: int | None) -> tuple[Backend, str]:
    """The CPU back end, in the dtype it takes when none is asked for."""
    backend_class = registry.resolve("backends", "cpu")
    dtype = backend_class.default_dtype()
    return backend_class(dtype, num_threads=num_threads), dtype


def spec_of(shapes: Shapes, max_position: int) -> DecoderSpec:
    """A Llama-like decoder of these sizes, with tied embeddings."""
    half = shapes.head_dim // 2
    rope = RopeParams(inv_freq=tuple(10000.0 ** (-i / half) for i in range(half)), max_position=max_position)
    return DecoderSpec(
        family="LlamaForCausalLM",
        vocab_size=shapes.vocab_size,
        hidden_size=shapes.hidden_size,
        intermediate_size=shapes.intermediate_size,
        num_heads=shapes.num_heads,
        num_kv_heads=shapes.num_kv_heads,
        head_dim=shapes.head_dim,
        layers=(LayerSpec(rope=rope),) * shapes.num_layers,
        norm_eps=1e-5,
        tied_embeddings=True,
        max_position=max_position,
    )


class _Drawn:
    """Draws each kind of matrix once and packs it for every layer anew, so that layers share no memory."""

    def __init__(self, shapes: Shapes, backend: Backend) -> None:
        self._shapes, self._backend = shapes, backend
        self._rng = np.random.default_rng(0)

    def weights(self) -> DecoderWeights:
        embedding = self._matrices(self._shapes.logits, 1)[0]
        products = [self._matrices(size, self._shapes.num_layers) for size in self._shapes.layer_linears]
        return DecoderWeights(
            embedding=embedding,
            layers=[self._layer(matrices) for matrices in zip(*products, strict=True)],
            norm=self._norm(),
            head=embedding,
        )

    def _layer(self, matrices: Sequence[Weight]) -> LayerWeights:
        qkv, output, gate_up, down = matrices
        return LayerWeights(
            attention_norm=self._norm(),
            qkv=LinearWeights(qkv),
            output=LinearWeights(output),
            mlp_norm=self._norm(),
            mlp=MLPWeights(up=LinearWeights(gate_up), down=LinearWeights(down)),
        )

    def _matrices(self, size: tuple[int, int], count: int) -> list[Weight]:
        values = self._rng.standard_normal(size, np.float32) / np.float32(np.sqrt(size[1]))
        return [self._backend.matrix([values]) for _ in range(count)]

    def _norm(self) -> NormWeights:
        return NormWeights(self._backend.vector(np.ones(self._shapes.hidden_size, np.float32)))
