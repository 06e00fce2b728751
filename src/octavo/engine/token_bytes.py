"""From the tokens of a vocabulary to the bytes they stand for.

Two spellings are in use. Byte-level BPE (GPT-2 and most since) writes each byte as one printable character.
SentencePiece writes text as it is, with a visible sign for the space, and spells bytes that no piece covers as
`<0xE2>`. A tokenizer.json says which by its decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from octavo.errors import UnsupportedModelError


class TokenSpelling(msgspec.Struct, frozen=True):
    """How a vocabulary spells bytes."""

    to_bytes: Callable[[str], bytes]
    """The bytes of one token's spelling."""
    strips_leading_space: bool
    """Whether a text's first space is only the tokenizer's own prefix and not part of the text."""


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the other 68 follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(others)})
    return alphabet


BYTE_OF_CHAR = _byte_level_alphabet()
"""The byte that each character of a byte-level spelling stands for."""
CHAR_OF_BYTE = {byte: char for char, byte in BYTE_OF_CHAR.items()}


def byte_level_bytes(spelling: str) -> bytes:
    """Bytes of a byte-level token. One with a foreign character (an added token) is plain text."""
    try:
        return bytes([BYTE_OF_CHAR[char] for char in spelling])
    except KeyError:
        return spelling.encode("utf-8", "replace")


def _sentencepiece_bytes(replacements: tuple[tuple[str, str], ...], byte_fallback: bool) -> Callable[[str], bytes]:
    def to_bytes(spelling: str) -> bytes:
        if byte_fallback and len(spelling) == 6 and spelling.startswith("<0x") and spelling.endswith(">"):
            try:
                return bytes.fromhex(spelling[3:5])
            except ValueError:
                pass  # looks like a byte and is not one: plain text
        for old, new in replacements:
            spelling = spelling.replace(old, new)
        return spelling.encode("utf-8", "replace")

    return to_bytes


def spelling_of(decoder: Any) -> TokenSpelling:
    """The spelling that a tokenizer.json's `decoder` undoes.

    Raises:
        UnsupportedModelError: For a decoder that is neither byte-level nor SentencePiece-like.
    """
    parts = decoder.get("decoders") if isinstance(decoder, dict) and decoder.get("type") == "Sequence" else [decoder]
    if not isinstance(parts, list) or not parts or not all(isinstance(part, dict) for part in parts):
        raise UnsupportedModelError("tokenizer: it has no decoder, so tokens cannot be turned into text")
    kinds = [part.get("type") for part in parts]
    if kinds == ["ByteLevel"]:
        return TokenSpelling(byte_level_bytes, strips_leading_space=False)
    replacements: list[tuple[str, str]] = []
    strips = False
    for kind, part in zip(kinds, parts, strict=True):
        if kind == "Replace" and isinstance(part.get("pattern"), dict) and "String" in part["pattern"]:
            replacements.append((str(part["pattern"]["String"]), str(part.get("content", ""))))
        elif kind == "Metaspace":
            replacements.append((str(part.get("replacement", "▁")), " "))
            strips = part.get("prepend_scheme", "always") != "never"
        elif kind == "Strip" and part.get("content") == " " and part.get("stop") == 0:
            strips = part.get("start") == 1
        elif kind not in ("ByteFallback", "Fuse"):
            raise UnsupportedModelError(f"tokenizer: decoder {kind!r} is not supported")
    return TokenSpelling(_sentencepiece_bytes(tuple(replacements), "ByteFallback" in kinds), strips)
