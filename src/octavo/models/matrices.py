"""In what form each matrix of a checkpoint goes to the back end: as it is stored, expanded, or quantised now."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from octavo.backends.protocol import Array, GroupedWeight, WeightPart
from octavo.errors import ModelFileError
from octavo.models.layout import RowOrder, Stack
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.groups import hollow_quantized, quantize

_BITS = {"int8": 8, "int4": 4}


class MatrixReader:
    """Reads matrices by `ModelConfig.quantization`.

    * auto: what is stored in groups stays so; floats become `dtype`.
    * none: everything becomes `dtype`.
    * int8, int4: what is stored in groups of at most so many bits stays so; everything else is rounded to groups of
      them. int4 leaves the embedding and the logits at 8 bits: errors there reach every token undiluted.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: str, quantization: str) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._quantization = quantization
        self.elements: Counter[str] = Counter()
        """How many elements were read into each format, by its name for people."""

    def parts(self, stack: Stack) -> list[WeightPart]:
        """The tensors one below the other; neighbours that become floats share one array."""
        found = [(name, self._grouped(name, stack)) for name in stack.names]
        parts: list[WeightPart] = []
        for as_floats, run in itertools.groupby(found, lambda pair: pair[1] is None):
            if as_floats:
                floats = self._floats(stack, [name for name, _ in run])
                self.elements[self._dtype] += floats.size
                parts.append(floats)
            else:
                parts += [grouped for _, grouped in run if grouped is not None]
        return parts if stack.order is None else [self._ordered(part, stack.order) for part in parts]

    def _grouped(self, name: str, stack: Stack) -> GroupedWeight | None:
        """The tensor in groups, or None if it is to be floats."""
        if self._quantization == "none" or stack.as_floats:
            return None
        stored = None if stack.transposed else self._stored(name)  # groups run along the other axis
        if self._quantization == "auto":
            return stored if stored is None else self._as_stored(name, stored)
        bits = 8 if stack.is_table else _BITS[self._quantization]
        if stored is not None and stored.bits <= bits:
            return self._as_stored(name, stored)
        return self._quantised(name, bits, stack)

    def _as_stored(self, name: str, stored: GroupedWeight) -> GroupedWeight:
        kind = f"{self._checkpoint.info(name).dtype} (int{stored.bits} groups of {stored.group})"
        self.elements[kind] += stored.codes.size
        return stored

    def _quantised(self, name: str, bits: int, stack: Stack) -> GroupedWeight:
        made = self._rounded(name, bits, stack)
        self.elements[f"int{bits} (groups of {made.group})"] += made.codes.size
        return made

    # ---- what touches the data

    def _floats(self, stack: Stack, names: Sequence[str]) -> Array:
        return read_stacked(self._checkpoint, stack, names, self._dtype)

    def _ordered(self, part: WeightPart, order: RowOrder) -> WeightPart:
        if not isinstance(part, GroupedWeight):
            return part[order]
        minimums = None if part.minimums is None else part.minimums[order]
        return msgspec.structs.replace(part, codes=part.codes[order], scales=part.scales[order], minimums=minimums)

    def _stored(self, name: str) -> GroupedWeight | None:
        return self._checkpoint.read_grouped(name)

    def _rounded(self, name: str, bits: int, stack: Stack) -> GroupedWeight:
        narrow = self._checkpoint.info(name).dtype == "bf16"
        made = quantize(read_stacked(self._checkpoint, stack, [name], "bfloat16" if narrow else "float32"), bits)
        if not np.isfinite(made.scales).all():
            raise ModelFileError(
                self._checkpoint.path.name,
                f"tensor {name!r}",
                "has values that are not finite or too large to quantise",
            )
        return made


class MatrixSizer(MatrixReader):
    """Shapes and formats of what a MatrixReader reads, all zeros that take no memory. No tensor is read."""

    def _floats(self, stack: Stack, names: Sequence[str]) -> Array:
        rows = sum(count for name, count in zip(stack.names, stack.rows, strict=True) if name in names)
        zero = np.float32(0) if self._dtype == "float32" else np.uint16(0)
        return np.broadcast_to(zero, (rows, *stack.shape[1:]))

    def _ordered(self, part: WeightPart, order: RowOrder) -> WeightPart:
        return part

    def _stored(self, name: str) -> GroupedWeight | None:
        return self._checkpoint.hollow_grouped(name)

    def _rounded(self, name: str, bits: int, stack: Stack) -> GroupedWeight:
        rows = dict(zip(stack.names, stack.rows, strict=True))[name]
        return hollow_quantized((rows, *stack.shape[1:]), bits)


def read_stacked(checkpoint: Checkpoint, stack: Stack, names: Sequence[str], dtype: str) -> Array:
    """Some of a stack's tensors row-wise in one array, read without another copy unless they are stored transposed."""
    rows = [count for name, count in zip(stack.names, stack.rows, strict=True) if name in names]
    stacked = np.empty((sum(rows), *stack.shape[1:]), np.float32 if dtype == "float32" else np.uint16)
    start = 0
    for name, count in zip(names, rows, strict=True):
        place = stacked[start : start + count]
        if stack.transposed:
            place[:] = checkpoint.read(name, dtype).T
        else:
            checkpoint.read(name, dtype, out=place)
        start += count
    return stacked
