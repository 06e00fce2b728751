"""Passes of linear layers: every product of a model for M rows, each weight in memory of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo import _native
from octavo.backends.protocol import Array
from octavo.measure.cases import Case, Clock
from octavo.measure.shapes import Shapes

Pack = Callable[[_native.Arena, Array, str, _native.ThreadPool], _native.Matrix]


@dataclass(frozen=True)
class Format:
    """How a weight is kept, and the arithmetic that bounds products with it."""

    arithmetic: str
    """A name of `probes.PEAKS`."""
    pack: Pack
    """Makes a weight of float32 rows `[n, k]`."""


def _float32(arena: _native.Arena, rows: Array, isa: str, pool: _native.ThreadPool) -> _native.Matrix:
    matrix = _native.Matrix(arena, rows.shape[0], rows.shape[1], _native.WeightFormat.float32(), isa)
    matrix.pack(rows, 0, pool)
    return matrix


def _bfloat16(arena: _native.Arena, rows: Array, isa: str, pool: _native.ThreadPool) -> _native.Matrix:
    matrix = _native.Matrix(arena, rows.shape[0], rows.shape[1], _native.WeightFormat.bfloat16(), isa)
    matrix.pack((rows.view(np.uint32) >> 16).astype(np.uint16), 0, pool)
    return matrix


def _in_groups(bits: int, *, zero: int = 0, minimum: bool = False) -> Pack:
    """Groups of 32 with halves for scales. The codes are the floats' lowest bits: what they are takes no time."""
    kept = _native.WeightFormat.groups(bits, 32, zero=zero, minimum=minimum, half_scales=True)

    def pack(arena: _native.Arena, rows: Array, isa: str, pool: _native.ThreadPool) -> _native.Matrix:
        n, k = rows.shape
        matrix = _native.Matrix(arena, n, k, kept, isa)
        codes = (rows.view(np.uint32) & ((1 << bits) - 1)).astype(np.uint8)
        scales = np.full((n, -(-k // 32)), 2.0**-bits, np.float32)
        matrix.pack_groups(codes, scales, scales if minimum else None, 0, pool)
        return matrix

    return pack


FORMATS: dict[str, Format] = {
    "bfloat16": Format("bfloat16", _bfloat16),
    "float32": Format("float32", _float32),
    "int8": Format("int8", _in_groups(8, zero=128)),
    "int4": Format("int4", _in_groups(4, minimum=True)),
}
"""Weight formats by name, the default one first."""


class LinearPass:
    """Random weights of one format for every product of a model."""

    def __init__(self, shapes: Shapes, form: str, pool: _native.ThreadPool, isa: str) -> None:
        self._form, self._pool = form, pool
        arena, rng = _native.Arena(), np.random.default_rng(0)
        rows = {shape: rng.standard_normal(shape, np.float32) for shape in set(shapes.linears)}
        pack = FORMATS[form].pack
        self.weights = [pack(arena, rows[shape], isa, pool) for shape in shapes.linears]
        self.num_bytes = sum(weight.nbytes for weight in self.weights)
        self.ops_per_row = sum(2 * weight.n * weight.k for weight in self.weights)

    def case(self, num_rows: int) -> Case:
        """One pass for `num_rows` rows. Its floor counts the bytes of the weights, not those of the activations."""
        rng = np.random.default_rng(1)
        x = {k: rng.standard_normal((num_rows, k), np.float32) for k in {w.k for w in self.weights}}
        out: dict[int, Any] = {n: np.zeros((num_rows, n), np.float32) for n in {w.n for w in self.weights}}

        def run(clock: Clock) -> float:
            start = clock()
            for weight in self.weights:
                _native.linear(x[weight.k], weight, [], out[weight.n], self._pool)
            return clock() - start

        return Case(
            kernel="linear",
            form=self._form,
            size=f"M = {num_rows}",
            run=run,
            num_bytes=self.num_bytes,
            num_ops=num_rows * self.ops_per_row,
            arithmetic=FORMATS[self._form].arithmetic,
            num_calls=len(self.weights),
        )


def linear_cases(
    shapes: Shapes, forms: Sequence[str], rows: Sequence[int], pool: _native.ThreadPool, isa: str
) -> Iterator[list[Case]]:
    """The passes of each number of rows, all formats in turn. All formats are in memory at once."""
    passes = [LinearPass(shapes, form, pool, isa) for form in forms]
    for num_rows in rows:
        yield [each.case(num_rows) for each in passes]
