"""What generation is held to: which answers the grammars of tools and of thoughts allow."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.engine.parsers.choose import OutputFormat, make_parser
from octavo.engine.parsers.pieces import ParsedAnswer
from octavo.engine.tokenizer import Tokenizer
from octavo.engine.vocabulary import vocabulary
from octavo.errors import RequestError
from octavo.server.held import after_thoughts, either, grammar_of, rules_of
from octavo.server.tool_grammar import call_rules, moved, named_call, required_calls, strict_calls
from octavo.server.tool_use import ToolUse
from octavo.structured import StructuredOutputsParams
from octavo.weights.checkpoint import TokenizerFiles
from octavo.worker.grammar_store import GrammarStore
from support.paths import TINYSTORIES

MARKS = ("<think>", "</think>")
TREE = {
    "type": "object",
    "properties": {"left": {"$ref": "#"}, "value": {"$ref": "#/$defs/value"}},
    "required": ["value"],
    "additionalProperties": False,
    "$defs": {"value": {"type": "integer"}},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    files = TokenizerFiles(tokenizer_json=TINYSTORIES / "tokenizer.json", bos_token="<s>", eos_token="</s>")
    return Tokenizer.load(files)


class Allows:
    """Whether a grammar allows an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._store = GrammarStore()
        self._vocabulary = vocabulary(tokenizer, tokenizer.vocab_size, ())
        self._store.use_vocabulary(lambda: self._vocabulary)

    def __call__(self, asked: StructuredOutputsParams, answer: str) -> bool:
        return self.ids(asked, answer)

    def ids(self, asked: StructuredOutputsParams, *parts: str | int) -> bool:
        """The same for texts and ids of control tokens between them."""
        matcher = self._store.matcher(self._store.compile(asked.to_grammar()))
        assert matcher is not None
        token_ids = [i for part in parts for i in ([part] if isinstance(part, int) else self._vocabulary.encode(part))]
        return bool(matcher.try_consume_tokens(token_ids) == len(token_ids) and matcher.is_accepting())


@pytest.fixture(scope="module")
def allows(tokenizer: Tokenizer) -> Allows:
    return Allows(tokenizer)


def no_control(spelling: str) -> None:
    return None


def tool(name: str, parameters: Any = None, **more: Any) -> dict[str, Any]:
    function = {"name": name, **({} if parameters is None else {"parameters": parameters}), **more}
    return {"type": "function", "function": function}


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "array", "items": {"type": "integer"}},
        {"type": "string"},
        {"type": ["object", "null"]},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"type": "integer"}}},
        {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}},
    ],
)
def test_arguments_are_an_object(parameters: Any) -> None:
    use = ToolUse(tools=[tool("f"), tool("g", parameters)], choice="required")
    with pytest.raises(RequestError, match="the arguments of a call are one") as caught:
        required_calls(use)
    assert caught.value.param == "tools[1].function.parameters.type"


def test_references_of_arguments_to_an_object_or_to_nothing_pass_on(allows: Allows) -> None:
    model = {"$ref": "#/$defs/M", "$defs": {"M": {"type": "object", "properties": {}, "additionalProperties": False}}}
    assert allows(required_calls(ToolUse(tools=[tool("f", model)], choice="required")), json.dumps([call("f", {})]))
    for lost in ({"$ref": "#/$defs/M"}, {"$ref": "#"}, {"$ref": "#/$defs/M", "$defs": {"M": {"$ref": "#/$defs/M"}}}):
        required_calls(ToolUse(tools=[tool("f", lost)], choice="required"))


def call(name: str, parameters: Any) -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


@pytest.mark.parametrize(
    ("calls", "right"),
    [
        ([call("f", {"value": 1})], True),
        ([call("f", {"left": {"left": {"value": 2}, "value": 3}, "value": 1}), call("g", {})], True),
        ([call("f", {"left": {"value": "x"}, "value": 1})], False),
        ([call("f", {})], False),
        ([call("g", {"a": 1})], False),
        ([call("h", {})], False),
        ([{"name": "g"}], False),
        ([], False),
    ],
)
def test_required_calls(allows: Allows, calls: list[Any], right: bool) -> None:
    """References of each tool's schema find their targets, the schema itself included."""
    use = ToolUse(tools=[tool("f", TREE), tool("g")], choice="required")
    assert allows(required_calls(use), json.dumps(calls)) == right


def test_one_call_where_only_one_may_be(allows: Allows) -> None:
    use = ToolUse(tools=[tool("g")], choice="required", parallel=False)
    assert allows(required_calls(use), json.dumps([call("g", {})]))
    assert not allows(required_calls(use), json.dumps([call("g", {}), call("g", {})]))


def test_a_named_call_is_its_arguments(allows: Allows) -> None:
    use = ToolUse(tools=[tool("g"), tool("f", TREE)], choice="named", name="f")
    assert allows(named_call(use), '{"value": 5}') and not allows(named_call(use), "[]")
    assert named_call(use).param == "tools[1].function.parameters"
    open_schema = ToolUse(tools=[tool("f", {"properties": {}})], choice="named", name="f")
    assert allows(named_call(open_schema), '{"a": 1}') and not allows(named_call(open_schema), "1")


def test_strict_calls_among_free_text(allows: Allows) -> None:
    use = ToolUse(tools=[tool("f", TREE, strict=True), tool("g", {"type": "string"})])
    asked = strict_calls(use, OutputFormat(tool_parser="hermes"), no_control)
    good = '<tool_call>\n{"name": "f", "arguments": {"value": 1}}\n</tool_call>'
    for answer in ("", "No call.", f"Well. {good}", good + good):
        assert allows(asked, answer), answer
    for answer in ('<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>', "<tool_call>\n{}", "<tool_call>"):
        assert not allows(asked, answer), answer
    with pytest.raises(RequestError) as caught:
        strict_calls(use, OutputFormat(tool_parser="pythonic"), no_control)
    assert caught.value.param == "tools[0].function.strict"


@pytest.mark.parametrize(
    ("asked", "right", "wrong"),
    [
        (StructuredOutputsParams(json={"enum": ["a/b"]}), '"a/b"', '"b"'),
        (StructuredOutputsParams(json=True), "[1]", "x"),
        (StructuredOutputsParams(json_object=True), '{"a": "<think>"}', "1"),
        (StructuredOutputsParams(regex=r"a/\d\/?"), "a/1/", "b/1"),
        (StructuredOutputsParams(choice=("yes", "no")), "no", "maybe"),
    ],
)
def test_thoughts_are_free_and_what_follows_obeys(
    allows: Allows, asked: StructuredOutputsParams, right: str, wrong: str
) -> None:
    rules = rules_of(asked)
    assert rules is not None
    opened, free = (after_thoughts(rules, "x", MARKS, opened=opened) for opened in (True, False))
    for thoughts in ("</think>", "\nHm: {]\n</think>\n\n"):
        assert allows(opened, thoughts + right) and not allows(opened, thoughts + wrong)
        assert allows(free, "<think>" + thoughts + right) and not allows(free, "<think>" + thoughts + wrong)
    assert allows(free, right) and not allows(free, wrong) and not allows(opened, right)


def test_a_grammar_of_ones_own_has_no_rules_to_put_behind_thoughts() -> None:
    assert rules_of(StructuredOutputsParams(grammar='start: "a"')) is None


@pytest.mark.parametrize(
    ("parser", "calls"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": %s}\n</tool_call>'),
        ("llama3_json", '{"name": "f", "parameters": %s}'),
        ("granite", '<|tool_call|>[{"name": "f", "arguments": %s}, {"name": "g", "arguments": {}}]'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": %s}]'),
    ],
)
def test_an_answer_or_calls(allows: Allows, parser: str, calls: str) -> None:
    """With a format for the answer the model may still choose to call; either obeys. What is allowed is parsed."""
    use = ToolUse(tools=[tool("f", TREE), tool("g")])
    form = OutputFormat(tool_parser=parser)
    rules, call_lines = rules_of(StructuredOutputsParams(json={"enum": ["yes"]})), call_rules(use, form, no_control)
    assert rules is not None and call_lines is not None
    asked = grammar_of(either(rules, call_lines), "response_format")
    good = calls % '{"value": 1}'
    assert allows(asked, good) and allows(asked, '"yes"')
    for wrong in (calls % "{}", '"no"', good + '"yes"', ""):
        assert not allows(asked, wrong), wrong
    parsed = make_parser(form, tool_names=use.names, tool_choice="auto")
    assert parsed is not None
    answer = ParsedAnswer()
    answer.add(parsed.feed(good) + parsed.finish())
    assert answer.text is None and answer.tool_calls[0].arguments == '{"value": 1}'


def test_marks_that_are_control_tokens_are_held_as_such(allows: Allows) -> None:
    """`<s>` stands for a mark here. Text cannot spell it, so that free text is free."""
    use = ToolUse(tools=[tool("f", TREE, strict=True)])
    asked = strict_calls(use, OutputFormat(tool_parser="granite"), lambda spelling: 1)
    assert allows(asked, "Free [{ text.") and allows(asked, "")
    for arguments, right in (('{"value": 1}', True), ("{}", False)):
        assert allows.ids(asked, "So: ", 1, f'[{{"name": "f", "arguments": {arguments}}}]') == right


def test_only_references_into_the_schema_itself_move() -> None:
    schema = {"a": [{"$ref": "#/x"}, {"$ref": "https://example.com#"}], "properties": {"$ref": {"$ref": "#"}}}
    assert moved(schema, "#/$defs/t") == {
        "a": [{"$ref": "#/$defs/t/x"}, {"$ref": "https://example.com#"}],
        "properties": {"$ref": {"$ref": "#/$defs/t"}},
    }


@pytest.mark.parametrize("number", [10**400, float("inf")])
def test_numbers_that_no_float_holds_are_refused_where_the_request_has_them(number: Any) -> None:
    """Whatever the schema becomes a part of: a list of calls, one call, tags, or rules with the model's marks."""
    tools = [tool("f", {"type": "object"}), tool("g", {"properties": {"a": {"maximum": number}}}, strict=True)]
    hermes, mistral = OutputFormat(tool_parser="hermes"), OutputFormat(tool_parser="mistral")

    def control_id(spelling: str) -> int:
        return 5

    for make in (
        lambda: required_calls(ToolUse(tools=tools, choice="required")),
        lambda: named_call(ToolUse(tools=tools, choice="named", name="g")),
        lambda: strict_calls(ToolUse(tools=tools), hermes, no_control),
        lambda: strict_calls(ToolUse(tools=tools), hermes, control_id),
        lambda: call_rules(ToolUse(tools=tools), hermes, control_id),
        lambda: call_rules(ToolUse(tools=tools), mistral, control_id),
    ):
        with pytest.raises(RequestError) as caught:
            make()
        where = "tools[1].function.parameters"
        assert str(caught.value) == f"{where}.properties.a.maximum: must be a number between -1.8e308 and 1.8e308"
        assert caught.value.param == where
