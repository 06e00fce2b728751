"""What a tokenizer.json may not hold, though the `tokenizers` library takes it.

The library checks little of what a file tells it to do: some of it makes the native code panic at the first text, some
makes texts grow by a factor with every step, and no caller could stop it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Any

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.charsmap import fault_of
from octavo.weights.files import decode_json

MAX_STEPS = 64
"""Normalisers, pre-tokenisers or post-processors; the longest lists in use have a dozen."""
MAX_GROWTH = 64
"""A text may become so many times as long."""
MAX_AROUND = 64
"""Tokens that are put around a text."""
_LISTS = ("normalizers", "pretokenizers", "processors")


class _Model(msgspec.Struct):
    dropout: float | None = None


class _Parts(msgspec.Struct):
    """The rest is left to the library."""

    normalizer: Any = None
    pre_tokenizer: Any = None
    post_processor: Any = None
    model: _Model | None = None


def check_tokenizer(data: bytes, file: str) -> None:
    """Look at the steps of a tokenizer.json.

    Args:
        file: Its name, for messages.

    Raises:
        ModelFileError: Naming the part, if a step would fail on any text, or make texts too long.
        UnsupportedModelError: If tokens are drawn by lot.
    """
    parts = decode_json(data, _Parts, file, "tokenizer")
    growth = 1.0
    for name in ("normalizer", "pre_tokenizer", "post_processor"):
        steps = list(_steps(getattr(parts, name), file, name))
        for step in steps:
            growth *= _growth(step)
            fault = _FAULTS.get(str(step.get("type")), _no_fault)(step)
            if fault is not None:
                raise ModelFileError(file, f"{name} {step['type']}", fault)
    if growth > MAX_GROWTH:
        why = f"may make a text {growth:.0f} times as long; at most {MAX_GROWTH} times are allowed"
        raise ModelFileError(file, "normalizer and pre_tokenizer", why)
    if parts.model is not None and parts.model.dropout:
        raise UnsupportedModelError(
            f"{file}: model.dropout = {parts.model.dropout}: tokens drawn by lot; supported is 0"
        )


def _steps(node: Any, file: str, name: str) -> Iterator[dict[str, Any]]:
    """The steps of a part, those in sequences one by one."""
    waiting, count = [node], 0
    while waiting:
        step = waiting.pop()
        if isinstance(step, list):
            waiting += reversed(step)
        elif isinstance(step, dict):
            inner = next((step[key] for key in _LISTS if key in step), None)
            if inner is not None:
                waiting.append(inner)
                continue
            count += 1
            if count > MAX_STEPS:
                raise ModelFileError(file, name, f"has more than {MAX_STEPS} steps")
            yield step


def _growth(step: dict[str, Any]) -> float:
    """How many times as long a step may make a text. What is put in front of it once does not count."""
    if step.get("type") == "ByteLevel":
        return 2.0  # each byte that is no plain character becomes two
    if step.get("type") != "Replace":
        return 1.0
    pattern, content = step.get("pattern"), step.get("content")
    old = pattern.get("String") if isinstance(pattern, dict) else None
    new = len(content) if isinstance(content, str) else 0
    return max(1.0, new / len(old)) if isinstance(old, str) and old else new + 1.0


def _no_fault(step: dict[str, Any]) -> str | None:
    return None


def _fault_of_charsmap(step: dict[str, Any]) -> str | None:
    text = step.get("precompiled_charsmap")
    try:
        charsmap = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        return "precompiled_charsmap is not base64"
    fault = fault_of(charsmap)
    return None if fault is None else f"precompiled_charsmap {fault}"


def _fault_of_length(step: dict[str, Any]) -> str | None:
    length = step.get("length")
    return f"length is {repr(length)[:40]}; must be 1 or more" if length == 0 else None


def _fault_of_prefix(step: dict[str, Any]) -> str | None:
    text = step.get("prepend")
    return f"puts {len(text)} characters in front" if isinstance(text, str) and len(text) > MAX_GROWTH else None


def _fault_of_template(step: dict[str, Any]) -> str | None:
    known = step.get("special_tokens")
    names = set(known) if isinstance(known, dict) else set()
    for key in ("single", "pair"):
        pieces = step.get(key)
        pieces = pieces if isinstance(pieces, list) else []
        if len(pieces) > MAX_AROUND:
            return f"{key} has {len(pieces)} pieces; at most {MAX_AROUND} are allowed"
        for piece in pieces:
            token = piece.get("SpecialToken") if isinstance(piece, dict) else None
            name = token.get("id") if isinstance(token, dict) else None
            if isinstance(name, str) and name not in names:
                return f"{key} names the token {name[:40]!r}, which special_tokens does not have"
    return None


_FAULTS = {
    "Precompiled": _fault_of_charsmap,
    "FixedLength": _fault_of_length,
    "Prepend": _fault_of_prefix,
    "TemplateProcessing": _fault_of_template,
}
"""By type: what is wrong with a step, or None."""
