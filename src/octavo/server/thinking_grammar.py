"""Grammars for models that reason first: the thoughts are free, and what follows them obeys."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from octavo.structured import JSON_OPTIONS, JSON_SCHEMA, REGEX, TAGS, StructuredOutputsParams

_FREE = r"(?s:.*)"


def after_thoughts(
    asked: StructuredOutputsParams, marks: tuple[str, str], *, opened: bool
) -> StructuredOutputsParams | None:
    """What was asked for, behind thoughts of any length; None for a grammar of the caller's own, which begins at once.

    Args:
        marks: What opens and closes the thoughts.
        opened: Whether the prompt has opened them. Else the answer may open them or do without.
    """
    grammar = asked.to_grammar()
    if grammar.kind == TAGS:
        return asked  # the text around tags is free as it is
    if grammar.kind == JSON_SCHEMA:
        schema: Any = msgspec.json.decode(grammar.text)
        held = {**(schema if isinstance(schema, dict) else {}), "x-guidance": JSON_OPTIONS}
        answer = "%json " + msgspec.json.encode(held).decode()
    elif grammar.kind == REGEX:
        answer = _slashed(grammar.text)
    elif asked.choice is not None:
        answer = grammar.text.removeprefix("start: ")
    else:
        return None
    opening, closing = marks
    begin = "thoughts" if opened else f"({msgspec.json.encode(opening).decode()} thoughts)?"
    lark = "\n".join(
        [
            f"start: {begin} answer",
            r"thoughts: thinking /\n*/",
            f"thinking[lazy]: {_slashed(_FREE + re.escape(closing))}",
            f"answer: {answer}",
        ]
    )
    return StructuredOutputsParams(grammar=lark, param=grammar.param)


def _slashed(pattern: str) -> str:
    """A regular expression between slashes."""
    escaped = re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", pattern, flags=re.DOTALL)
    return "/" + escaped.replace("\n", r"\n") + "/"
