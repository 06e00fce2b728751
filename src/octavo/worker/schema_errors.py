"""Why a JSON schema is refused: what llguidance says of it, at its place in the request and in a schema's own terms."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from octavo.errors import RequestError
from octavo.structured import Grammar
from octavo.worker.grammar_multiples import ABOVE_0, digits_of
from octavo.worker.grammar_schemas import Node, Schema, place, schemas_of

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
MAX_LENGTH = (1 << 32) - 1
"""Characters that minLength and maxLength can ask for."""
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
FORMATS = ("date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_OF_TEXTS = ("pattern", "format", "enum", "const", "minLength", "maxLength")
"""Keywords that texts obey, or that are texts."""
_NO_TEXT = "allows no text that the other keywords beside it allow"
_NO_COMMON = (
    "parts of it that hold together (type, const, enum, pattern, format, allOf, anyOf, $ref) have no value in common"
)
_KINDS = {"array": "a list", "object": "an object", "string": "a text", "f64": "a number"}


def schema_refusal(grammar: Grammar, text: str) -> RequestError | None:
    """The error for a message of llguidance's, at its place if that is found again; None for an unknown message."""
    schemas = schemas_of(grammar)
    field = schemas[0].field if len(schemas) == 1 else grammar.param
    if text.startswith("schema must be an object or boolean"):
        return next(_no_schemas(schemas), None)
    general = None
    for pattern, explain in _EXPLAINED:
        if found := re.match(pattern, text):
            test, keyword, why = explain(found)
            if not keyword:
                return refused(field, why)
            for schema in schemas:
                for path, node in schema.nodes():
                    if keyword in node and _passes(test, node):
                        return RequestError(schema.field, message=f"{place(schema.field, path, keyword)}: {why}")
            general = refused(field, f"{keyword} {why}")
    return general


def _passes(test: Callable[[Node], bool], node: Node) -> bool:
    try:
        return test(node)
    except (TypeError, ValueError, AttributeError):  # the keyword holds something else here
        return False


def _no_schemas(schemas: list[Schema]) -> Iterator[RequestError]:
    for schema in schemas:
        for path, child in schema.children():
            if not isinstance(child, dict | bool):
                where = place(schema.field, path[:-1], path[-1])
                yield RequestError(schema.field, message=f"{where}: must be a schema: an object, true or false")


def refused(field: str, why: str) -> RequestError:
    """An error whose message begins with the field."""
    return RequestError(field, message=f"{field}: {why}")


def bad_regex(text: str) -> str:
    """What is wrong with a regular expression."""
    why = text.rpartition("error: ")[2]
    if "lookaround" in text or "look-around" in text:
        why = "word boundaries, look-ahead and look-behind are not supported"
    return f"is no usable regular expression: {why[:MAX_MESSAGE_CHARS]}"


Explained = tuple[Callable[[Node], bool], str, str]
"""Which schema it is, by its keyword's value; the keyword; and what is wrong with it."""


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


def _elsewhere(keyword: str) -> Callable[[re.Match[str]], Explained]:
    def explain(found: re.Match[str]) -> Explained:
        address = found[1].removeprefix("json-schema:///")
        why = f"{_shown(address)} is not fetched; put the schema into $defs"
        return lambda node: address.endswith(str(node[keyword]).partition("#")[0]), keyword, why

    return explain


def _one_of(found: re.Match[str]) -> Explained:
    why = "is supported only where no value can fit two of its schemas; anyOf may stand in its place"
    return lambda node: True, "oneOf", why


def _crossed(found: re.Match[str]) -> Explained:
    low, high = found[1], found[3]
    return lambda node: high in node, low, f"is {found[2]}, more than {high}, {found[4]}"


def _wrong_kind(found: re.Match[str]) -> Explained:
    keyword, kind = found["keyword"], found["kind"]
    kinds = {"array": list, "object": dict, "string": str}
    must = ABOVE_0 if keyword == "multipleOf" else _KINDS.get(kind, "a whole number of at least 0")

    def fits(value: Any) -> bool:
        if kind in kinds:
            return isinstance(value, kinds[kind])
        if kind == "f64":
            return _is_number(value)
        return isinstance(value, int) and 0 <= value < 1 << 63

    return lambda node: not fits(node[keyword]), keyword, f"must be {must}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _fixed(keyword: str, why: str, test: Callable[[Node], bool] = lambda node: True) -> Callable[[Any], Explained]:
    return lambda found: (test, keyword, why)


def _lost_anchor(found: re.Match[str]) -> Explained:
    anchor = f"#{found[1]}"
    return lambda node: str(node["$ref"]).endswith(anchor), "$ref", f"{_shown(anchor)} leads to nothing"


def _no_address(keyword: str) -> Callable[[re.Match[str]], Explained]:
    return lambda found: (lambda node: node[keyword] == found[1], keyword, f"{_shown(found[1])} is no address")


def _circular(found: re.Match[str]) -> Explained:
    why = "leads back to itself, which is not supported beside other keywords"
    return lambda node: found[1].endswith(str(node["$ref"])), "$ref", why


def _not_disjoint(found: re.Match[str]) -> Explained:
    why = f"holds patterns that can match the same name, which is not supported: {_shown(found[1])}, {_shown(found[2])}"
    return lambda node: found[1] in node["patternProperties"], "patternProperties", why


def _no_property(found: re.Match[str]) -> Explained:
    why = f"names {_shown(found[1])}, for which the schema has no value"
    return lambda node: found[1] in node["required"], "required", why


def _no_prefix_item(found: re.Match[str]) -> Explained:
    index = int(found[1])
    why = f"has no value for item {index}, and minItems is {found[2]}"
    return lambda node: len(node["prefixItems"]) > index and "minItems" in node, "prefixItems", why


def _no_whole_number(keyword: str) -> Callable[[re.Match[str]], Explained]:
    return lambda found: (
        lambda node: _is_number(node[keyword]) and str(node[keyword]) in (found[1], found[2], f"{found[1]}.0"),
        keyword,
        f"there is no whole number from {found[1]} to {found[2]}",
    )


def _no_multiple(found: re.Match[str]) -> Explained:
    why = f"there is no multiple of {found[1]} within the bounds"
    return (
        lambda node: _is_number(node["multipleOf"]) and float(node["multipleOf"]) == float(found[1]),
        "multipleOf",
        why,
    )


def _many_digits(found: re.Match[str]) -> Explained:
    return (
        lambda node: _is_number(node["multipleOf"]) and found[1].startswith(digits_of(node["multipleOf"])),
        "multipleOf",
        "has more digits than can be held",
    )


def _nothing_between(found: re.Match[str]) -> Explained:
    low, high = found[1], found[3]
    return lambda node: high in node, low, f"is {found[2]}, as is {high}: nothing lies between"


def _wrong_length(keyword: str) -> Callable[[re.Match[str]], Explained]:
    def explain(found: re.Match[str]) -> Explained:
        text = json.loads(found[1])
        why = f"holds {_shown(text)}, which minLength or maxLength rules out"
        return (
            lambda node: text in (node[keyword] if isinstance(node[keyword], list) else [node[keyword]]),
            keyword,
            why,
        )

    return explain


def _bad_pattern(keyword: str) -> Callable[[re.Match[str]], Explained]:
    def explain(found: re.Match[str]) -> Explained:
        said = found[1]

        def test(node: Node) -> bool:
            patterns = [node[keyword]] if isinstance(node[keyword], str) else list(node[keyword])
            return any(f" {' '.join(pattern.split())} " in f" {said} " for pattern in patterns)

        return test, keyword, bad_regex(said)

    return explain


def _looks_around(keyword: str) -> Callable[[re.Match[str]], Explained]:
    def explain(found: re.Match[str]) -> Explained:
        return lambda node: node[keyword] == found[1] or found[1] in node[keyword], keyword, bad_regex("lookaround")

    return explain


def _empty(keyword: str) -> Callable[[re.Match[str]], Explained]:
    return lambda found: (lambda node: node[keyword] == [], keyword, "must not be empty")


def _is_type(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(name, str) for name in value))


def _of_texts(node: Node) -> int:
    return sum(keyword in node for keyword in _OF_TEXTS)


def _is_tiny(keyword: str) -> Callable[[Node], bool]:
    return lambda node: _is_number(node[keyword]) and 0 < abs(node[keyword]) < 1e-17


def _is_huge(keyword: str) -> Callable[[Node], bool]:
    return lambda node: _is_number(node[keyword]) and node[keyword] > MAX_LENGTH


def _far(keyword: str) -> Callable[[re.Match[str]], Explained]:
    why = f"must be from -{MAX_BOUND:.0e} to {MAX_BOUND:.0e}".replace("+", "")
    return lambda found: (lambda node: _is_number(node[keyword]) and abs(node[keyword]) > MAX_BOUND, keyword, why)


_EXPLAINED: tuple[tuple[str, Callable[[re.Match[str]], Explained]], ...] = (
    (r"Unimplemented keys: (\[.*\])", _unsupported),
    (r"Invalid type: ?(.*)", _unknown_type),
    (r"Unknown format: (.*)", _unknown_format),
    (r"Pointer '(.*)' does not exist", _lost_pointer),
    *((r"Resource '(.*?)' is not present", _elsewhere(keyword)) for keyword in ("$ref", "$schema")),
    (r"oneOf constraints", _one_of),
    (r"Unsatisfiable schema: (\w+) \((.*?)\) is equal to (\w+) \(", _nothing_between),
    (r"Unsatisfiable schema: required property '(.*)' is unsatisfiable", _no_property),
    (r"Unsatisfiable schema: prefixItems\[(\d+)\] is unsatisfiable but minItems is (\d+)", _no_prefix_item),
    (
        r"Unsatisfiable schema: required item is unsatisfiable",
        _fixed("minItems", "asks for an item for which the schema has no value", lambda node: node["minItems"] != 0),
    ),
    *(
        (r"Unsatisfiable schema: integer interval \[(.*?), (.*?)\] contains", _no_whole_number(keyword))
        for keyword in BOUNDS
    ),
    (
        r"Unsatisfiable schema: integer interval \[(.*?), (.*?)\] contains",
        lambda found: (
            lambda node: True,
            "",
            f"nothing can match it: no whole number is from {found[1]} to {found[2]}",
        ),
    ),
    (r"Unsatisfiable schema: range .* does not contain a multiple of ([\d.e-]+)", _no_multiple),
    (
        r"Unsatisfiable schema: minProperties > maxProperties",
        _fixed("minProperties", "is more than maxProperties", lambda node: "maxProperties" in node),
    ),
    (
        r"Unsatisfiable schema: required > maxProperties",
        _fixed("maxProperties", "is less than the number of required properties", lambda node: "required" in node),
    ),
    *(
        (r"min/maxProperties only supported", _fixed(keyword, "is supported only where all properties are required"))
        for keyword in ("minProperties", "maxProperties")
    ),
    *(
        (r"Unsatisfiable schema: Constant (\".*\") doesn't match length", _wrong_length(keyword))
        for keyword in ("enum", "const")
    ),
    *(
        (r"Unsatisfiable schema: Regex is empty", _fixed(keyword, _NO_TEXT, lambda node: _of_texts(node) > 1))
        for keyword in _OF_TEXTS
    ),
    (r"Unsatisfiable schema: Regex is empty", _fixed("", f"nothing can match it: {_NO_COMMON}")),
    (r"Unsatisfiable schema: incompatible", _fixed("", f"nothing can match it: {_NO_COMMON}")),
    (r"Unsatisfiable schema: schema is false", _fixed("", "nothing can match it: it is false where a value must be")),
    (r"unknown field |invalid type: ", _fixed("x-guidance", "is not supported")),
    (r"Value for 'multipleOf' has too many digits: (\d+)", _many_digits),
    (r"Anchor '(.*)' does not exist", _lost_anchor),
    (r"Failed to parse array index '.*' in pointer '(.*)'", _lost_pointer),
    *((r"Invalid URI reference '(.*?)'", _no_address(keyword)) for keyword in ("$ref", "$id", "$schema")),
    (r"circular references with sibling keys are not supported: (\S+)", _circular),
    (r"patternProperty regexes /(.*)/ and /(.*)/ are not disjoint", _not_disjoint),
    *(
        (r"lookarounds not supported yet; \w+ in regex /(.*)/", _looks_around(keyword))
        for keyword in ("patternProperties", "pattern")
    ),
    (
        r"type must be an? (?:string|array)",
        _fixed(
            "type", f"must be one of {', '.join(TYPES)}, or a list of them", lambda node: not _is_type(node["type"])
        ),
    ),
    (
        r"Expected string for 'required' item",
        _fixed(
            "required", "must be a list of texts", lambda node: any(not isinstance(x, str) for x in node["required"])
        ),
    ),
    (r"Unsatisfiable schema: (\w+) \((.*?)\) is greater than (\w+) \((.*?)\)", _crossed),
    (r"Expected (positive |non-negative )?(?P<kind>\w+) for '(?P<keyword>\w+)'", _wrong_kind),
    (r"(?P<keyword>\$?\w+) must be an? (?P<kind>array|object|string)(?! or )", _wrong_kind),
    (
        r"invalid multiple of",
        lambda found: (lambda node: not node["multipleOf"], "multipleOf", f"must be {ABOVE_0}"),
    ),
    *((r"Unsatisfiable schema: anyOf is empty", _empty(keyword)) for keyword in ("anyOf", "type", "enum")),
    (r"Unsatisfiable schema: oneOf is empty", _empty("oneOf")),
    *((r"Failed to generate regex for \w+ range", _far(keyword)) for keyword in BOUNDS),
    *(
        (
            r"regex parse error: .*nested parentheses",
            _fixed(keyword, "has more digits than can be held", _is_tiny(keyword)),
        )
        for keyword in BOUNDS
    ),
    *(
        (r"regex parse error: .*decimal literal", _fixed(keyword, f"must be at most {MAX_LENGTH}", _is_huge(keyword)))
        for keyword in ("minLength", "maxLength")
    ),
    *((r"regex parse error: (.*)", _bad_pattern(keyword)) for keyword in ("patternProperties", "pattern")),
)
