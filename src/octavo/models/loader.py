"""From a checkpoint to a decoder's weights on a back end."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import msgspec
import numpy as np

from octavo.backends.protocol import Backend, Weight
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.decoder import DecoderWeights
from octavo.models.layout import Stack, expected_shapes, layout
from octavo.models.matrices import MatrixReader, MatrixSizer, read_stacked
from octavo.models.spec import DecoderSpec
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.naming import Naming


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
        UnsupportedModelError: Naming a tensor that the decoder has no use for, without which the answers would be
            wrong, or one that is stored in a way that is not read.
    """
    return _load(_Reader(checkpoint, spec, backend, MatrixReader(checkpoint, dtype, quantization), dtype))


class WeightSize(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoder's weights will be in memory."""

    num_bytes: int
    formats: tuple[str, ...]
    """How the matrices are kept, for people; what most elements are in first."""
    unused: tuple[str, ...] = ()
    """What of the checkpoint the decoder does without, for people."""


def weight_size(
    checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, dtype: str, quantization: str = "none"
) -> WeightSize:
    """`num_bytes` and `formats` of what `load` makes, from names, shapes and formats alone. No matrix is read.

    Raises:
        ModelFileError, UnsupportedModelError: As `load`, but for what only a tensor's values tell.
    """
    sizer = _Sizer(checkpoint, spec, backend, MatrixSizer(checkpoint, dtype, quantization), dtype)
    weights = _load(sizer)
    return WeightSize(num_bytes=weights.num_bytes, formats=weights.formats, unused=weights.unused)


def _load(reader: _Reader) -> DecoderWeights:
    weights: DecoderWeights = reader.filled(reader.layout)
    weights.screen = reader.screen(weights.head, reader.layout.head)
    weights.formats, weights.num_bytes = reader.formats(), reader.num_bytes
    weights.unused = reader.unused
    return weights


class _Reader:
    """Reads tensors and packs them; counts what becomes of the matrices. Made only for a sound checkpoint."""

    def __init__(
        self, checkpoint: Checkpoint, spec: DecoderSpec, backend: Backend, matrices: MatrixReader, dtype: str
    ) -> None:
        self._checkpoint = checkpoint
        self._backend = backend
        self._dtype = dtype
        self._matrices = matrices
        self._filled: dict[int, Weight] = {}
        self.num_bytes = 0
        if checkpoint.naming is not None:
            spec = msgspec.structs.replace(spec, naming=checkpoint.naming)
        root = spec.naming.root_in(checkpoint.names())
        turned = {name for name in checkpoint.names() if checkpoint.info(name).quantized}
        self.layout = layout(spec, root, turned)
        num_left_out = _check(checkpoint, spec.naming, expected_shapes(spec, root, turned))
        self.unused = (*_of_other_models(num_left_out), *checkpoint.notes)

    def filled(self, node: Any) -> Any:
        """The same with the weights in the place of their stacks. What stands in two places is read once."""
        if isinstance(node, Stack):
            if id(node) not in self._filled:
                self._filled[id(node)] = self.vector(node) if node.columns is None else self.matrix(node)
            return self._filled[id(node)]
        if isinstance(node, list):
            return [self.filled(item) for item in node]
        if isinstance(node, msgspec.Struct):
            return type(node)(**{field: self.filled(getattr(node, field)) for field in node.__struct_fields__})
        return node

    def matrix(self, stack: Stack) -> Weight:
        weight = self._backend.matrix(self._matrices.parts(stack))
        self.num_bytes += self._backend.num_bytes(weight)
        return weight

    def screen(self, head: Weight, stack: Stack) -> Weight | None:
        """Of the matrix `head`, which `stack` gave."""
        screen = self._backend.screen(head)
        if screen is not None:
            self.num_bytes += self._backend.num_bytes(screen)
        return screen

    def vector(self, stack: Stack) -> Weight:
        values = read_stacked(self._checkpoint, stack, stack.names, "float32")
        values = values if stack.order is None else values[stack.order]
        return self._backend.vector(values + np.float32(stack.offset) if stack.offset else values)

    def formats(self) -> tuple[str, ...]:
        """How the matrices are kept, for people; what most elements are in first."""
        elements = self._matrices.elements
        found = sorted(elements, key=lambda kind: -elements[kind])
        expands = not self._backend.keeps_groups
        return tuple(f"{kind} expanded to {self._dtype}" if expands and kind != self._dtype else kind for kind in found)


class _Sizer(_Reader):
    """Counts what a _Reader would make, and makes nothing."""

    def matrix(self, stack: Stack) -> Weight:
        self.num_bytes += self._backend.matrix_bytes(self._matrices.parts(stack))
        return None

    def screen(self, head: Weight, stack: Stack) -> Weight | None:
        self.num_bytes += self._backend.screen_bytes(self._matrices.parts(stack))
        return None

    def vector(self, stack: Stack) -> Weight:
        return None


def _of_other_models(num_tensors: int) -> tuple[str, ...]:
    return (f"{num_tensors} tensors of what is not text (images, for instance)",) if num_tensors else ()


def _check(checkpoint: Checkpoint, naming: Naming, shapes: dict[str, tuple[int, ...]]) -> int:
    """A bias, norm or layer that the config does not tell of is part of the model all the same.

    Returns:
        How many tensors belong to other models in the checkpoint.
    """
    num_left_out = 0
    biases = []
    for name in checkpoint.names():
        # A tied head is the embedding once more.
        known = name in shapes or name == f"{naming.head}.weight"
        if not known and name.startswith(naming.left_out):
            num_left_out += 1
        elif not known and _is_quantized_bias(checkpoint, name, shapes):
            biases.append(name)
        elif not known and not name.endswith(naming.unused):
            raise _stranger(checkpoint, name)
    for name, shape in shapes.items():
        found = checkpoint.info(name).shape
        if found != shape:
            raise ModelFileError(checkpoint.path.name, f"tensor {name!r}", f"has shape {found}; must be {shape}")
        checkpoint.check_readable(name)
    for name in biases:  # AutoGPTQ wrote one for every matrix: zeros, where the model has none
        if checkpoint.read(name, "float32").any():
            raise _stranger(checkpoint, name)
    return num_left_out


def _is_quantized_bias(checkpoint: Checkpoint, name: str, shapes: Container[str]) -> bool:
    """Whether a tensor is the bias of a quantised matrix of the decoder."""
    weight = f"{name.removesuffix('.bias')}.weight"
    return name.endswith(".bias") and weight in shapes and checkpoint.info(weight).quantized


def _stranger(checkpoint: Checkpoint, name: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{checkpoint.path.name}: tensor {name[:100]!r} has no place in the decoder that the config describes"
    )
