"""Weights in groups for the tests of their kernels, beside an exact model of the arithmetic in numpy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dense import Guarded, poisoned

from octavo import _native

Array = npt.NDArray[Any]


class Format(NamedTuple):
    bits: int
    group: int
    zero: int
    minimum: bool
    half_scales: bool

    def native(self) -> _native.WeightFormat:
        return _native.WeightFormat.groups(
            self.bits, self.group, zero=self.zero, minimum=self.minimum, half_scales=self.half_scales
        )


FORMATS = {
    "int4_zero": Format(4, 32, 8, False, True),
    "int4_minimum": Format(4, 32, 0, True, True),
    "int4_minimum_float": Format(4, 32, 0, True, False),
    "int8_zero": Format(8, 32, 128, False, True),
    "int8_zero_of_5_bits": Format(8, 32, 16, False, True),
    "int8_minimum": Format(8, 32, 0, True, True),
    "int8_minimum_float": Format(8, 32, 0, True, False),
    "int8_g16": Format(8, 16, 32, False, False),
    "int4_zero_float": Format(4, 32, 8, False, False),
    "int8_zero_float": Format(8, 32, 128, False, False),
    "int4_g16": Format(4, 16, 4, False, False),
    "int4_g16_minimum": Format(4, 16, 0, True, False),
}

# (N, K): panels are 16 or 32 columns wide, groups 16 or 32 elements, records one group or two.
GROUP_SHAPES = [(1, 1), (16, 32), (5, 3), (17, 33), (33, 64), (48, 16), (31, 95), (97, 129), (40, 576), (64, 1000)]


def per_element(values: Array, group: int, k: int) -> Array:
    """Values of groups `[rows, groups]` repeated for each element, `[rows, k]`."""
    return np.repeat(values, group, axis=1)[:, :k]


class GroupWeight:
    """Random codes, scales and minimums `[n, k]`, packed."""

    def __init__(self, n: int, k: int, isa: str, name: str, *, parts: tuple[int, ...] = ()) -> None:
        self.format, self.k = FORMATS[name], k
        rng, groups = np.random.default_rng([n, k]), -(-k // self.format.group)
        levels = min(1 << self.format.bits, 2 * self.format.zero or 256)
        self.codes = rng.integers(0, levels, (n, k)).astype(np.uint8)
        self.codes.flat[:: max(1, n * k // 7)] = levels - 1
        held = np.float16 if self.format.half_scales else np.float32
        self.scales = (rng.standard_normal((n, groups)) / levels).astype(held).astype(np.float32)
        self.scales.flat[:: max(1, n * groups // 3)] = 0.0
        self.minimums = rng.standard_normal((n, groups)).astype(held).astype(np.float32)
        if not self.format.minimum:
            self.minimums = None
        self.matrix = _native.Matrix(_native.Arena(), n, k, self.format.native(), isa)
        pool, start = _native.ThreadPool(2), 0
        for count in parts or (n,):
            self.pack(slice(start, start + count), start, pool)
            start += count
        assert start == n

    def pack(self, rows: slice, at: int, pool: Any) -> None:
        minimums = None if self.minimums is None else self.minimums[rows]
        self.matrix.pack_groups(self.codes[rows], self.scales[rows], minimums, at, pool)

    @property
    def values(self) -> Array:
        """The weight as float32, each step rounded."""
        scales = per_element(self.scales, self.format.group, self.k)
        values = scales * (self.codes.astype(np.float32) - np.float32(self.format.zero))
        return values if self.minimums is None else values + per_element(self.minimums, self.format.group, self.k)

    def linear(self, x: Array, pool: Any, bias: Array | None = None) -> Array:
        """One call of the kernel on poisoned and guarded operands."""
        out = Guarded(len(x), len(self.codes))
        _native.linear(poisoned(x), self.matrix, [] if bias is None else bias.tolist(), out.rows, pool)
        return out.result()

    def expect(self, x: Array) -> tuple[Array, Array]:
        """The product in float64 of rounded activations with the exact weight, and the sum of the sizes of what is
        added for it, `[M, n]` both: a kernel differs from the first by a few float32 roundings of the second."""
        codes, scales = quantise(x, self.format.group)
        seen = codes.astype(np.float64) * per_element(scales.astype(np.float64), self.format.group, self.k)
        weight = per_element(self.scales.astype(np.float64), self.format.group, self.k)
        weight = weight * (self.codes.astype(np.float64) - self.format.zero)
        product, size = seen @ weight.T, np.abs(seen) @ np.abs(weight).T
        if self.minimums is not None:
            minimums = per_element(self.minimums.astype(np.float64), self.format.group, self.k)
            product, size = product + seen @ minimums.T, size + np.abs(seen) @ np.abs(minimums).T
        return product, size


def quantise(x: Array, group: int) -> tuple[Array, Array]:
    """Codes `[M, k]` and scales `[M, groups]` of activations: max |x| / 127, quotients rounded half to even."""
    num_rows, k = x.shape
    groups = -(-k // group)
    padded = np.zeros((num_rows, groups * group), np.float32)
    padded[:, :k] = x
    scales = np.abs(padded.reshape(num_rows, groups, group)).max(axis=2) / np.float32(127)
    divisors = per_element(np.where(scales > 0, scales, np.float32(1)), group, k)
    return np.clip(np.rint(x / divisors), -127, 127).astype(np.int32), scales
