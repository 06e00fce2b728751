"""What an answer may be made to obey: a JSON schema, a regular expression, a choice, a grammar.

`StructuredOutputsParams` is what a caller says; `Grammar` is the same as plain text, which travels to the engine and is
compiled there; `Vocabulary` is what a grammar is compiled for.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from octavo.errors import RequestError

MAX_GRAMMAR_CHARS = 1 << 20
"""Longest text of a grammar, JSON schemas included; compiling one takes memory in proportion."""

MAX_CHOICES = 10_000

JSON_SCHEMA = "json_schema"
REGEX = "regex"
LARK = "lark"
TAGS = "structural_tag"

JSON_OPTIONS = {"lenient": False, "coerce_one_of": False, "whitespace_flexible": True, "whitespace_pattern": r"[ ]?"}
"""What a schema does not say. No keyword of it is ignored: one that cannot be held is an error. One space at most
between tokens, because small models that may write blanks tend to write nothing else."""

_MAY_BE_HUGE = re.compile(r"[0-9]{309}|null")
"""Of a text: that it may be made of numbers that no float can hold; infinities are written as null."""

_ANY_OBJECT = '{"type":"object"}'
_KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class Grammar(msgspec.Struct, frozen=True, array_like=True):
    """A grammar as text. Two that are equal in `kind` and `text` allow the same answers."""

    kind: str
    """JSON_SCHEMA, REGEX, LARK or TAGS."""
    text: str
    param: str = "structured_outputs"
    """The request's field that it came from, for messages."""


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a model."""

    size: int
    """Width of the logits; ids from `len(tokens)` on stand for nothing."""
    tokens: list[bytes]
    special_ids: list[int]
    """Control tokens: no text ever matches them."""
    eos_ids: list[int]
    """The tokens that end an answer, at least one."""
    encode: Callable[[str], list[int]]
    """As the model's tokenizer spells a text that contains no control token."""


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the answer must be. Exactly one of the kinds; names follow vLLM's.

    Raises:
        RequestError: When none or several are given, or one can be no grammar.
    """

    json: str | dict[str, Any] | bool | None = None
    """A JSON schema, or its text."""
    regex: str | None = None
    """A regular expression that the whole answer matches; no look-around, no back references."""
    choice: tuple[str, ...] | None = None
    """One of these texts."""
    grammar: str | None = None
    """A grammar in Lark's notation, from its rule `start`, or in GBNF, from `root`."""
    json_object: bool | None = None
    """True: any JSON object."""
    structural_tag: str | dict[str, Any] | None = None
    """Free text with tagged parts: `{"structures": [{"begin", "schema", "end"}, ...], "triggers": [...]}`. Wherever a
    trigger appears, one of the structures that begin with it follows: its begin, a value by its schema, its end."""
    param: str = "structured_outputs"
    """The request's field that this came from, for messages."""
    as_text: Grammar | None = None
    """Made from the others."""

    def __post_init__(self) -> None:
        given = [name for name in _KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            allowed = "exactly one of " + ", ".join(_KINDS)
            raise RequestError(self.param, message=f"{self.param}: holds {_listed(given)}; must hold {allowed}")
        if self.choice is not None:
            choice = (self.choice,) if isinstance(self.choice, str) else tuple(self.choice)
            msgspec.structs.force_setattr(self, "choice", choice)
        msgspec.structs.force_setattr(self, "as_text", self._as_text())

    def to_grammar(self) -> Grammar:
        """The same as text."""
        assert self.as_text is not None
        return self.as_text

    def _as_text(self) -> Grammar:
        if self.json is not None:
            return self._grammar("json", JSON_SCHEMA, schema_text(self.json, self._where("json")))
        if self.regex is not None:
            return self._grammar("regex", REGEX, self.regex)
        if self.choice is not None:
            return self._grammar("choice", LARK, _any_of(self.choice, self._where("choice")))
        if self.grammar is not None:
            return self._grammar("grammar", LARK, self.grammar)
        if self.json_object is not None:
            if self.json_object is not True:
                raise RequestError(self._where("json_object"), self.json_object, "true or left out")
            return self._grammar("json_object", JSON_SCHEMA, _ANY_OBJECT)
        where = self._where("structural_tag")
        return self._grammar("structural_tag", TAGS, _tags_text(self.structural_tag, where))

    def _where(self, name: str) -> str:
        return f"{self.param}.{name}" if self.param == "structured_outputs" else self.param

    def _grammar(self, name: str, kind: str, text: str) -> Grammar:
        where = self._where(name)
        if not isinstance(text, str) or not text.strip():
            raise RequestError(where, text, "a text that is not empty")
        if len(text) > MAX_GRAMMAR_CHARS:
            allowed = f"at most {MAX_GRAMMAR_CHARS} are allowed"
            raise RequestError(where, message=f"{where}: has {len(text)} characters; {allowed}")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise RequestError(where, message=f"{where}: holds half of a surrogate pair, which is no text") from None
        return Grammar(kind, text, where)


def _listed(names: list[str]) -> str:
    return ", ".join(names) or "none"


def _json_text(value: Any, where: str) -> str:
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(where, message=f"{where}: is not JSON ({error})") from None
    if len(text) <= MAX_GRAMMAR_CHARS and _MAY_BE_HUGE.search(text):
        _check_numbers(value, where)
    return text


def _check_numbers(value: Any, where: str) -> None:
    """Numbers beyond a float's range, and those that are none, have no JSON that all readers take."""
    pending = [(where, value)]
    while pending:
        at, item = pending.pop()
        if isinstance(item, dict):
            pending += [(f"{at}.{str(name)[:64]}", child) for name, child in item.items()]
        elif isinstance(item, list | tuple):
            pending += [(f"{at}[{i}]", child) for i, child in enumerate(item)]
        elif isinstance(item, int | float) and not abs(item) <= sys.float_info.max:  # NaN is not, either
            raise RequestError(where, message=f"{at}: must be a number between -1.8e308 and 1.8e308")


def _json_value(text: str, where: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise RequestError(where, message=f"{where}: is not JSON ({error})") from None


def schema_text(schema: Any, where: str) -> str:
    """A JSON schema, or its text, as the text that the compiler reads.

    Args:
        where: The request's field, for messages.

    Raises:
        RequestError: If it is none, or holds what is no JSON.
    """
    if isinstance(schema, str):
        schema = _json_value(schema, where)
    if schema is not True and not isinstance(schema, dict):
        raise RequestError(where, schema, "a JSON schema: an object, or true for any value")
    return _json_text({} if schema is True else schema, where)


def _any_of(choices: tuple[str, ...], where: str) -> str:
    if not choices or len(choices) > MAX_CHOICES:
        raise RequestError(where, message=f"{where}: holds {len(choices)} texts; must hold 1 to {MAX_CHOICES}")
    for i, choice in enumerate(choices):
        if not isinstance(choice, str) or not choice:
            raise RequestError(f"{where}[{i}]", choice, "a text that is not empty")
    # One terminal: as alternatives of a rule each would be followed by itself.
    return "start: CHOICE\nCHOICE: " + " | ".join(_json_text(choice, where) for choice in choices)


def _tags_text(tags: Any, where: str) -> str:
    """Checked, and only what is known of it."""
    if isinstance(tags, str):
        tags = _json_value(tags, where)
    if not isinstance(tags, dict):
        raise RequestError(where, tags, "an object with structures and triggers")
    if "format" in tags:
        raise RequestError(f"{where}.format", message=f"{where}.format: is not supported; give structures and triggers")
    structures, triggers = tags.get("structures"), tags.get("triggers")
    if not isinstance(structures, list) or not structures:
        raise RequestError(f"{where}.structures", structures, "a list of objects, at least one")
    if not isinstance(triggers, list) or not triggers or not all(isinstance(t, str) and t for t in triggers):
        raise RequestError(f"{where}.triggers", triggers, "a list of texts that are not empty, at least one")
    found = [_tag(tag, triggers, f"{where}.structures[{i}]") for i, tag in enumerate(structures)]
    return _json_text(found, where)


def _tag(tag: Any, triggers: list[str], where: str) -> dict[str, Any]:
    if not isinstance(tag, dict):
        raise RequestError(where, tag, "an object with begin, schema and end")
    begin, end, schema = tag.get("begin"), tag.get("end", ""), tag.get("schema", {})
    for name, text in (("begin", begin), ("end", end)):
        if not isinstance(text, str):
            raise RequestError(f"{where}.{name}", text, "a text")
    trigger = next((t for t in triggers if str(begin).startswith(t)), None)
    if trigger is None:
        raise RequestError(f"{where}.begin", begin, "a text that begins with one of the triggers")
    if not isinstance(schema, dict) and schema is not True:
        raise RequestError(f"{where}.schema", schema, "a JSON schema: an object, or true for any value")
    schema_text(schema, f"{where}.schema")
    return {"trigger": trigger, "begin": begin, "schema": schema, "end": end}
