"""Weights as small integers in groups: read as they are stored, or rounded from floats."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import octavo._native as _native
from octavo.backends.protocol import Float32Array, GroupedWeight
from octavo.weights.checkpoint import FloatArray
from octavo.weights.dequantize import default_threads

QUANTIZE_GROUP = 32
"""Group of the weights that `quantize` makes."""


def read_groups(
    data: npt.NDArray[np.uint8], type_name: str, shape: tuple[int, ...], *, num_threads: int | None = None
) -> GroupedWeight | None:
    """A matrix `[N, K]` with the integers and scales that are stored; None if the type stores floats.

    Args:
        data: uint8, one axis, as stored.
        type_name: A readable type of `ggml_types`.

    Raises:
        ValueError: If sizes or types do not agree.
    """
    layout = _native.group_layout(type_name)
    if layout is None:
        return None
    bits, group, zero, has_minimum, half_scales = layout
    rows, columns = shape
    codes = np.empty((rows, columns), np.uint8)
    scales, minimums = _group_values(rows, columns, group, has_minimum)
    _native.read_groups(data, type_name, codes, scales, minimums, num_threads or default_threads())
    return GroupedWeight(
        codes=codes, scales=scales, minimums=minimums, bits=bits, group=group, zero=zero, half_scales=half_scales
    )


def quantize(values: FloatArray, bits: int, *, num_threads: int | None = None) -> GroupedWeight:
    """Round a matrix `[N, K]`, float32 or bfloat16 bits, to groups of 32.

    8 bits: zero 128 and scale max |w| / 127. 4 bits: a scale and a minimum, those of least squared error among some
    candidates. Scales and minimums are float16 numbers; NaN for a group with something that is not finite or is too
    large for them.

    Raises:
        ValueError: If `bits` is neither 4 nor 8.
    """
    rows, columns = values.shape
    codes = np.empty((rows, columns), np.uint8)
    scales, minimums = _group_values(rows, columns, QUANTIZE_GROUP, bits == 4)
    _native.quantize(values, bits, codes, scales, minimums, num_threads or default_threads())
    return GroupedWeight(
        codes=codes,
        scales=scales,
        minimums=minimums,
        bits=bits,
        group=QUANTIZE_GROUP,
        zero=0 if bits == 4 else 128,
        half_scales=True,
    )


def hollow_groups(type_name: str, shape: tuple[int, ...]) -> GroupedWeight | None:
    """What `read_groups` gives of a tensor of this type and shape, but all zeros, which take no memory."""
    layout = _native.group_layout(type_name)
    if layout is None:
        return None
    bits, group, zero, has_minimum, half_scales = layout
    return hollow_groups_of(shape, bits, group, zero, has_minimum=has_minimum, half_scales=half_scales)


def hollow_quantized(shape: tuple[int, ...], bits: int) -> GroupedWeight:
    """What `quantize` makes of a matrix `[N, K]`, but all zeros, which take no memory."""
    zero = 0 if bits == 4 else 128
    return hollow_groups_of(shape, bits, QUANTIZE_GROUP, zero, has_minimum=bits == 4, half_scales=True)


def hollow_groups_of(
    shape: tuple[int, ...], bits: int, group: int, zero: int, *, has_minimum: bool, half_scales: bool
) -> GroupedWeight:
    rows, columns = shape
    scales = np.broadcast_to(np.float32(0), (rows, -(-columns // group)))
    return GroupedWeight(
        codes=np.broadcast_to(np.uint8(0), (rows, columns)),
        scales=scales,
        minimums=scales if has_minimum else None,
        bits=bits,
        group=group,
        zero=zero,
        half_scales=half_scales,
    )


def _group_values(rows: int, columns: int, group: int, has_minimum: bool) -> tuple[Float32Array, Float32Array | None]:
    shape = (rows, -(-columns // group))
    return np.empty(shape, np.float32), np.empty(shape, np.float32) if has_minimum else None
