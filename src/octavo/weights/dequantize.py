"""Stored bytes to float arrays, by the native dequantisers."""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

import octavo._native as _native
from octavo.weights.checkpoint import FloatArray

MAX_THREADS = 8
"""More only wait for memory."""


def default_threads() -> int:
    """Threads worth using here: the cores this process may run on, up to MAX_THREADS."""
    return min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, MAX_THREADS)


def dequantize(
    data: npt.NDArray[np.uint8],
    type_name: str,
    shape: tuple[int, ...],
    dtype: str,
    *,
    out: FloatArray | None = None,
    num_threads: int | None = None,
) -> FloatArray:
    """A tensor of `shape` from its stored bytes.

    Args:
        data: uint8, one axis, as stored.
        type_name: A readable type of `ggml_types`, for example "q4_1" or "bf16".
        dtype: "float32", or "bfloat16" (rounded to nearest even).
        out: Where to put it: contiguous, of as many elements, float32 or uint16 as `dtype` asks.
        num_threads: Default: `default_threads()`.

    Raises:
        ValueError: If sizes or types do not agree.
    """
    kinds: dict[str, type[Any]] = {"float32": np.float32, "bfloat16": np.uint16}
    if dtype not in kinds:
        raise ValueError(f"dtype = {dtype!r}: must be float32 or bfloat16")
    kind = kinds[dtype]
    if out is None:
        out = np.empty(shape, kind)
    elif out.dtype != kind or out.size != math.prod(shape):
        raise ValueError(f"out holds {out.size} x {out.dtype}; must hold {math.prod(shape)} x {np.dtype(kind)}")
    _native.dequantize(data, type_name, out, num_threads or default_threads())
    return out
