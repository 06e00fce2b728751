"""Why a grammar is refused, in the words of whoever wrote it: the field, the keyword, and what may stand there.

llguidance says what is wrong in its own terms and without the place. The place is found again in the schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from octavo.structured import JSON_SCHEMA, REGEX, Grammar

if TYPE_CHECKING:
    import llguidance

MAX_MESSAGE_CHARS = 200

KEYWORDS = (
    *("type", "enum", "const", "anyOf", "allOf", "oneOf", "$ref", "$defs", "properties", "required"),
    *("additionalProperties", "patternProperties", "minProperties", "maxProperties", "items", "prefixItems"),
    *("minItems", "maxItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum"),
    *("exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
)
"""Of JSON schemas: those that are held."""
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
MAX_BOUND = 10**17
"""How far from 0 numbers can be bounded, in digits that are certain."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_OF_SCHEMAS = ("anyOf", "allOf", "oneOf", "prefixItems", "items")
_OF_SCHEMA = (
    *("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"),
    *("unevaluatedProperties", "unevaluatedItems"),
)
"""Keywords that hold schemas by name, in a list, and one."""

_JSON = "failed to compile JSON schema: "
_GAVE_UP = ("ParserTooComplex", "LexerTooComplex")
_TOO_MUCH = ("too many", "too big", "too deeply", "limit", "left-recursive")
_KINDS = {"array": "a list", "object": "an object", "string": "a text", "f64": "a number"}
_ABOVE_0 = "a number above 0"

Node = dict[str, Any]


def explanation(grammar: Grammar, matcher: llguidance.LLMatcher) -> str:
    """Why a grammar was not compiled: a message that begins with its field."""
    param = grammar.param
    if (general := _general(matcher)) is not None:
        return f"{param}: {general}"
    where, text = _position(_said(matcher))
    own = param.endswith("grammar")  # else the lines are not the caller's
    if text.startswith(_JSON):
        text = text.removeprefix(_JSON)
    elif grammar.kind == REGEX or text.startswith("invalid regex"):
        return f"{param}: {where if own else ''}{_regex(text)}"
    elif grammar.kind != JSON_SCHEMA:
        return f"{param}: {where if own else ''}{_notation(text)}"
    return _schema(param, msgspec.json.decode(grammar.text) if grammar.kind == JSON_SCHEMA else None, text)


def overlooked(grammar: Grammar) -> str | None:
    """What is wrong with a schema that llguidance compiles all the same; None where nothing is."""
    if grammar.kind == JSON_SCHEMA and "multipleOf" in grammar.text:
        for path, node in _nodes(msgspec.json.decode(grammar.text), ()):
            step = node.get("multipleOf", 1)
            if _is_number(step) and step <= 0:
                return f"{_place(grammar.param, path, 'multipleOf')}: must be {_ABOVE_0}"
    return None


def explained(matcher: llguidance.LLMatcher) -> str:
    """Why a matcher gave up on the way."""
    if gave_up(matcher):
        return "is too complex: the answer so far can be read in too many ways"
    return _general(matcher) or "the answer so far does not obey it"


def gave_up(matcher: llguidance.LLMatcher) -> bool:
    """Whether a limit ended the matcher, rather than a token that may not follow."""
    return matcher.stop_reason() in _GAVE_UP or any(sign in _said(matcher).lower() for sign in _TOO_MUCH)


def _said(matcher: llguidance.LLMatcher) -> str:
    return " ".join(matcher.get_error().replace("<non-verbose/>", "").split())


def _general(matcher: llguidance.LLMatcher) -> str | None:
    text = _said(matcher)
    if text in ("NoExtension", "NoExtensionBias"):
        return "nothing can match it"
    if gave_up(matcher):
        return f"is too complex ({text[:MAX_MESSAGE_CHARS]})"
    return None


def _position(text: str) -> tuple[str, str]:
    """(place, message) of an error that begins with line and column and ends with an excerpt."""
    found = re.match(r"(?:at )?(\d+)\((\d+)\): (.*?)(?: \d+ \| .*)?$", text)
    return ("", text) if found is None else (f"line {found[1]}, column {found[2]}: ", found[3])


def _regex(text: str) -> str:
    why = text.rpartition("error: ")[2]
    if "lookaround" in text or "look-around" in text:
        why = "word boundaries, look-ahead and look-behind are not supported"
    return f"is no usable regular expression: {why[:MAX_MESSAGE_CHARS]}"


def _notation(text: str) -> str:
    if found := re.match(r'unknown name: (".*?")', text):
        return f"there is no rule or terminal named {found[1]}"
    if text == "no start rule found":
        return 'there is no rule named "start" (in GBNF: "root")'
    if found := re.match(r"unknown special token: (\".*?\")", text):
        return f"the model has no control token {found[1]}"
    return f"is no usable grammar: {text[:MAX_MESSAGE_CHARS]}"


def _schema(param: str, schema: Any, text: str) -> str:
    general = f"{param}: cannot be held: {text[:MAX_MESSAGE_CHARS]}"
    for pattern, explain in _EXPLAINED:
        if found := re.match(pattern, text):
            test, keyword, why = explain(found)
            for path, node in _nodes(schema, ()):
                if keyword in node and test(node):
                    return f"{_place(param, path, keyword)}: {why}"
            general = f"{param}: {keyword} {why}"
    return general


Path = tuple[str | int, ...]
Explained = tuple[Callable[[Node], bool], str, str]
"""Which schema it is, by its keyword's value; the keyword; and what is wrong with it."""


def _nodes(schema: Any, path: Path) -> Iterator[tuple[Path, Node]]:
    """The schemas within a schema, itself first. A parsed request's depth bounds the recursion."""
    if not isinstance(schema, dict):
        return
    yield path, schema
    for name, value in schema.items():
        children: Iterator[tuple[Path, Any]] = iter(())
        if name in _OF_NAMES and isinstance(value, dict):
            children = (((name, key), child) for key, child in value.items())
        elif name in _OF_SCHEMAS and isinstance(value, list):
            children = (((name, i), child) for i, child in enumerate(value))
        elif name in _OF_SCHEMA:
            children = iter([((name,), value)])
        for step, child in children:
            yield from _nodes(child, path + step)


def _place(param: str, path: Path, keyword: str) -> str:
    if param == "tools" and path[:1] == ("$defs",):  # see `required_calls`
        param, path = f"tools[{str(path[1]).removeprefix('tool')}].function.parameters", path[2:]
    steps = [f"[{step}]" if isinstance(step, int) else f".{step[:64]}" for step in path]
    return f"{param}{''.join(steps)}.{keyword}"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)[:64]


def _unsupported(found: re.Match[str]) -> Explained:
    keyword = json.loads(found[1])[0]
    return lambda node: True, keyword, f"is not supported; there are {', '.join(KEYWORDS)}"


def _unknown_type(found: re.Match[str]) -> Explained:
    name = found[1]
    why = f"is {_shown(name)}; must be one of {', '.join(TYPES)}"
    return lambda node: name in (node["type"] if isinstance(node["type"], list) else [node["type"]]), "type", why


def _unknown_format(found: re.Match[str]) -> Explained:
    name = found[1]
    why = f"{_shown(name)} is not supported; there are {', '.join(FORMATS)}"
    return lambda node: node["format"] == name, "format", why


def _lost_pointer(found: re.Match[str]) -> Explained:
    pointer = found[1]
    shown = re.sub(r"^/\$defs/tool\d+", "", pointer)
    return lambda node: str(node["$ref"]).endswith(pointer), "$ref", f"{_shown('#' + shown)} leads to nothing"


def _elsewhere(found: re.Match[str]) -> Explained:
    address = found[1]
    why = f"{_shown(address)} is not fetched; put the schema into $defs"
    return lambda node: str(node["$ref"]).startswith(address), "$ref", why


def _one_of(found: re.Match[str]) -> Explained:
    why = "is supported only where no value can fit two of its schemas; anyOf may stand in its place"
    return lambda node: True, "oneOf", why


def _crossed(found: re.Match[str]) -> Explained:
    low, high = found[1], found[3]
    return lambda node: high in node, low, f"is {found[2]}, more than {high}, {found[4]}"


def _wrong_kind(found: re.Match[str]) -> Explained:
    keyword, kind = found["keyword"], found["kind"]
    kinds = {"array": list, "object": dict, "string": str}
    must = _ABOVE_0 if keyword == "multipleOf" else _KINDS.get(kind, "a whole number of at least 0")

    def fits(value: Any) -> bool:
        if kind in kinds:
            return isinstance(value, kinds[kind])
        if kind == "f64":
            return _is_number(value)
        return isinstance(value, int) and 0 <= value < 1 << 63

    return lambda node: not fits(node[keyword]), keyword, f"must be {must}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _empty(keyword: str) -> Callable[[re.Match[str]], Explained]:
    return lambda found: (lambda node: node[keyword] == [], keyword, "must not be empty")


def _far(keyword: str) -> Callable[[re.Match[str]], Explained]:
    why = f"must be from -{MAX_BOUND:.0e} to {MAX_BOUND:.0e}".replace("+", "")
    return lambda found: (lambda node: _is_number(node[keyword]) and abs(node[keyword]) > MAX_BOUND, keyword, why)


_EXPLAINED: tuple[tuple[str, Callable[[re.Match[str]], Explained]], ...] = (
    (r"Unimplemented keys: (\[.*\])", _unsupported),
    (r"Invalid type: (.*)", _unknown_type),
    (r"Unknown format: (.*)", _unknown_format),
    (r"Pointer '(.*)' does not exist", _lost_pointer),
    (r"Resource '(.*?)' is not present", _elsewhere),
    (r"oneOf constraints", _one_of),
    (r"Unsatisfiable schema: (\w+) \((.*?)\) is greater than (\w+) \((.*?)\)", _crossed),
    (r"Expected (positive |non-negative )?(?P<kind>\w+) for '(?P<keyword>\w+)'", _wrong_kind),
    (r"(?P<keyword>\$?\w+) must be an? (?P<kind>array|object|string)(?! or )", _wrong_kind),
    (
        r"type must be a string or array",
        lambda found: (
            lambda node: not isinstance(node["type"], str | list),
            "type",
            f"must be one of {', '.join(TYPES)}, or a list of them",
        ),
    ),
    (
        r"invalid multiple of",
        lambda found: (lambda node: not node["multipleOf"], "multipleOf", f"must be {_ABOVE_0}"),
    ),
    *((r"Unsatisfiable schema: anyOf is empty", _empty(keyword)) for keyword in ("anyOf", "type", "enum")),
    (r"Unsatisfiable schema: oneOf is empty", _empty("oneOf")),
    *((r"Failed to generate regex for \w+ range", _far(keyword)) for keyword in BOUNDS),
    (r"regex parse error: (.*)", lambda found: (lambda node: True, "pattern", _regex(found[1]))),
)
