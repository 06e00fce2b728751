"""What an answer is held to, as rules of a grammar: put together from schemas, calls and thoughts.

Rules are lines in Lark's notation, of which one defines `answer`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.structured import JSON_OPTIONS, JSON_SCHEMA, REGEX, TAGS, StructuredOutputsParams, schema_text

Rules = Sequence[str]

_ANYTHING = r"(?s:.*)"


def rules_of(asked: StructuredOutputsParams) -> Rules | None:
    """The rules of what was asked for; None for a grammar of the caller's own, and for free text with tags."""
    grammar = asked.to_grammar()
    if grammar.kind == JSON_SCHEMA:
        return [f"answer: {json_value(msgspec.json.decode(grammar.text), grammar.param)}"]
    if grammar.kind == REGEX:
        return [f"answer: {pattern(grammar.text)}"]
    if asked.choice is not None:
        return ["answer: " + grammar.text.removeprefix("start: ")]
    assert grammar.kind == TAGS or asked.grammar is not None
    return None


def either(first: Rules, second: Rules) -> Rules:
    """An answer of the first kind or of the second."""
    return ["answer: answer0 | answer1", *_renamed(first, "answer0"), *_renamed(second, "answer1")]


def grammar_of(rules: Rules, param: str) -> StructuredOutputsParams:
    """The grammar in which the whole answer obeys the rules."""
    return StructuredOutputsParams(grammar="\n".join(["start: answer", *rules]), param=param)


def after_thoughts(rules: Rules, param: str, marks: tuple[str, str], *, opened: bool) -> StructuredOutputsParams:
    """The grammar in which an answer obeys the rules once its thoughts, of any length, have ended.

    Args:
        marks: What opens and closes the thoughts.
        opened: Whether the prompt has opened them. Else the answer may open them or do without.
    """
    opening, closing = marks
    lines = [
        f"start: {'thoughts' if opened else f'({text(opening)} thoughts)?'} answer",
        r"thoughts: thinking /\n*/",
        f"thinking[lazy]: {pattern(_ANYTHING + re.escape(closing))}",
    ]
    return StructuredOutputsParams(grammar="\n".join([*lines, *rules]), param=param)


def after_text(rules: Rules, param: str) -> StructuredOutputsParams:
    """The grammar of free text, which the rules may end. They begin with a control token: no text runs into them."""
    return StructuredOutputsParams(
        grammar="\n".join(["start: free answer | free", f"free: {pattern(_ANYTHING)}", *rules]), param=param
    )


def json_value(schema: Any, where: str) -> str:
    """A value by a JSON schema; see `octavo.structured.schema_text`."""
    held = {**(schema if isinstance(schema, dict) else {}), "x-guidance": JSON_OPTIONS}
    return "%json " + schema_text(held, where)


def text(literal: str) -> str:
    """This very text."""
    return msgspec.json.encode(literal).decode()


def pattern(regex: str) -> str:
    """A text that matches."""
    escaped = re.sub(r"(\\.)|/", lambda match: match[1] or r"\/", regex, flags=re.DOTALL)
    return "/" + escaped.replace("\n", r"\n") + "/"


def _renamed(rules: Rules, name: str) -> Rules:
    return [re.sub(r"^answer:", f"{name}:", rule) for rule in rules]
