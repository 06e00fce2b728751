"""bfloat16 in numpy, which has no such type: uint16 arrays that hold the upper halves of float32 values."""

from __future__ import annotations

import numpy as np

from octavo.backends.protocol import Array, Float32Array


def to_bits(x: Array) -> Array:
    """float32 to the bits of bfloat16, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(x), (bits >> 16).astype(np.uint16) | 0x40, rounded)


def to_float32(x: Array) -> Float32Array:
    """float32 from float32 or from the bits of bfloat16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32)
    return np.asarray(x, np.float32)
