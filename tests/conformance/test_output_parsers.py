"""Every parser of answers: what is in the samples, and the same however the text is cut."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable

import pytest

from conformance.parser_samples import SAMPLES, TOOLS, Sample
from octavo.engine.parsers.choose import (
    REASONING_PARSER_NAMES,
    TOOL_PARSER_NAMES,
    OutputFormat,
    make_parser,
)
from octavo.engine.parsers.pieces import CallArguments, CallStart, OutputParser, ParsedAnswer, Piece, Reasoning, Text

BY_NAME = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)


def ids() -> Callable[[], str]:
    """Ids that are the same in each run."""
    counter = itertools.count()
    return lambda: f"id{next(counter)}"


def parser_for(sample: Sample) -> OutputParser:
    names = sample.parser.split("+")
    forced = {"(required)": "required", "(named)": "named"}.get(sample.parser)
    if forced == "named":
        parser = make_parser(
            OutputFormat(), tool_names=frozenset({"get_weather"}), tool_choice="named", forced=True, new_id=ids()
        )
    elif forced == "required":
        parser = make_parser(OutputFormat(), tool_names=TOOLS, tool_choice="required", forced=True, new_id=ids())
    else:
        tools = next((name for name in names if name in TOOL_PARSER_NAMES), None)
        reasoning = next((name for name in names if name in REASONING_PARSER_NAMES), None)
        parser = make_parser(
            OutputFormat(tool_parser=tools, reasoning_parser=reasoning),
            tool_names=TOOLS,
            tool_choice="none" if tools is None else "auto",
            prompt_end="<|Assistant|><think>\n" if sample.opened else "<|Assistant|>",
            new_id=ids(),
        )
    assert parser is not None
    return parser


def pieces_of(sample: Sample, cuts: Iterable[str]) -> list[Piece]:
    parser = parser_for(sample)
    return [piece for cut in cuts for piece in parser.feed(cut)] + parser.finish()


def parse(sample: Sample, cuts: Iterable[str]) -> ParsedAnswer:
    answer = ParsedAnswer()
    answer.add(pieces_of(sample, cuts))
    return answer


def cut_at(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(places), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


@BY_NAME
def test_what_is_in_a_sample(sample: Sample) -> None:
    answer = parse(sample, [sample.output])
    assert [(call.name, call.arguments) for call in answer.tool_calls] == sample.calls
    assert answer.text == sample.text
    assert answer.reasoning == sample.reasoning
    for call in answer.tool_calls:
        assert sample.broken or isinstance(json.loads(call.arguments), dict)


def test_every_registered_parser_has_samples() -> None:
    tried = {name for sample in SAMPLES for name in sample.parser.split("+")}
    aliases = {"llama4_json", "gpt_oss"}  # the same classes as llama3_json and openai
    assert {*TOOL_PARSER_NAMES, *REASONING_PARSER_NAMES} - aliases <= tried


@BY_NAME
def test_any_cut_gives_the_same_answer(sample: Sample) -> None:
    """All cuts in two, single characters, and random ones: ids and order included."""
    whole = parse(sample, [sample.output]).parts
    for place in range(len(sample.output) + 1):
        assert parse(sample, cut_at(sample.output, [place])).parts == whole, place
    assert parse(sample, sample.output).parts == whole
    chance = random.Random(1)
    for _ in range(20):
        places = chance.sample(range(len(sample.output)), chance.randint(0, min(12, len(sample.output))))
        assert parse(sample, cut_at(sample.output, places)).parts == whole, places


@BY_NAME
def test_an_answer_that_breaks_off_loses_nothing(sample: Sample) -> None:
    """Cut short anywhere, an answer is the beginning of the whole one, and what was no call yet is text, if may be."""
    whole = parse(sample, [sample.output])
    for end in range(len(sample.output)):
        text = sample.output[:end]
        answer = parse(sample, [text])
        assert answer.parts == parse(sample, text).parts
        for call, full in zip(answer.tool_calls, whole.tool_calls, strict=False):
            assert (call.name, call.id) == (full.name, full.id)
            certain = call.arguments if "harmony" not in sample.name else call.arguments.partition("<")[0]
            assert full.arguments.startswith(certain)
        if sample.parser in ("(required)", "(named)"):  # held to be calls and nothing else
            assert answer.text is None or (not text.strip() and sample.parser == "(named)")
        elif not answer.tool_calls and sample.reasoning is None and "think" not in sample.output:
            assert (answer.text or "") == text or "harmony" in sample.name


@BY_NAME
def test_pieces_are_well_formed(sample: Sample) -> None:
    """A call begins once, with its whole name, its arguments follow at once, and no piece is empty."""
    begun = 0
    for piece in pieces_of(sample, sample.output):
        match piece:
            case CallStart(index, call_id, name):
                assert index == begun and call_id and name
                begun += 1
            case CallArguments(index, text):
                assert index == begun - 1 and text
            case Text(text) | Reasoning(text):
                assert text


@pytest.mark.parametrize("name", [*TOOL_PARSER_NAMES, *REASONING_PARSER_NAMES, "(required)", "(named)"])
def test_noise_is_parsed_alike_however_it_is_cut(name: str) -> None:
    """Fragments of every format in any order: nothing fails, and what comes out depends on no cut."""
    fragments = sorted({piece for s in SAMPLES for piece in cut_at(s.output, range(5, len(s.output), 11))})
    marks = [
        '<tool_call>{"name": "get_time", "arguments": {',
        '{"name": "get_time", "parameters": "',
        "[get_time(a=",
        "[TOOL_CALLS]get_time{",
        "<|tool_call|>[{",
        "<|channel|>",
        "<|message|>",
        "<think>",
        "</think>",
        "\\u12",
        '"',
        "}",
        "]",
        "\n",
    ]
    chance = random.Random(name)
    for _ in range(60):
        text = "".join(chance.choices(fragments + 3 * marks, k=chance.randint(1, 9)))
        sample = Sample("noise", name, "", text)
        whole = parse(sample, [text]).parts
        assert parse(sample, text).parts == whole, text
        places = chance.sample(range(len(text)), min(len(text), 5))
        assert parse(sample, cut_at(text, places)).parts == whole, text


@pytest.mark.parametrize("name", TOOL_PARSER_NAMES)
def test_plain_text_passes_through_untouched(name: str) -> None:
    for text in (
        "",
        " ",
        "\n\n",
        "Hello, world.\n",
        "a < b [x] {y} (z)\t",
        "if (a<b) { return [1]; }\n",
        "<|end",
        "é😀\u2028",
    ):
        assert parse(Sample("plain", name, "", text), text).parts == ([Text(text)] if text else [])


def test_deep_nesting_costs_no_recursion() -> None:
    depth = 20_000
    arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
    sample = Sample("deep", "hermes", "", f'<tool_call>{{"name": "get_time", "arguments": {arguments}}}</tool_call>')
    assert parse(sample, [sample.output]).tool_calls[0].arguments == arguments
