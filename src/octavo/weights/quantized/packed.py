"""Small integers packed in 32-bit words, as AWQ, GPTQ and compressed-tensors store them.

The lowest bits of a word are place 0. `unpack_codes` is for weights, native; `unpack_words` for the few zero points.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import octavo._native as _native
from octavo.weights.dequantize import default_threads

Codes = npt.NDArray[np.uint8]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""AWQ keeps of eight neighbours number AWQ_ORDER[p] in place p of a word."""


def unpack_codes(
    words: npt.NDArray[Any], packing: str, bits: int, shape: tuple[int, int], num_threads: int | None = None
) -> Codes:
    """Codes `[N, K]` from int32 words.

    Args:
        packing: "rows" (words `[N, ceil(K / places)]`), "columns" (`[ceil(K / places), N]`) or "awq"
            (`[K, N / 8]`, AWQ's order).
    """
    codes = np.empty(shape, np.uint8)
    words = np.ascontiguousarray(words).view(np.uint32)
    _native.unpack_codes(words, packing, bits, codes, num_threads or default_threads())
    return codes


def unpack_words(words: npt.NDArray[Any], bits: int) -> Codes:
    """Integers of int32 words `[R, C]`: `[R, C * 32 / bits]`, places in their order."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    places = (words.view(np.uint32)[..., None] >> shifts) & np.uint32((1 << bits) - 1)
    return places.astype(np.uint8).reshape(len(words), -1)
