"""What is said of grammars that cannot be: the place, the keyword, what may stand there; no word of the library's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.errors import RequestError
from octavo.structured import JSON_OPTIONS, JSON_SCHEMA, LARK, REGEX, TAGS, Grammar
from octavo.worker.grammar_store import GrammarStore
from octavo.worker.schema_errors import BOUNDS, FORMATS, KEYWORDS, MAX_BOUND, TYPES
from support.byte_vocabulary import byte_vocabulary

LIBRARY_WORDS = ("Unimplemented", "coerce_one_of", "Unsatisfiable", "Pointer", "registry", "tool0", "1(", "lexer", "^")
LIBRARY_WORDS += ("cannot be held", "satisfiable", "And (", "json-schema:///", "Regex", "too complex")

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
        ({"properties": {"a": False}, "required": ["a"], "type": "object"}, 'P.required: names "a", for which'),
        ({"type": "object", "required": ["b"], "additionalProperties": False}, 'P.required: names "b", for which'),
        ({"type": "array", "items": False, "minItems": 1}, "P.minItems: asks for an item for which the schema has no"),
        ({"type": "array", "prefixItems": [{}, False], "minItems": 2}, "P.prefixItems: has no value for item 1"),
        ({"allOf": [{"type": "string"}, {"type": "integer"}]}, "P: nothing can match it: parts of it"),
        ({"allOf": [{"const": True}, {"const": False}]}, "P: nothing can match it: parts of it"),
        ({"allOf": [{"const": "a"}, {"const": "b"}]}, "P: nothing can match it: parts of it"),
        ({"anyOf": [{"const": 1}], "type": "string"}, "P: nothing can match it: parts of it"),
        ({"anyOf": [False]}, "P: nothing can match it: it is false where a value must be"),
        ({"type": "integer", "minimum": 0.2, "maximum": 0.8}, "P.minimum: there is no whole number from 0.2 to 0.8"),
        ({"type": "integer", "const": 3.5}, "P: nothing can match it: no whole number is from 3.5 to 3.5"),
        ({"type": "integer", "multipleOf": 7, "minimum": 1, "maximum": 6}, "P.multipleOf: there is no multiple of 7"),
        ({"type": "number", "minimum": 1, "exclusiveMaximum": 1}, "P.minimum: is 1, as is exclusiveMaximum"),
        ({"type": "object", "minProperties": 3, "maxProperties": 2}, "P.minProperties: is more than maxProperties"),
        ({"type": "object", "required": ["a", "b"], "maxProperties": 1}, "P.maxProperties: is less than the number"),
        ({"type": "object", "properties": {"a": {}}, "maxProperties": 1}, "P.maxProperties: is supported only"),
        ({"type": "string", "pattern": "^a$", "minLength": 2}, "P.pattern: allows no text that the other keywords"),
        ({"items": {"format": "date", "type": "string", "maxLength": 2}, "minItems": 1, "type": "array"}, "P.minItems"),
        ({"enum": ["a"], "minLength": 2}, 'P.enum: holds "a", which minLength or maxLength rules out'),
        ({"const": "abc", "maxLength": 2}, 'P.const: holds "abc", which minLength or maxLength rules out'),
        ({"multipleOf": 0.12345}, "P.multipleOf: has more digits than can be held"),
        ({"multipleOf": 1e15}, "P.multipleOf: has more digits than can be held"),
        ({"properties": {"a": 5}}, "P.properties.a: must be a schema: an object, true or false"),
        ({"prefixItems": [{}, "x"]}, "P.prefixItems[1]: must be a schema: an object, true or false"),
        ({"additionalProperties": 5}, "P.additionalProperties: must be a schema: an object, true or false"),
        ({"$ref": "#/%zz"}, 'P.$ref: "#/%zz" is no address'),
        ({"$id": "http://[/"}, 'P.$id: "http://[/" is no address'),
        ({"$ref": "#foo"}, 'P.$ref: "#foo" leads to nothing'),
        ({"$ref": "#/anyOf/x", "anyOf": [{}]}, 'P.$ref: "#/anyOf/x" leads to nothing'),
        ({"$ref": "foo"}, 'P.$ref: "foo" is not fetched; put the schema into $defs'),
        ({"$schema": "foo"}, 'P.$schema: "foo" is not fetched'),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a", "type": "string"}}}, "P.$ref: leads back"),
        ({"patternProperties": {"a": {}, "b": {}}}, "P.patternProperties: holds patterns that can match the same name"),
        ({"patternProperties": {"(": {}}}, "P.patternProperties: is no usable regular expression: unclosed group"),
        ({"patternProperties": {r"\bfoo": {}}}, "P.patternProperties: is no usable regular expression: word"),
        ({"properties": {"a": {"pattern": "a"}, "b": {"pattern": "["}}}, "P.properties.b.pattern: is no usable"),
        ({"pattern": r"\bfoo"}, "P.pattern: is no usable regular expression: word"),
        ({"type": "string", "minLength": 1 << 40}, "P.minLength: must be at most 4294967295"),
        ({"type": "number", "exclusiveMinimum": 1e-300}, "P.exclusiveMinimum: has more digits than can be held"),
        ({"required": [1]}, "P.required: must be a list of texts"),
        ({"type": ["string", 5]}, "P.type: must be one of null, boolean"),
        ({"type": ""}, 'P.type: is ""; must be one of null, boolean'),
        ({"x-guidance": {"foo": 1}}, "P.x-guidance: is not supported"),
        ({"properties": {"a": {"required": 5}}, "required": ["b"], "additionalProperties": False}, "P."),
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
        (LARK, "start: %json {\"type\": \"foo\"}", f'P.type: is "foo"; must be one of {", ".join(TYPES)}'),
        (LARK, "foo: \"a\"", 'P: there is no rule named "start" (in GBNF: "root")'),
        (LARK, "root ::= b", "P: is no usable grammar in GBNF: Rule 'b' not found"),
    ],
)  # fmt: skip
def test_other_grammars(kind: str, text: str, message: str) -> None:
    assert refusal(kind, text) == message


WRONG: list[tuple[Any, str]] = [
    ({"type": "foo"}, '.properties.a.type: is "foo"; must be one of'),
    ({"multipleOf": -2}, ".properties.a.multipleOf: must be a number above 0"),
    ({"multipleOf": 10**300}, ".properties.a.multipleOf: has more digits than can be held"),
    ({"type": "integer", "multipleOf": 1_234_567_890}, ".properties.a.multipleOf: 1234567890 has too many remainders"),
    ({"minLength": 2, "maxLength": 1, "type": "string"}, ".required: names"),
]


@pytest.mark.parametrize(("part", "said"), WRONG)
def test_a_schema_within_a_grammar_is_told_the_same(part: Any, said: str) -> None:
    """Among tags, in the rules of calls, after thoughts, and in a grammar of the caller's own."""
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"]}
    good, bad = {"type": "object"}, json.dumps(schema)
    tag, held = "structured_outputs.structural_tag", json.dumps({**schema, "x-guidance": JSON_OPTIONS})
    tags = [{"trigger": "<a>", "begin": "<a>", "schema": one, "end": "</a>"} for one in (good, schema)]
    rules = (
        f'start: call\ncall: call0 | call1\ncall0: "%json {{" %json {json.dumps(good)} "}}"\ncall1: "b" %json {held}'
    )
    for kind, text, param, field in (
        (JSON_SCHEMA, bad, "response_format.json_schema.schema", "response_format.json_schema.schema"),
        (TAGS, json.dumps(tags), tag, f"{tag}.structures[1].schema"),
        (TAGS, json.dumps(tags), "tools", "tools[1].function.parameters"),
        (LARK, rules, "tools", "tools[1].function.parameters"),
        (LARK, rules, "response_format.json_schema.schema", "tools[1].function.parameters"),
        (LARK, f"start: thoughts answer\nthoughts: /a*/\nanswer: %json {held}", "response_format.json_schema.schema",
         "response_format.json_schema.schema"),
        (LARK, f'start: %json {json.dumps(good)}\n  | "a" %json {bad}', "structured_outputs.grammar",
         "structured_outputs.grammar.%json"),
    ):  # fmt: skip
        store = GrammarStore()
        store.use_vocabulary(byte_vocabulary)
        with pytest.raises(RequestError) as caught:
            store.compile(Grammar(kind, text, param))
        assert str(caught.value).startswith(field + said), (kind, param, str(caught.value))
        assert field.startswith(str(caught.value.param))


@pytest.mark.parametrize(
    ("schema", "is_held"),
    [
        ({"type": "integer", "multipleOf": 65536}, True),
        ({"type": "integer", "multipleOf": 86_400}, True),
        ({"type": "integer", "multipleOf": 70_000_000}, True),
        ({"type": "integer", "multipleOf": 86_400_000}, False),
        ({"type": "number", "multipleOf": 1e-9}, True),
        ({"type": "integer", "multipleOf": 1_000_003}, False),
        ({"type": "number", "multipleOf": 100.0003}, False),
        ({"type": "integer", "allOf": [{"multipleOf": n} for n in (2, 3, 4, 60, 0.5)]}, True),
        ({"type": "integer", "allOf": [{"multipleOf": n} for n in (101, 103, 107)]}, False),
        ({"properties": {str(n): {"multipleOf": n} for n in (101, 103, 107)}}, True),
        ({"properties": {str(n): {"multipleOf": n} for n in range(10_007, 10_107, 2)}}, False),
        ({"$ref": "#/default", "default": {"multipleOf": 1_000_003}}, False),
    ],
)
def test_multiples_are_held_as_far_as_their_work_is_bounded(schema: Any, is_held: bool) -> None:
    """The compiler has no limit there: 1,000,003 takes it minutes, and some numbers all memory."""
    grammar = Grammar(JSON_SCHEMA, json.dumps(schema), "P")
    store = GrammarStore()
    store.use_vocabulary(byte_vocabulary)
    if is_held:
        store.compile(grammar)
        return
    with pytest.raises(RequestError, match="has too many remainders to hold"):
        store.compile(grammar)


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
