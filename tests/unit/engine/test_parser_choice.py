"""Which parsers a model gets: by flags, by its template, by its prompt's end."""

from __future__ import annotations

import pytest

from octavo.engine.parsers.choose import (
    REASONING_ALIASES,
    REASONING_PARSER_NAMES,
    TOOL_PARSER_NAMES,
    OutputFormat,
    make_parser,
    new_call_id,
    new_short_id,
    output_format,
)
from octavo.engine.parsers.pieces import ParsedAnswer, Reasoning, Text
from octavo.errors import ConfigError
from octavo.http_config import REASONING_PARSERS, TOOL_CALL_PARSERS

THINKS = OutputFormat(reasoning_parser="qwen3")


@pytest.mark.parametrize(
    ("template", "tools", "reasoning"),
    [
        ("{{ messages }}", "hermes", None),
        ("{% if tools %}<tool_call>{% endif %}", "hermes", None),
        ("{% if tools %}<tool_call>{% endif %}'<think>' '</think>'", "hermes", "qwen3"),
        ("{% if tools %}<tool_call><function=f>{% endif %}", None, None),
        ("{% if tools %}<tool_call><arg_key>{% endif %}", None, None),
        ("{{ tools }}<|start_header_id|>", "llama3_json", None),
        ("{{ tools }}[func_name1(params)]<|start_header_id|>", "pythonic", None),
        ("{{ tools }}[TOOL_CALLS]", "mistral", None),
        ("{{ tools }}[TOOL_CALLS][THINK][/THINK]", "mistral", "mistral"),
        ("{{ tools }}<|tool_call|>", "granite", None),
        ("{{ tools }}<|channel|>", "openai", "gpt_oss"),
        ("{{ tools }}<unheard_of>", None, None),
        (None, "hermes", None),
    ],
)
def test_the_template_tells(template: str | None, tools: str | None, reasoning: str | None) -> None:
    assert output_format("auto", "auto", template) == OutputFormat(tool_parser=tools, reasoning_parser=reasoning)


def test_flags_win_over_the_template() -> None:
    template = "{{ tools }}<tool_call></think>"
    assert output_format("none", "none", template) == OutputFormat()
    assert output_format("mistral", "openai_gptoss", template) == OutputFormat(
        tool_parser="mistral", reasoning_parser="gpt_oss"
    )
    for flags in (("hermit", "auto"), ("auto", "deep")):
        with pytest.raises(ConfigError):
            output_format(*flags, template)


def test_the_flags_offer_what_there_is() -> None:
    assert set(TOOL_CALL_PARSERS) == {"auto", "none", *TOOL_PARSER_NAMES}
    assert set(REASONING_PARSERS) == {"auto", "none", *REASONING_PARSER_NAMES, *REASONING_ALIASES}


@pytest.mark.parametrize(
    ("prompt_end", "answer_begin", "answer", "parts"),
    [
        ("<|assistant|>", "", "<think>a</think>b", [Reasoning("a"), Text("b")]),
        ("<|assistant|><think>\n", "", "a</think>b", [Reasoning("a"), Text("b")]),
        ("<think>\n\n</think>\n\n", "", "b", None),
        ("<|assistant|><think>\nFirst", "<think>\nFirst", " a</think>b", [Reasoning(" a"), Text("b")]),
        ("<think>x</think> So", "<think>x</think> So", " b", [Text(" b")]),
    ],
)
def test_where_reasoning_begins(
    prompt_end: str, answer_begin: str, answer: str, parts: list[Reasoning | Text] | None
) -> None:
    """Opened by the prompt, closed by it, or begun in a message that is continued. None: nothing is to be parsed."""
    parser = make_parser(THINKS, prompt_end=prompt_end, answer_begin=answer_begin)
    assert (parser is None) == (parts is None)
    if parser is not None:
        parsed = ParsedAnswer()
        parsed.add(parser.feed(answer) + parser.finish())
        assert parsed.parts == parts


def test_ids_are_as_templates_demand() -> None:
    assert new_call_id().startswith("call_") and len({new_call_id() for _ in range(100)}) == 100
    assert len(new_short_id()) == 9 and new_short_id().isalnum()
