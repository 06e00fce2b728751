"""Operands of the kernels on rows: strided, with poison around what may be read and guards around what is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from paged import round_to_bfloat16, to_bfloat16

from octavo import _native

Array = npt.NDArray[Any]

PATHS = _native.supported_paths()
DTYPES = ("float32", "bfloat16")
GUARD = 12345.0

# (N, K): panels are 16 or 48 columns wide, vectors 8 or 16 lanes, bfloat16 runs in pairs of K.
SHAPES = [
    (1, 1),
    (5, 1),
    (48, 2),
    (16, 7),
    (49, 8),
    (47, 31),
    (33, 64),
    (96, 65),
    (97, 129),
    (144, 576),
    (200, 333),
    (577, 40),
]
ROWS = (*range(1, 21), 70, 512)


def poisoned(rows: Array) -> Array:
    """The same values in a wider and longer array of NaNs, float32."""
    held = np.full((len(rows) + 2, rows.shape[1] + 5), np.nan, np.float32)
    view = held[1:-1, 2:-3]
    view[:] = rows
    return view


class Guarded:
    """An output `[num_rows, width]`, `rows`, inside a larger array, of which nothing else may change."""

    def __init__(self, num_rows: int, width: int) -> None:
        self._held = np.full((num_rows + 2, width + 37), GUARD, np.float32)
        self.rows = self._held[1:-1, 17:-20]
        self.rows[:] = np.nan

    def result(self) -> Array:
        result = self.rows.copy()
        self.rows[:] = GUARD
        assert (self._held == GUARD).all(), "written outside the output"
        return result


class Weight:
    """A random weight `[n, k]`, packed, beside the values that the kernel sees."""

    def __init__(self, n: int, k: int, isa: str, dtype: str, *, seed: int = 0, parts: tuple[int, ...] = ()) -> None:
        self.isa, self.bf16 = isa, dtype == "bfloat16"
        self.rows = np.random.default_rng([seed, n, k]).standard_normal((n, k), np.float32)
        self.stored = to_bfloat16(self.rows) if self.bf16 else self.rows
        self.seen = round_to_bfloat16(self.rows) if self.bf16 else self.rows
        self.matrix = _native.Matrix(
            _native.Arena(), n, k, _native.WeightFormat.bfloat16() if self.bf16 else _native.WeightFormat.float32(), isa
        )
        pool, start = _native.ThreadPool(2), 0
        for count in parts or (n,):
            self.matrix.pack(self.stored[start : start + count], start, pool)
            start += count
        assert start == n

    def linear(self, x: Array, pool: Any, bias: Array | None = None) -> Array:
        """One call of the kernel on poisoned and guarded operands."""
        out = Guarded(len(x), len(self.rows))
        _native.linear(poisoned(x), self.matrix, [] if bias is None else bias.tolist(), out.rows, pool)
        return out.result()

    def expect(self, x: Array, bias: Array | None = None) -> Array:
        """The product in float64 of what the kernel sees: the bf16 dot instruction takes rounded activations."""
        rounds = self.bf16 and self.isa == "avx512"
        seen = (round_to_bfloat16(x) if rounds else x).astype(np.float64)
        product = seen @ self.seen.T.astype(np.float64)
        return product if bias is None else product + bias


def check_rows_alone(weight: Any, x: Any, bias: Any, pools: Sequence[Any], counts: Iterable[int]) -> None:
    """The bits of a row of the product of 512 rows depend on nothing but the row: not on how many others there are, on
    their order, on where it lies among them, nor on the number of threads.

    Args:
        weight: Has `linear(x, pool, bias)`.
        pools: Three, of different sizes.
        counts: Numbers of rows to multiply by themselves.
    """
    whole = weight.linear(x, pools[0], bias)
    assert np.isfinite(whole).all()
    for count in counts:
        assert np.array_equal(weight.linear(x[:count], pools[count % 3], bias), whole[:count])
    for pool in pools:
        assert np.array_equal(weight.linear(x, pool, bias), whole)
    order = np.random.default_rng(4).permutation(512)
    assert np.array_equal(weight.linear(x[order], pools[1], bias), whole[order])
    for begin, end in [(0, 100), (100, 101), (101, 400), (400, 512), (511, 512)]:
        assert np.array_equal(weight.linear(x[begin:end], pools[2], bias), whole[begin:end])
