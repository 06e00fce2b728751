"""Which parsers a model's answers need: by name, or from its chat template.

Names are vLLM's, so that its flags work unchanged.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable
from typing import Literal

import msgspec

from octavo.engine.parsers.calls import CallScanner
from octavo.engine.parsers.harmony import MARKS as HARMONY_MARKS
from octavo.engine.parsers.harmony import HarmonyParser
from octavo.engine.parsers.json_formats import (
    GraniteParser,
    HermesParser,
    Llama3JSONParser,
    MistralParser,
    NamedCallParser,
    RequiredCallsParser,
)
from octavo.engine.parsers.pieces import OutputParser, Piece, Text
from octavo.engine.parsers.pythonic import PythonicParser
from octavo.engine.parsers.think import THINK, Begins, ThinkParser
from octavo.errors import ConfigError

NONE = "none"
AUTO = "auto"

HARMONY = "openai"
"""The tool parser of gpt-oss, whose reasoning parser is one with it."""

TOOL_PARSERS: dict[str, type[CallScanner]] = {
    "hermes": HermesParser,
    "llama3_json": Llama3JSONParser,
    "llama4_json": Llama3JSONParser,
    "pythonic": PythonicParser,
    "llama4_pythonic": PythonicParser,
    "mistral": MistralParser,
    "granite": GraniteParser,
    "phi4_mini_json": GraniteParser,
}
CLOSING_MARKS = ("</tool_call>", "<|python_end|>", "<|/tool_call|>", "[CALL_ID]", "[ARGS]")
TOOL_PARSER_NAMES = (*TOOL_PARSERS, HARMONY)
GPT_OSS = "gpt_oss"
THINK_MARKS = {"deepseek_r1": THINK, "qwen3": THINK, "mistral": ("[THINK]", "[/THINK]")}
REASONING_PARSER_NAMES = (*THINK_MARKS, GPT_OSS)
REASONING_ALIASES = {"openai_gptoss": GPT_OSS}

_MARKS_OF_TEMPLATES = (
    ("<function=", None),  # Qwen 3 Coder, Functionary
    ("<arg_key>", None),  # GLM
    (">>>", None),  # Functionary 3.2
    ("<|channel|>", HARMONY),
    ("[TOOL_CALLS]", "mistral"),
    ("[func_name1(", "pythonic"),
    ("<|python_tag|>", "llama3_json"),
    ("<|start_header_id|>", "llama3_json"),
    ("<|tool_call|>", "granite"),
    ("<tool_call>", "hermes"),
)
"""What a template that knows tools holds, and the parser for what its model writes; None where there is none yet. The
first that fits counts."""

_ID_CHARS = string.ascii_letters + string.digits

ToolChoice = Literal["none", "auto", "required", "named"]
Thoughts = Literal["free", "held", "none"]


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """How a model writes what is not plain text. Settled once, when the server starts."""

    tool_parser: str | None = None
    """None where it is not known how the model writes calls."""
    reasoning_parser: str | None = None

    def marks(self, *, with_calls: bool) -> tuple[str, ...]:
        """Spellings that the parsers look for. Where one is a control token, it must not be left out of the text."""
        marks: tuple[str, ...] = ()
        if with_calls and self.tool_parser in TOOL_PARSERS:
            marks = (*TOOL_PARSERS[self.tool_parser].marks, *CLOSING_MARKS)
        if self.reasoning_parser == GPT_OSS or (with_calls and self.tool_parser == HARMONY):
            return (*marks, *HARMONY_MARKS)
        return marks if self.reasoning_parser is None else (*marks, *THINK_MARKS[self.reasoning_parser])


def output_format(tool_parser: str, reasoning_parser: str, template: str | None) -> OutputFormat:
    """The format of a model's answers.

    Args:
        tool_parser, reasoning_parser: A parser's name, "auto" to go by the template, or "none".
        template: Source of the model's chat template, if it has one.

    Raises:
        ConfigError: For a name that is not known.
    """
    reasoning_parser = REASONING_ALIASES.get(reasoning_parser, reasoning_parser)
    for field, name, known in (
        ("tool_call_parser", tool_parser, TOOL_PARSER_NAMES),
        ("reasoning_parser", reasoning_parser, REASONING_PARSER_NAMES),
    ):
        if name not in (AUTO, NONE, *known):
            raise ConfigError(field, name, "one of " + ", ".join((AUTO, *known, NONE)))
    source = template or ""
    tools = tool_parser_of(source) if tool_parser == AUTO else tool_parser
    reasoning = reasoning_parser_of(source) if reasoning_parser == AUTO else reasoning_parser
    return OutputFormat(
        tool_parser=None if tools == NONE else tools, reasoning_parser=None if reasoning == NONE else reasoning
    )


def tool_parser_of(template: str) -> str | None:
    """The parser for a template that knows tools; "hermes" for one that does not, since the prompt then teaches that
    format; None for a format that is not known."""
    if not knows_tools(template):
        return "hermes"
    return next((name for mark, name in _MARKS_OF_TEMPLATES if mark in template), None)


def knows_tools(template: str) -> bool:
    """Whether a template writes the tools into the prompt."""
    return "tools" in template


def reasoning_parser_of(template: str) -> str | None:
    """The parser for a template whose model reasons."""
    if "<|channel|>" in template:
        return GPT_OSS
    return next((name for name in ("qwen3", "mistral") if THINK_MARKS[name][1] in template), None)


def new_call_id() -> str:
    return "call_" + "".join(secrets.choice(_ID_CHARS) for _ in range(24))


def new_short_id() -> str:
    """As Mistral's templates demand: nine letters or digits."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(9))


def make_parser(
    form: OutputFormat,
    *,
    tool_names: frozenset[str] = frozenset(),
    tool_choice: ToolChoice = "none",
    forced: bool = False,
    thoughts: Thoughts = "free",
    prompt_end: str = "",
    answer_begin: str = "",
    new_id: Callable[[], str] | None = None,
) -> OutputParser | None:
    """A parser for one answer; None where all of it is text.

    Args:
        tool_names: The tools there are; of a named choice, that one.
        tool_choice: "none" leaves calls in the text.
        forced: Whether generation is held to the format of `required` or `named` calls, JSON without any marks.
        thoughts: "free" as the model likes; "held" where what follows them is held to a grammar, so that the marks are
            certain; "none" where the answer obeys one from its first character.
        prompt_end: The end of the prompt as text, which tells whether it has opened the reasoning.
        answer_begin: Text of the answer that the prompt holds already, where a message is continued.
    """
    if new_id is None:
        new_id = new_short_id if form.tool_parser == "mistral" else new_call_id
    wants_calls = tool_choice != "none"
    if (
        not forced
        and thoughts == "free"
        and (form.reasoning_parser == GPT_OSS or (wants_calls and form.tool_parser == HARMONY))
    ):
        return HarmonyParser(new_id, with_calls=wants_calls)
    calls: OutputParser | None = None
    if forced:
        calls = (NamedCallParser if tool_choice == "named" else RequiredCallsParser)(tool_names, new_id)
    elif wants_calls and form.tool_parser in TOOL_PARSERS:
        calls = TOOL_PARSERS[form.tool_parser](tool_names, new_id)
    begins = None if thoughts == "none" else thoughts_begin(form, prompt_end)
    if begins is None:
        return calls
    if begins == "unsure" and thoughts == "held":
        begins = "outside"
    thinking = ThinkParser(begins, THINK_MARKS[form.reasoning_parser or ""])
    thinking.feed(answer_begin)
    return thinking if calls is None else Chain(thinking, calls)


def thoughts_begin(form: OutputFormat, prompt_end: str) -> Begins | None:
    """Where the model's thoughts begin, after a prompt that ends so; None where there are none before the answer."""
    if form.reasoning_parser not in THINK_MARKS:
        return None
    opening, closing = THINK_MARKS[form.reasoning_parser]
    ending = prompt_end.rstrip()
    if ending.endswith(opening):
        return "inside"
    if ending.endswith(closing):
        return None
    return "unsure" if form.reasoning_parser == "deepseek_r1" else "outside"


class Chain:
    """The text that one parser finds goes through another."""

    def __init__(self, first: OutputParser, second: OutputParser) -> None:
        self._first = first
        self._second = second

    @property
    def in_reasoning(self) -> bool:
        return self._first.in_reasoning

    def feed(self, text: str) -> list[Piece]:
        return self._through(self._first.feed(text))

    def finish(self) -> list[Piece]:
        return self._through(self._first.finish()) + self._second.finish()

    def _through(self, pieces: list[Piece]) -> list[Piece]:
        found: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, Text):
                found += self._second.feed(piece.text)
            else:
                found.append(piece)
        return found
