"""What the answers of one request hold, for every API: reasoning, text and tool calls. See `engine.parsers.pieces`.

    form = context.answer_format
    parsing = form.parsing(prompt_token_ids, num_choices, tool_use)      # None: all is text
    prompts = await prepare(..., shown_special_ids=parsing.shown_special_ids)
    generation = Generation(..., parsing=parsing)

A stream hands each delta to `parsing.pieces(choice, delta)`; a whole answer is `parsing.whole(answer)`. Both give the
same, and `parsing.finish_reason(...)` says "tool_calls" where calls ended it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from octavo.config import HTTPConfig
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.choose import OutputFormat, ToolChoice, make_parser, output_format
from octavo.engine.parsers.pieces import CallArguments, CallStart, OutputParser, ParsedAnswer, Piece
from octavo.messages import FINISH_STOP

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

FINISH_TOOL_CALLS = "tool_calls"

PROMPT_END_TOKENS = 16
"""Of the prompt's end, as many as may hold the mark that opens the reasoning."""


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a request, checked, whatever API it came through."""

    tools: list[dict[str, object]]
    """In the form of chat completions: `{"type": "function", "function": {"name", "description", "parameters"}}`."""
    choice: ToolChoice = "auto"
    name: str | None = None
    """The tool that must be called, with the choice "named"."""
    parallel: bool = True
    """Whether one answer may hold several calls."""

    @property
    def names(self) -> frozenset[str]:
        """The tools that may be called."""
        if self.name is not None:
            return frozenset({self.name})
        return frozenset(str(tool["function"]["name"]) for tool in self.tools)  # type: ignore[index]


class AnswerFormat:
    """How the served model's answers are parsed. One for the server's life."""

    def __init__(self, form: OutputFormat, tokenizer: Tokenizer) -> None:
        self.form = form
        self._tokenizer = tokenizer
        self._shown = {
            with_calls: tokenizer.special_ids_of(form.marks(with_calls=with_calls)) for with_calls in (False, True)
        }

    def parsing(
        self,
        prompt_token_ids: list[int],
        num_choices: int,
        tool_use: ToolUse | None = None,
        *,
        answer_begin: str = "",
        forced: bool = False,
    ) -> Parsing | None:
        """How a request's answers are parsed; None where they are text and nothing else.

        Args:
            tool_use: The request's tools, if it has any.
            answer_begin: Text of the answer that the prompt ends with, where a message is continued.
            forced: Whether generation is held to JSON calls.
        """
        choice: ToolChoice = "none" if tool_use is None else tool_use.choice
        if choice == "none" and self.form.reasoning_parser is None:
            return None
        prompt_end = self._tokenizer.decode(prompt_token_ids[-PROMPT_END_TOKENS:], skip_special_tokens=False)
        names = frozenset[str]() if tool_use is None else tool_use.names

        def make() -> OutputParser | None:
            return make_parser(
                self.form,
                tool_names=names,
                tool_choice=choice,
                forced=forced,
                prompt_end=prompt_end,
                answer_begin=answer_begin,
            )

        if make() is None:
            return None
        counter = None
        shown = self._shown[choice != "none"]
        if self.form.reasoning_parser is not None:

            def twin() -> OutputParser | None:
                return make_parser(self.form, forced=forced, prompt_end=prompt_end, answer_begin=answer_begin)

            counter = ReasoningCounter(self._tokenizer, shown, twin, num_choices)
        parallel = tool_use is None or tool_use.parallel
        return Parsing(make, num_choices, shown, counter, named=choice == "named", parallel=parallel)


def answer_format(http: HTTPConfig, template: str | None, tokenizer: Tokenizer) -> AnswerFormat:
    """The format that flags and chat template ask for."""
    return AnswerFormat(output_format(http.tool_call_parser, http.reasoning_parser, template), tokenizer)


class ReasoningCounter:
    """Counts the tokens of reasoning. It parses token by token, so that the count depends on no cut of the text."""

    def __init__(
        self, tokenizer: Tokenizer, shown: frozenset[int], make: Callable[[], OutputParser | None], num_choices: int
    ) -> None:
        self.num_tokens = 0
        """Of all answers, up to now. The mark that ends the reasoning counts."""
        self._texts = [Detokenizer(tokenizer, shown=shown) for _ in range(num_choices)]
        self._parsers = [make() for _ in range(num_choices)]

    def push(self, choice: int, token_ids: list[int]) -> None:
        """The next tokens of an answer."""
        parser, text = self._parsers[choice], self._texts[choice]
        if parser is not None:
            for token_id in token_ids:
                self.num_tokens += parser.in_reasoning
                parser.feed(text.push(token_id))


@dataclass
class _Choice:
    """One answer as it grows."""

    parser: OutputParser
    num_calls: int = 0
    last_arguments: list[str] = field(default_factory=list)


class Parsing:
    """Parses the answers of one request.

    Attributes:
        shown_special_ids: Control tokens that the parsers must see.
        reasoning: Counts tokens; None where reasoning is not told apart.
    """

    def __init__(
        self,
        make: Callable[[], OutputParser | None],
        num_choices: int,
        shown: frozenset[int],
        reasoning: ReasoningCounter | None,
        *,
        named: bool,
        parallel: bool,
    ) -> None:
        self.shown_special_ids = shown
        self.reasoning = reasoning
        self._make = make
        self._named = named
        self._parallel = parallel
        self._choices: list[_Choice | None] = [None] * num_choices

    def pieces(self, choice: int, delta: TextDelta) -> list[Piece]:
        """What a delta adds to an answer; with its finish reason also all that was held back. Calls after the first are
        left out where there may be only one."""
        state = self._of(choice)
        pieces = state.parser.feed(delta.text)
        if delta.finish_reason is not None:
            pieces += state.parser.finish()
        if not self._parallel:
            pieces = [piece for piece in pieces if not isinstance(piece, CallStart | CallArguments) or piece.index == 0]
        for piece in pieces:
            match piece:
                case CallStart():
                    state.num_calls += 1
                    state.last_arguments.clear()
                case CallArguments(_, text):
                    state.last_arguments.append(text)
        return pieces

    def whole(self, choice: int, text: str, finish_reason: str | None) -> ParsedAnswer:
        """An answer that was collected."""
        answer = ParsedAnswer()
        answer.add(self.pieces(choice, TextDelta(index=choice, text=text, token_ids=[], finish_reason=finish_reason)))
        return answer

    def finish_reason(self, choice: int, reason: str | None) -> str | None:
        """`reason`, or "tool_calls" where the answer ended with whole calls.

        As with OpenAI, a call of a named tool ends with "stop".
        """
        state = self._of(choice)
        if reason != FINISH_STOP or not state.num_calls or self._named:
            return reason
        return FINISH_TOOL_CALLS if _is_json("".join(state.last_arguments)) else reason

    def _of(self, choice: int) -> _Choice:
        state = self._choices[choice]
        if state is None:
            parser = self._make()
            assert parser is not None
            state = self._choices[choice] = _Choice(parser)
        return state


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
