"""What is said of grammars that cannot be: the place, the keyword, what may stand there; no word of the library's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.structured import JSON_SCHEMA, LARK, REGEX, Grammar
from octavo.worker.grammar_errors import BOUNDS, FORMATS, KEYWORDS, MAX_BOUND, TYPES
from octavo.worker.grammar_store import GrammarStore
from support.byte_vocabulary import byte_vocabulary

LIBRARY_WORDS = ("Unimplemented", "coerce_one_of", "Unsatisfiable", "Pointer", "registry", "tool0", "1(", "lexer", "^")

LOOK = "word boundaries, look-ahead and look-behind are not supported"


def refusal(kind: str, text: str, param: str = "P") -> str:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    with pytest.raises(RequestError) as caught:
        store.compile(Grammar(kind, text, param))
    message = str(caught.value)
    assert message.startswith(param) and len(message) < 400
    return message


@pytest.mark.parametrize(
    ("schema", "begin"),
    [
        ({"properties": {"user": {"items": [{"uniqueItems": True}]}}}, "P.properties.user.items[0].uniqueItems: is"),
        ({"allOf": [{"properties": {"a": {"not": {}}}}]}, "P.allOf[0].properties.a.not: is not supported; there are"),
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "P.oneOf: is supported only where"),
        ({"properties": {"a": {"type": "foo"}}}, 'P.properties.a.type: is "foo"; must be one of null, boolean'),
        ({"type": 5}, "P.type: must be one of"),
        ({"type": "string", "format": "regex"}, 'P.format: "regex" is not supported; there are date-time'),
        ({"items": {"$ref": "#/nope"}}, 'P.items.$ref: "#/nope" leads to nothing'),
        ({"$ref": "https://a.example/b"}, 'P.$ref: "https://a.example/b" is not fetched; put the schema into $defs'),
        ({"type": "string", "minLength": 5, "maxLength": 2}, "P.minLength: is 5, more than maxLength, 2"),
        ({"type": "string", "minLength": "a"}, "P.minLength: must be a whole number of at least 0"),
        ({"properties": {"a": {"enum": 5}}}, "P.properties.a.enum: must be a list"),
        ({"properties": 5}, "P.properties: must be an object"),
        ({"required": 5}, "P.required: must be a list"),
        ({"type": "number", "multipleOf": 0}, "P.multipleOf: must be a number above 0"),
        ({"items": {"multipleOf": -0.5}}, "P.items.multipleOf: must be a number above 0"),
        ({"multipleOf": "a"}, "P.multipleOf: must be a number above 0"),
        ({"items": {"type": "number", "minimum": "a"}}, "P.items.minimum: must be a number"),
        ({"minLength": -1}, "P.minLength: must be a whole number of at least 0"),
        ({"properties": {"a": {"minimum": 1}, "b": {"minimum": 10**30}}}, "P.properties.b.minimum: must be from -1e17"),
        ({"type": "integer", "exclusiveMaximum": -1e30}, "P.exclusiveMaximum: must be from -1e17 to 1e17"),
        ({"enum": []}, "P.enum: must not be empty"),
        ({"allOf": [{"anyOf": []}]}, "P.allOf[0].anyOf: must not be empty"),
        ({"type": []}, "P.type: must not be empty"),
        ({"oneOf": []}, "P.oneOf: must not be empty"),
        ({"properties": {"a": {"pattern": "(?=a)"}}}, "P.properties.a.pattern: is no usable regular expression: word"),
        ({"$ref": "#"}, "P: nothing can match it"),
    ],
)  # fmt: skip
def test_a_schema_is_told_where_it_is_wrong(schema: Any, begin: str) -> None:
    message = refusal(JSON_SCHEMA, json.dumps(schema))
    assert message.startswith(begin), message
    assert not any(word in message for word in LIBRARY_WORDS), message


def test_a_property_may_be_called_as_a_keyword() -> None:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    store.compile(Grammar(JSON_SCHEMA, '{"properties":{"multipleOf":{"const":-1}},"enum":[{"multipleOf":-1}]}'))


def test_bounds_are_held_as_far_as_is_said() -> None:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    for kind in ("integer", "number"):
        for keyword in BOUNDS:
            for bound in (MAX_BOUND, -MAX_BOUND):
                store.compile(Grammar(JSON_SCHEMA, json.dumps({"type": kind, keyword: bound})))


def test_a_tools_schema_is_named_as_the_request_has_it() -> None:
    schema = {
        "items": {"$ref": "#/$defs/tool1"},
        "$defs": {"tool1": {"properties": {"a": {"$ref": "#/$defs/tool1/no"}}}},
    }
    message = refusal(JSON_SCHEMA, json.dumps({"type": "array", **schema}), "tools")
    assert message == 'tools[1].function.parameters.properties.a.$ref: "#/no" leads to nothing'


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (REGEX, "(", "P: is no usable regular expression: unclosed group"),
        (REGEX, r"\bfoo", f"P: is no usable regular expression: {LOOK}"),
        (LARK, "start: %json {\"type\": \"foo\"}", f'P: type is "foo"; must be one of {", ".join(TYPES)}'),
        (LARK, "foo: \"a\"", 'P: there is no rule named "start" (in GBNF: "root")'),
        (LARK, "root ::= b", "P: is no usable grammar in GBNF: Rule 'b' not found"),
    ],
)  # fmt: skip
def test_other_grammars(kind: str, text: str, message: str) -> None:
    assert refusal(kind, text) == message


def test_a_grammar_of_the_callers_own_is_told_the_line() -> None:
    where = "structured_outputs.grammar"
    assert refusal(LARK, 'start: "a" b', where) == f'{where}: line 1, column 8: there is no rule or terminal named "b"'


def test_what_is_said_to_be_supported_is() -> None:
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    for name in FORMATS:
        store.compile(Grammar(JSON_SCHEMA, json.dumps({"type": "string", "format": name})))
    values: dict[str, Any] = dict.fromkeys(KEYWORDS, 1)
    values |= {"type": [*TYPES], "enum": [1], "anyOf": [{}], "allOf": [{}], "oneOf": [{}], "$ref": "#/$defs/a"}
    values |= {"$defs": {"a": {}}, "properties": {"a": {}}, "required": ["a"], "additionalProperties": {}, "items": {}}
    values |= {"patternProperties": {"a": {}}, "prefixItems": [{}], "pattern": "a", "format": "date"}
    for keyword in KEYWORDS:
        store.compile(Grammar(JSON_SCHEMA, json.dumps({keyword: values[keyword], "$defs": {"a": {}}})))
