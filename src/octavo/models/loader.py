"""From a checkpoint to a decoder's weights on a back end."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from octavo.backends.protocol import Array, Backend, Weight
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.decoder import DecoderWeights, LayerWeights
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def load(checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, dtype: str) -> DecoderWeights:
    """Read every tensor of the decoder as `dtype` and hand it to the back end.

    All names and shapes are checked before the first tensor is read.

    Raises:
        ModelFileError: Naming the tensor, if one is missing or has another shape than the spec asks for.
        UnsupportedModelError: Naming a tensor that the decoder has no use for: without it the answers would be wrong.
    """
    shapes = expected_shapes(spec)
    _refuse_strangers(checkpoint, shapes)
    for name, shape in shapes.items():
        found = checkpoint.info(name).shape
        if found != shape:
            raise ModelFileError(checkpoint.path.name, f"tensor {name!r}", f"has shape {found}; must be {shape}")
    reader = _Reader(checkpoint, backend, dtype, shapes)
    embedding = reader.matrix([EMBEDDING])
    return DecoderWeights(
        embedding=embedding,
        layers=[_layer(reader, f"model.layers.{index}.") for index in range(spec.num_layers)],
        norm=reader.vector([NORM]),
        head=embedding if spec.tied_embeddings else reader.matrix([HEAD]),
    )


def _refuse_strangers(checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]]) -> None:
    """A bias, norm or layer that the config does not tell of is part of the model all the same."""
    for name in checkpoint.names():
        # Frequencies that old checkpoints carry follow from the config; a tied head is the embedding once more.
        if name not in shapes and name != HEAD and not name.endswith(".rotary_emb.inv_freq"):
            raise UnsupportedModelError(
                f"{checkpoint.path.name}: tensor {name[:100]!r} has no place in the decoder that the config describes"
            )


def expected_shapes(spec: DecoderSpec) -> dict[str, tuple[int, ...]]:
    """Every tensor the decoder needs, by Hugging Face's name."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (spec.vocab_size, hidden), NORM: (hidden,)}
    if not spec.tied_embeddings:
        shapes[HEAD] = (spec.vocab_size, hidden)
    for index in range(spec.num_layers):
        layer = f"model.layers.{index}."
        attention = {"q_proj": (query, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
        mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
        shapes |= {f"{layer}{norm}.weight": (hidden,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= _linears(f"{layer}self_attn.", attention, bias=spec.qkv_bias)
        shapes |= _linears(f"{layer}self_attn.", {"o_proj": (hidden, query)}, bias=spec.output_bias)
        shapes |= _linears(f"{layer}mlp.", mlp, bias=spec.mlp_bias)
    return shapes


def _linears(prefix: str, shapes: dict[str, tuple[int, int]], *, bias: bool) -> dict[str, tuple[int, ...]]:
    named: dict[str, tuple[int, ...]] = {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}
    if bias:
        named |= {f"{prefix}{name}.bias": shape[:1] for name, shape in shapes.items()}
    return named


def _layer(reader: _Reader, prefix: str) -> LayerWeights:
    qkv = [f"{prefix}self_attn.{name}_proj" for name in "qkv"]
    output = [f"{prefix}self_attn.o_proj"]
    gate_up = [f"{prefix}mlp.{name}_proj" for name in ("gate", "up")]
    down = [f"{prefix}mlp.down_proj"]
    return LayerWeights(
        attention_norm=reader.vector([f"{prefix}input_layernorm.weight"]),
        mlp_norm=reader.vector([f"{prefix}post_attention_layernorm.weight"]),
        qkv=reader.weight(qkv),
        qkv_bias=reader.bias(qkv),
        output=reader.weight(output),
        output_bias=reader.bias(output),
        gate_up=reader.weight(gate_up),
        gate_up_bias=reader.bias(gate_up),
        down=reader.weight(down),
        down_bias=reader.bias(down),
    )


class _Reader:
    """Stacks tensors row-wise into one array, read without another copy, and packs it."""

    def __init__(
        self, checkpoint: Checkpoint, backend: Backend, dtype: str, shapes: dict[str, tuple[int, ...]]
    ) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._dtype = dtype
        self._shapes = shapes

    def matrix(self, names: Sequence[str]) -> Weight:
        return self._backend.matrix([self._stack(names, self._dtype)])

    def vector(self, names: Sequence[str]) -> Weight:
        return self._backend.vector(self._stack(names, "float32"))

    def weight(self, modules: Sequence[str]) -> Weight:
        return self.matrix([f"{module}.weight" for module in modules])

    def bias(self, modules: Sequence[str]) -> Weight | None:
        names = [f"{module}.bias" for module in modules]
        return self.vector(names) if names[0] in self._shapes else None

    def _stack(self, names: Sequence[str], dtype: str) -> Array:
        rows = [self._shapes[name][0] for name in names]
        kind = np.float32 if dtype == "float32" else np.uint16
        stacked = np.empty((sum(rows), *self._shapes[names[0]][1:]), kind)
        start = 0
        for name, count in zip(names, rows, strict=True):
            self._checkpoint.read(name, dtype, out=stacked[start : start + count])
            start += count
        return stacked
