"""int8 keys and values in numpy: per vector one float32 scale, max |x| / 127 (see `protocol.KVShape`)."""

from __future__ import annotations

import numpy as np

from octavo.backends.protocol import Array


def quantise(x: Array) -> tuple[Array, Array]:
    """int8 `[..., n]` and float32 scales `[..., 1]` of float32 vectors `[..., n]`.

    A vector with something that is not finite becomes zeros with the scale NaN, so that whatever reads it is NaN.
    """
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
    scale = np.where(np.isfinite(scale), scale, np.float32(np.nan))
    with np.errstate(invalid="ignore", divide="ignore"):
        quotient = np.rint(x / scale)
    # A subnormal scale has few digits: quotients may then exceed 127.
    stored = np.where(scale > 0, np.clip(quotient, -127, 127), 0)
    return stored.astype(np.int8), scale


def dequantise(stored: Array, scale: Array) -> Array:
    """float64, exact."""
    return stored.astype(np.float64) * scale.astype(np.float64)
