"""In what form each matrix of a checkpoint goes to the back end: as it is stored, expanded, or quantised now."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping

import numpy as np

from octavo.backends.protocol import Array, GroupedWeight, WeightPart
from octavo.errors import ModelFileError
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.groups import hollow_quantized, quantize

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

_BITS = {"int8": 8, "int4": 4}

Shapes = Mapping[str, tuple[int, ...]]


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

    def parts(self, shapes: Shapes) -> list[WeightPart]:
        """The tensors one below the other; neighbours that become floats share one array."""
        found = [(name, self._grouped(name)) for name in shapes]
        parts: list[WeightPart] = []
        for as_floats, run in itertools.groupby(found, lambda pair: pair[1] is None):
            if as_floats:
                stacked = self._floats({name: shapes[name] for name, _ in run})
                self.elements[self._dtype] += stacked.size
                parts.append(stacked)
            else:
                parts += [grouped for _, grouped in run if grouped is not None]
        return parts

    def _grouped(self, name: str) -> GroupedWeight | None:
        """The tensor in groups, or None if it is to be floats."""
        if self._quantization == "none":
            return None
        stored = self._stored(name)
        if self._quantization == "auto":
            return stored if stored is None else self._as_stored(name, stored)
        bits = 8 if name in (EMBEDDING, HEAD) else _BITS[self._quantization]
        if stored is not None and stored.bits <= bits:
            return self._as_stored(name, stored)
        return self._quantised(name, bits)

    def _as_stored(self, name: str, stored: GroupedWeight) -> GroupedWeight:
        kind = f"{self._checkpoint.info(name).dtype} (int{stored.bits} groups of {stored.group})"
        self.elements[kind] += stored.codes.size
        return stored

    def _quantised(self, name: str, bits: int) -> GroupedWeight:
        made = self._rounded(name, bits)
        self.elements[f"int{bits} (groups of {made.group})"] += made.codes.size
        return made

    # ---- what touches the data

    def _floats(self, shapes: Shapes) -> Array:
        return read_stacked(self._checkpoint, shapes, self._dtype)

    def _stored(self, name: str) -> GroupedWeight | None:
        return self._checkpoint.read_grouped(name)

    def _rounded(self, name: str, bits: int) -> GroupedWeight:
        narrow = self._checkpoint.info(name).dtype == "bf16"
        made = quantize(self._checkpoint.read(name, "bfloat16" if narrow else "float32"), bits)
        if not np.isfinite(made.scales).all():
            raise ModelFileError(
                self._checkpoint.path.name,
                f"tensor {name!r}",
                "has values that are not finite or too large to quantise",
            )
        return made


class MatrixSizer(MatrixReader):
    """Shapes and formats of what a MatrixReader reads, all zeros that take no memory. No tensor is read."""

    def _floats(self, shapes: Shapes) -> Array:
        rows, columns = sum(shape[0] for shape in shapes.values()), next(iter(shapes.values()))[1:]
        zero = np.float32(0) if self._dtype == "float32" else np.uint16(0)
        return np.broadcast_to(zero, (rows, *columns))

    def _stored(self, name: str) -> GroupedWeight | None:
        return self._checkpoint.hollow_grouped(name)

    def _rounded(self, name: str, bits: int) -> GroupedWeight:
        return hollow_quantized(self._checkpoint.info(name).shape, bits)


def read_stacked(checkpoint: Checkpoint, shapes: Shapes, dtype: str) -> Array:
    """Tensors row-wise in one array, read without another copy."""
    rows = [shape[0] for shape in shapes.values()]
    columns = next(iter(shapes.values()))[1:]
    stacked = np.empty((sum(rows), *columns), np.float32 if dtype == "float32" else np.uint16)
    start = 0
    for name, count in zip(shapes, rows, strict=True):
        checkpoint.read(name, dtype, out=stacked[start : start + count])
        start += count
    return stacked
