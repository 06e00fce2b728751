"""The parts of a tokenizer.json, for those kinds of tokenizers that are rewritten as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from octavo.errors import ModelFileError

SPACE = "▁"
"""U+2581, how SentencePiece writes a space."""

Part = dict[str, Any]


def byte_level(use_regex: bool, add_prefix_space: bool = False) -> Part:
    """Each byte as one character; with `use_regex` cut into GPT-2's words first."""
    return {"type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": True, "use_regex": use_regex}


def split(pattern: str) -> Part:
    """Cut around each match of a regular expression."""
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def replace(old: str, new: str, *, regex: bool = False) -> Part:
    return {"type": "Replace", "pattern": {"Regex" if regex else "String": old}, "content": new}


def pre_tokenizers(*parts: Part) -> Part | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", "pretokenizers": list(parts)}


def normalizers(*parts: Part) -> Part | None:
    if len(parts) < 2:
        return parts[0] if parts else None
    return {"type": "Sequence", "normalizers": list(parts)}


def bpe(ids: Mapping[str, int], merges: Sequence[tuple[str, str]], **options: Any) -> Part:
    return {"type": "BPE", "vocab": ids, "merges": merges, **options}


def added_token(token_id: int, content: str, *, special: bool, **flags: bool) -> Part:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"id": token_id, "content": content, **plain, **flags, "special": special}


def around(before: Iterable[tuple[str, int]], after: Iterable[tuple[str, int]]) -> Part | None:
    """Puts (token, id) pairs before and after each text."""
    before, after = list(before), list(after)
    if not before and not after:
        return None

    def piece(token: str, type_id: int) -> Part:
        return {"SpecialToken": {"id": token, "type_id": type_id}}

    def text(name: str, type_id: int) -> list[Part]:
        sequence = {"Sequence": {"id": name, "type_id": type_id}}
        return [*(piece(t, type_id) for t, _ in before), sequence, *(piece(t, type_id) for t, _ in after)]

    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": text("A", 0) + text("B", 1),
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in (*before, *after)},
    }


def whole(parts: Mapping[str, Any], added: Sequence[Part], post_processor: Part | None) -> Part:
    """A tokenizer.json of its parts: normalizer, pre_tokenizer, decoder, model."""
    head = {"version": "1.0", "truncation": None, "padding": None}
    return {**head, "added_tokens": added, "post_processor": post_processor, **parts}


def ids_of(tokens: Sequence[str], file: str, where: str) -> dict[str, int]:
    """Each token's id.

    Raises:
        ModelFileError: If one stands twice.
    """
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for i, token in enumerate(tokens) if ids[token] != i)
        raise ModelFileError(file, where, f"token {twice[:40]!r} stands twice")
    return ids
