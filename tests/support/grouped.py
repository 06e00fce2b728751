"""Random weights in groups, of every format that GGUF's types and `--quantization` come to."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import GroupedWeight


class Format(msgspec.Struct, frozen=True):
    """How a weight in groups is kept."""

    bits: int
    group: int
    zero: int
    minimum: bool
    half_scales: bool

    def __str__(self) -> str:
        parts = [f"int{self.bits}", f"group{self.group}", f"zero{self.zero}"]
        return "-".join([*parts, *["minimum"] * self.minimum, *["half"] * self.half_scales])


FORMATS = [
    Format(4, 32, 8, False, True),  # Q4_0
    Format(4, 32, 0, True, True),  # Q4_1, and int4 at load
    Format(4, 32, 0, True, False),  # Q4_K
    Format(8, 32, 16, False, True),  # Q5_0
    Format(8, 32, 0, True, True),  # Q5_1
    Format(8, 32, 0, True, False),  # Q5_K
    Format(8, 32, 128, False, True),  # Q8_0, and int8 at load
    Format(8, 16, 32, False, False),  # Q6_K
]
_LARGEST = {16: 32, 32: 64}
"""Codes stay below, by zero, where a format uses fewer bits than it is kept in."""


def grouped(format: Format, rows: int, columns: int, *, seed: int = 0) -> GroupedWeight:
    """Codes of the whole range, values of about 1."""
    rng = np.random.default_rng([seed, rows, columns])
    largest = _LARGEST.get(format.zero, 1 << format.bits)
    shape = (rows, -(-columns // format.group))
    scales = rng.uniform(0.5, 1.5, shape) * rng.choice([-1, 1], shape) * 2 / largest
    minimums = rng.standard_normal(shape) if format.minimum else None

    def rounded(values: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        return values.astype(np.float16 if format.half_scales else np.float32).astype(np.float32)

    return GroupedWeight(
        codes=rng.integers(0, largest, (rows, columns), dtype=np.uint8),
        scales=rounded(scales),
        minimums=None if minimums is None else rounded(minimums),
        bits=format.bits,
        group=format.group,
        zero=format.zero,
        half_scales=format.half_scales,
    )


def expanded(weight: GroupedWeight) -> npt.NDArray[np.float32]:
    """What the codes stand for, element by element."""
    values = np.empty(weight.shape, np.float32)
    for (row, column), code in np.ndenumerate(weight.codes):
        group = column // weight.group
        value = weight.scales[row, group] * np.float32(int(code) - weight.zero)
        values[row, column] = value if weight.minimums is None else value + weight.minimums[row, group]
    return values
