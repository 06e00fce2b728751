"""Random text made to trip tokenizers up, the same for a seed on every machine. Standard library only.

All scripts, combining marks, joined emoji, long runs of spaces and of ends of lines, digits, control characters, what
is left of broken UTF-8 (U+FFFD), and spellings of control tokens, whole and in pieces.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from support.texts import random_text

_ALL_PLANES = ((0x20, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000))
_CONTROLS = [
    chr(i) for i in (*range(32), 0x7F, *range(0x80, 0xA0), 0xAD, 0x200B, 0x2028, 0x2060, 0xFEFF, 0xFFFC, 0xFFFD)
]
_EMOJI = (
    "👩\u200d💻",
    "👨\u200d👩\u200d👧\u200d👦",
    "🏳\ufe0f\u200d🌈",
    "👍🏽",
    "🇩🇪🇫🇷",
    "1\ufe0f\u20e3",
    "❤\ufe0f",
    "🫠",
)
_WORDS = (
    *(
        "Once upon a time",
        "don't",
        "I'LL",
        "WE'VE",
        "x'S",
        "'",
        "''d",
        "camelCaseWord",
        "HTTPServer",
        "snake_case",
        "naïve",
    ),
    *(
        "e\u0301\u0323",
        "Å",
        "ﬁ",
        "ｆｕｌｌ",
        "Ⅷ",
        "²",
        "٣٤٥",
        "१२३",
        "一二三",
        "日本語のテキスト",
        "한국어",
        "ру́сский",
        "עִבְרִית",
    ),
    *("def f(x):\n\treturn x+1\n", "<b>bold</b>", "https://a.b/c?d=1&e", '{"a": [1, 2.50]}', "\\n", "…", "–—", "／"),
)


def wild_text(rng: random.Random, specials: Sequence[str] = ()) -> str:
    """Up to a few hundred characters. `specials` are spellings of the tokenizer's own control tokens."""
    if rng.random() < 0.3:
        return random_text(rng)
    return "".join(_piece(rng, specials) for _ in range(rng.randint(1, 16)))


def _piece(rng: random.Random, specials: Sequence[str]) -> str:
    choice = rng.random()
    if choice < 0.25:
        return rng.choice(_WORDS)
    if choice < 0.40:
        return rng.choice((" ", "\n", "\t", "\r\n", "\u3000", "\u00a0")) * rng.choice((1, 1, 2, 3, 4, 7, 16, 33))
    if choice < 0.50:
        return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))
    if choice < 0.58:
        return rng.choice(_EMOJI)
    if choice < 0.66:
        return rng.choice(_CONTROLS)
    if choice < 0.74 and specials:
        spelling = rng.choice(specials)
        return spelling if rng.random() < 0.6 else spelling[: rng.randint(1, len(spelling))]
    if choice < 0.86:
        return rng.choice(".,;:!?-+*/=<>()[]{}\"'`~@#$%^&|_\\") * rng.choice((1, 1, 2, 5))
    low, high = rng.choice(_ALL_PLANES)
    return "".join(chr(rng.randrange(low, high)) for _ in range(rng.randint(1, 5)))


def wild_texts(seed: int, count: int, specials: Sequence[str] = ()) -> list[str]:
    rng = random.Random(seed)
    return [wild_text(rng, specials) for _ in range(count)]
