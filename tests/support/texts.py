"""Random text in all scripts, the same for a seed on every machine. Standard library only."""

from __future__ import annotations

import hashlib
import random

_RANGES = (
    (0x20, 0x7F),  # ASCII
    (0xA0, 0x180),  # Latin
    (0x300, 0x370),  # combining marks
    (0x370, 0x500),  # Greek, Cyrillic
    (0x590, 0x700),  # Hebrew, Arabic
    (0x900, 0xD00),  # scripts of India
    (0xE00, 0xE80),  # Thai
    (0x2000, 0x2070),  # punctuation, joiners, odd spaces
    (0x3040, 0x3100),  # Kana
    (0x4E00, 0x9FFF),  # Han
    (0xAC00, 0xD7A3),  # Hangul
    (0xFE00, 0xFE10),  # variation selectors
    (0x10000, 0x10400),
    (0x1D400, 0x1D7FF),  # mathematical letters
    (0x1F300, 0x1FAFF),  # emoji
)
_PIECES = (
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<s>", "</s>", "<|im_start", "<|im_", "end|>"),
    *("don't", "I'LL", "we've", "12345", "٣٤", "½", "ﬁ", "caf\u00e9", "cafe\u0301", "\u200d", "\ufeff", "\ufffd"),
    *("👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "e\u0308", "\u00a0", "▁", "<0x0A>", "\x00", "\x7f"),
)
_SPACES = (" ", "  ", "      ", "\n", "\r\n", "\t", "\n\n", " \n ")


def random_text(rng: random.Random) -> str:
    """Up to about a hundred characters."""
    parts = []
    for _ in range(rng.randint(0, 24)):
        choice = rng.random()
        if choice < 0.2:
            parts.append(rng.choice(_PIECES))
        elif choice < 0.4:
            parts.append(rng.choice(_SPACES))
        else:
            low, high = rng.choice(_RANGES)
            parts.append("".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 6))))
    return "".join(parts)


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    return [random_text(rng) for _ in range(count)]


def digest(id_lists: list[list[int]]) -> str:
    """A short fingerprint of many lists of ids."""
    text = "\n".join(" ".join(map(str, ids)) for ids in id_lists)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
