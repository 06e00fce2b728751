"""The JSON schemas within a grammar: which there are, of which field of the request, and what stands where in them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from octavo.structured import JSON_SCHEMA, LARK, TAGS, Grammar

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_OF_SCHEMA = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
"""Keywords that hold schemas by name, in a list, and one."""

_RULE = re.compile(r"^(?:call(\d+):)?.*?%json\s*(?=\{)", re.MULTILINE)

Node = dict[str, Any]
Path = tuple[str | int, ...]


class Schema(NamedTuple):
    """One of a grammar's schemas."""

    field: str
    """Of the request."""
    path: Path
    """Of the schema in the field."""
    value: Any

    def nodes(self) -> Iterator[tuple[Path, Node]]:
        """The schemas within it, itself first, with their paths in the field."""
        return ((path, node) for path, node in _children(self.value, self.path) if isinstance(node, dict))

    def children(self) -> Iterator[tuple[Path, Any]]:
        """The same, with what stands in the place of a schema and is none."""
        return _children(self.value, self.path)


def schemas_of(grammar: Grammar) -> list[Schema]:
    """All schemas of a grammar. Text in Lark's notation is searched for them: what is none, is left to the compiler."""
    param = grammar.param
    if grammar.kind == JSON_SCHEMA:
        return [Schema(param, (), msgspec.json.decode(grammar.text))]
    if grammar.kind == TAGS:
        tags = [tag["schema"] for tag in msgspec.json.decode(grammar.text)]
        if param == "tools":  # see `octavo.server.tool_grammar.strict_calls`
            return [Schema(_parameters(i), (), schema) for i, schema in enumerate(tags)]
        return [Schema(param, ("structures", i, "schema"), schema) for i, schema in enumerate(tags)]
    return list(_in_rules(grammar)) if grammar.kind == LARK else []


def place(field: str, path: Path, keyword: str | int) -> str:
    """Where a keyword stands, for messages."""
    if field == "tools" and path[:1] == ("$defs",):  # see `octavo.server.tool_grammar.required_calls`
        field, path = _parameters(int(str(path[1]).removeprefix("tool"))), path[2:]
    steps = [f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in (*path, keyword)]
    return f"{field}{''.join(steps)}"


def _parameters(tool: int) -> str:
    return f"tools[{tool}].function.parameters"


def _in_rules(grammar: Grammar) -> Iterator[Schema]:
    own = grammar.param.endswith("grammar")  # the caller's, who wrote %json
    decoder, end = json.JSONDecoder(), 0
    while (found := _RULE.search(grammar.text, end)) is not None:
        end = found.end()
        try:
            value, end = decoder.raw_decode(grammar.text, end)
        except (ValueError, RecursionError):
            continue
        value.pop("x-guidance", None)
        if own:
            yield Schema(grammar.param, ("%json",), value)
        elif found[1]:  # see `octavo.server.tool_grammar.call_rules`
            yield Schema(_parameters(int(found[1])), (), value)
        else:
            yield Schema(grammar.param, (), value)


def _children(schema: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """A schema and those within it. A parsed request's depth bounds the recursion."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for name, value in schema.items():
        children: Iterator[tuple[Path, Any]] = iter(())
        if name in _OF_NAMES and isinstance(value, dict):
            children = (((name, key), child) for key, child in value.items())
        elif name in _OF_SCHEMAS and isinstance(value, list):
            children = (((name, i), child) for i, child in enumerate(value))
        elif name in _OF_SCHEMA:
            children = iter([((name,), value)])
        for step, child in children:
            yield from _children(child, path + step)
