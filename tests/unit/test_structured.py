"""What an answer may be made to obey, as data."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import RequestError, SamplingParams, StructuredOutputsParams
from octavo.structured import JSON_SCHEMA, LARK, MAX_CHOICES, MAX_GRAMMAR_CHARS, REGEX, TAGS

TAG = {"begin": "<call=f>", "schema": {"type": "null"}, "end": "</call>"}


@pytest.mark.parametrize(
    ("given", "kind", "text", "param"),
    [
        ({"json": {"b": 1, "a": 2}}, JSON_SCHEMA, '{"b":1,"a":2}', "structured_outputs.json"),
        ({"json": ' {"type" : "null"}'}, JSON_SCHEMA, '{"type":"null"}', "structured_outputs.json"),
        ({"json": True}, JSON_SCHEMA, "{}", "structured_outputs.json"),
        ({"json_object": True}, JSON_SCHEMA, '{"type":"object"}', "structured_outputs.json_object"),
        ({"regex": "a+"}, REGEX, "a+", "structured_outputs.regex"),
        ({"choice": ["é", 'q"']}, LARK, 'start: CHOICE\nCHOICE: "é" | "q\\""', "structured_outputs.choice"),
        ({"grammar": 'start: "a"'}, LARK, 'start: "a"', "structured_outputs.grammar"),
    ],
)
def test_each_kind_becomes_text(given: Any, kind: str, text: str, param: str) -> None:
    grammar = StructuredOutputsParams(**given).to_grammar()
    assert (grammar.kind, grammar.text, grammar.param) == (kind, text, param)
    assert StructuredOutputsParams(**given, param="tools").to_grammar().param == "tools"


def test_tags_are_told_apart_by_their_triggers() -> None:
    tags = {"structures": [TAG, {"begin": "[x]"}], "triggers": ["<call", "["], "type": "structural_tag"}
    grammar = StructuredOutputsParams(structural_tag=tags).to_grammar()
    assert grammar.kind == TAGS
    first = '{"trigger":"<call","begin":"<call=f>","schema":{"type":"null"},"end":"</call>"}'
    assert grammar.text == f'[{first},{{"trigger":"[","begin":"[x]","schema":{{}},"end":""}}]'


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "structured_outputs"),
    ({"regex": "a", "json": True}, "structured_outputs"),
    ({"json": False}, "structured_outputs.json"),
    ({"json": ""}, "structured_outputs.json"),
    ({"json": "{"}, "structured_outputs.json"),
    ({"json": "[1]"}, "structured_outputs.json"),
    ({"json": {"x": float("nan")} | {"y": object()}}, "structured_outputs.json"),
    ({"json": {"const": "\ud800"}}, "structured_outputs.json"),
    ({"regex": ""}, "structured_outputs.regex"),
    ({"regex": " "}, "structured_outputs.regex"),
    ({"regex": "\ud800"}, "structured_outputs.regex"),
    ({"regex": "a" * (MAX_GRAMMAR_CHARS + 1)}, "structured_outputs.regex"),
    ({"grammar": ""}, "structured_outputs.grammar"),
    ({"choice": []}, "structured_outputs.choice"),
    ({"choice": [""]}, "structured_outputs.choice[0]"),
    ({"choice": ["a", 5]}, "structured_outputs.choice[1]"),
    ({"choice": ["a"] * (MAX_CHOICES + 1)}, "structured_outputs.choice"),
    ({"json_object": False}, "structured_outputs.json_object"),
    ({"structural_tag": "["}, "structured_outputs.structural_tag"),
    ({"structural_tag": {"structures": []}}, "structured_outputs.structural_tag.structures"),
    ({"structural_tag": {"structures": [TAG]}}, "structured_outputs.structural_tag.triggers"),
    ({"structural_tag": {"structures": [5], "triggers": ["<"]}}, "structured_outputs.structural_tag.structures[0]"),
    (
        {"structural_tag": {"structures": [TAG], "triggers": ["["]}},
        "structured_outputs.structural_tag.structures[0].begin",
    ),
    (
        {"structural_tag": {"structures": [{**TAG, "schema": 5}], "triggers": ["<"]}},
        "structured_outputs.structural_tag.structures[0].schema",
    ),
]


@pytest.mark.parametrize(("given", "param"), BAD, ids=lambda value: str(value)[:40])
def test_what_can_be_no_grammar_is_refused_by_name(given: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(**given)
    assert caught.value.param == param
    assert param in str(caught.value) and len(str(caught.value)) < 300


def test_a_search_obeys_no_grammar() -> None:
    with pytest.raises(RequestError, match="with beam_width") as caught:
        SamplingParams(beam_width=2, structured_outputs=StructuredOutputsParams(regex="a"))
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("ids", [(), (-1,), (True,), ("1",)])
def test_allowed_tokens_are_ids(ids: Any) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(allowed_token_ids=ids)
    assert caught.value.param == "allowed_token_ids"


def test_bad_words_are_texts() -> None:
    assert SamplingParams(bad_words="one").bad_words == ("one",)  # type: ignore[arg-type]
    with pytest.raises(RequestError) as caught:
        SamplingParams(bad_words=("a", ""))
    assert caught.value.param == "bad_words"


@pytest.mark.parametrize("number", [10**400, -(10**400), float("inf"), float("nan")])
def test_numbers_that_no_float_holds_are_refused_by_place(number: Any) -> None:
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(json={"properties": {"a": {"enum": [None, 1, number]}}})
    where = "structured_outputs.json.properties.a.enum[2]"
    assert str(caught.value) == f"{where}: must be a number between -1.8e308 and 1.8e308"
    StructuredOutputsParams(json={"enum": [None, 10**300, "9" * 400]})
    tag = {"begin": "<a>", "schema": {"maximum": number}, "end": "</a>"}
    with pytest.raises(RequestError) as caught:
        StructuredOutputsParams(structural_tag={"triggers": ["<a>"], "structures": [tag]})
    where = "structured_outputs.structural_tag.structures[0].schema.maximum"
    assert str(caught.value).startswith(f"{where}: must be a number")
