"""SentencePiece's compiled normaliser ("precompiled charsmap"), checked before a library follows its offsets.

    4 bytes   size of the trie in bytes, little endian
    trie      a double array of 32-bit units: which bytes of a text are replaced, and by what
    texts     what they are replaced by, UTF-8, each with a NUL behind it; the trie holds where each begins

Source: the double array of darts-clone, https://github.com/s-yata/darts-clone
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

MAX_REPLACEMENT_BYTES = 256
"""The longest of Unicode's own, U+FDFA, takes 33."""

_LABELS = np.arange(1, 256, dtype=np.int64)
"""A text holds no NUL behind which the trie would be followed."""


def fault_of(charsmap: bytes) -> str | None:
    """What is wrong with it; None if a walk along any text stays inside, and finds whole characters."""
    size = int.from_bytes(charsmap[:4], "little")
    if len(charsmap) < 4 or size % 4 or not 4 <= size <= len(charsmap) - 4:
        return "is cut off"
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = charsmap[4 + size :]
    try:
        texts.decode()
    except UnicodeDecodeError:
        return "holds text that is not UTF-8"
    starts = _starts(units)
    return "points outside of itself" if starts is None else _fault_of_texts(texts, starts)


def _starts(units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64] | None:
    """Where each replacement that the trie can be walked to begins; None if a walk leaves the array."""
    seen = np.zeros(len(units), np.bool_)
    bases = _offset(units[:1])
    found: list[npt.NDArray[np.int64]] = [np.empty(0, np.int64)]
    while bases.size:
        if int((bases | 255).max()) >= len(units):
            return None
        seen[bases] = True
        places = bases[:, None] ^ _LABELS
        reached = (units[places] & 0x800000FF) == _LABELS
        places = places[reached]
        bases = places ^ _offset(units[places])
        leaves = bases[(units[places] >> 8 & 1) == 1]
        if leaves.size and int(leaves.max()) >= len(units):
            return None
        found.append(units[leaves] & 0x7FFFFFFF)
        inside = bases < len(units)
        bases = np.unique(bases[~inside | ~seen[np.where(inside, bases, 0)]])
    return np.concatenate(found)


def _offset(units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (units >> 10) << (units >> 6 & 8)


def _fault_of_texts(texts: bytes, starts: npt.NDArray[np.int64]) -> str | None:
    data: npt.NDArray[Any] = np.frombuffer(texts + b"\0", np.uint8)
    if starts.size and int(starts.max()) > len(texts):
        return "points outside of itself"
    if ((data[starts] & 0xC0) == 0x80).any():
        return "points into the middle of a character"
    ends = np.flatnonzero(data == 0)
    longest = int((ends[np.searchsorted(ends, starts)] - starts).max(initial=0))
    if longest > MAX_REPLACEMENT_BYTES:
        return f"replaces a character by {longest} bytes; at most {MAX_REPLACEMENT_BYTES} are allowed"
    return None
