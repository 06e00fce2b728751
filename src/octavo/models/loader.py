"""From a checkpoint to a decoder's weights on a back end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from octavo.backends.protocol import Backend, Weight, WeightPart
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.decoder import DecoderWeights, LayerWeights, LinearWeights, MLPWeights, NormWeights
from octavo.models.matrices import EMBEDDING, HEAD, MatrixReader, MatrixSizer, read_stacked
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint

NORM = "model.norm.weight"


def load(
    checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, dtype: str, quantization: str = "none"
) -> DecoderWeights:
    """Read every tensor of the decoder and hand it to the back end: vectors as float32, matrices as asked.

    All names and shapes are checked before the first tensor is read.

    Args:
        dtype: Of matrices that are not kept in groups.
        quantization: A choice of `ModelConfig.quantization`.

    Raises:
        ModelFileError: Naming the tensor, if one is missing or has another shape than the spec asks for, or if one to
            be quantised has something that is not finite or too large.
        UnsupportedModelError: Naming a tensor that the decoder has no use for: without it the answers would be wrong.
    """
    return _load(_Reader(checkpoint, spec, backend, MatrixReader(checkpoint, dtype, quantization), dtype), spec)


class WeightSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoder's weights will be in memory."""

    num_bytes: int
    formats: tuple[str, ...]
    """How the matrices are kept, for people; what most elements are in first."""


def weight_size(
    checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, dtype: str, quantization: str = "none"
) -> WeightSize:
    """`num_bytes` and `formats` of what `load` makes, from names, shapes and formats alone. No tensor is read.

    Raises:
        ModelFileError, UnsupportedModelError: As `load`, but for what only a tensor's values tell.
    """
    sizer = _Sizer(checkpoint, spec, backend, MatrixSizer(checkpoint, dtype, quantization), dtype)
    weights = _load(sizer, spec)
    return WeightSize(num_bytes=weights.num_bytes, formats=weights.formats)


def _load(reader: _Reader, spec: DecoderSpec) -> DecoderWeights:
    embedding = reader.matrix([EMBEDDING])
    head = embedding if spec.tied_embeddings else reader.matrix([HEAD])
    weights = DecoderWeights(
        embedding=embedding,
        layers=[_layer(reader, f"model.layers.{index}.") for index in range(spec.num_layers)],
        norm=NormWeights(reader.vector([NORM])),
        head=head,
        screen=reader.screen(head, [EMBEDDING if spec.tied_embeddings else HEAD]),
    )
    weights.formats, weights.num_bytes = reader.formats(), reader.num_bytes
    return weights


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
        attention_norm=NormWeights(reader.vector([f"{prefix}input_layernorm.weight"])),
        mlp_norm=NormWeights(reader.vector([f"{prefix}post_attention_layernorm.weight"])),
        qkv=LinearWeights(reader.weight(qkv), reader.bias(qkv)),
        output=LinearWeights(reader.weight(output), reader.bias(output)),
        mlp=MLPWeights(
            up=LinearWeights(reader.weight(gate_up), reader.bias(gate_up)),
            down=LinearWeights(reader.weight(down), reader.bias(down)),
        ),
    )


class _Reader:
    """Reads tensors and packs them; counts what becomes of the matrices. Made only for a sound checkpoint."""

    def __init__(
        self, checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, matrices: MatrixReader, dtype: str
    ) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._dtype = dtype
        self._shapes = expected_shapes(spec)
        self._matrices = matrices
        self.num_bytes = 0
        _refuse_strangers(checkpoint, self._shapes)
        for name, shape in self._shapes.items():
            found = checkpoint.info(name).shape
            if found != shape:
                raise ModelFileError(checkpoint.path.name, f"tensor {name!r}", f"has shape {found}; must be {shape}")

    def matrix(self, names: Sequence[str]) -> Weight:
        """Tensors row-wise below each other. Floats that follow each other are read into one array."""
        weight = self._backend.matrix(self._parts(names))
        self.num_bytes += self._backend.num_bytes(weight)
        return weight

    def screen(self, head: Weight, names: Sequence[str]) -> Weight | None:
        """Of the matrix of these tensors."""
        screen = self._backend.screen(head)
        if screen is not None:
            self.num_bytes += self._backend.num_bytes(screen)
        return screen

    def _parts(self, names: Sequence[str]) -> list[WeightPart]:
        return self._matrices.parts({name: self._shapes[name] for name in names})

    def vector(self, names: Sequence[str]) -> Weight:
        shapes = {name: self._shapes[name] for name in names}
        return self._backend.vector(read_stacked(self._checkpoint, shapes, "float32"))

    def weight(self, modules: Sequence[str]) -> Weight:
        return self.matrix([f"{module}.weight" for module in modules])

    def bias(self, modules: Sequence[str]) -> Weight | None:
        names = [f"{module}.bias" for module in modules]
        return self.vector(names) if names[0] in self._shapes else None

    def formats(self) -> tuple[str, ...]:
        """How the matrices are kept, for people; what most elements are in first."""
        elements = self._matrices.elements
        found = sorted(elements, key=lambda kind: -elements[kind])
        expands = not self._backend.keeps_groups
        return tuple(f"{kind} expanded to {self._dtype}" if expands and kind != self._dtype else kind for kind in found)


class _Sizer(_Reader):
    """Counts what a _Reader would make, and makes nothing."""

    def matrix(self, names: Sequence[str]) -> Weight:
        self.num_bytes += self._backend.matrix_bytes(self._parts(names))
        return None

    def screen(self, head: Weight, names: Sequence[str]) -> Weight | None:
        self.num_bytes += self._backend.screen_bytes(self._parts(names))
        return None

    def vector(self, names: Sequence[str]) -> Weight:
        return None
