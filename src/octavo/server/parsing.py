"""What the answers of one request hold, for every API: reasoning, text and tool calls. See `engine.parsers.pieces`.

    params, parsing = context.answer_format.parsing(prompt_token_ids, params, tool_use)      # None: all is text
    prompts = await prepare(..., params, ..., parsing.shown_special_ids)
    generation = Generation(..., parsing.reasoning)

A stream hands each delta to `parsing.pieces(choice, delta)`; a whole answer is `parsing.whole(answer)`. Both give the
same, and `parsing.finish_reason(...)` says "tool_calls" where calls ended it.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from octavo.config import HTTPConfig
from octavo.engine.detokenizer import Detokenizer
from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.choose import (
    THINK_MARKS,
    OutputFormat,
    Thoughts,
    ToolChoice,
    make_parser,
    output_format,
    thoughts_begin,
)
from octavo.engine.parsers.pieces import CallArguments, CallStart, OutputParser, ParsedAnswer, Piece
from octavo.errors import RequestError
from octavo.messages import FINISH_STOP, SamplingParams
from octavo.server.held import Rules, after_thoughts, either, grammar_of, rules_of
from octavo.server.tool_grammar import call_rules, is_strict, named_call, required_calls, strict_calls
from octavo.server.tool_use import ToolUse
from octavo.structured import StructuredOutputsParams

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

FINISH_TOOL_CALLS = "tool_calls"

PROMPT_END_TOKENS = 16
"""Of the prompt's end, as many as may hold the mark that opens the reasoning."""


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
        params: SamplingParams,
        tool_use: ToolUse | None = None,
        *,
        answer_begin: str = "",
    ) -> tuple[SamplingParams, Parsing | None]:
        """How a request's answers are generated and parsed.

        Args:
            params: As the request asks. Required, named and strict calls hold generation to a grammar, and where the
                model reasons first, a grammar is obeyed after that.
            tool_use: The request's tools, if it has any.
            answer_begin: Text of the answer that the prompt ends with, where a message is continued.

        Returns:
            The parameters to generate with, and the parsing; None where answers are text and nothing else.

        Raises:
            RequestError: If the calls cannot be held to the tools as asked.
        """
        if tool_use is None and params.structured_outputs is None and self.form.reasoning_parser is None:
            return params, None
        choice: ToolChoice = "none" if tool_use is None else tool_use.choice
        prompt_end = self._tokenizer.decode(prompt_token_ids[-PROMPT_END_TOKENS:], skip_special_tokens=False)
        held, thoughts = self._held(params.structured_outputs, tool_use, prompt_end, answer_begin)
        if held is not params.structured_outputs:
            params = msgspec.structs.replace(params, structured_outputs=held)
        if choice == "none" and self.form.reasoning_parser is None:
            return params, None
        make = functools.partial(
            make_parser, self.form, thoughts=thoughts, prompt_end=prompt_end, answer_begin=answer_begin
        )
        with_calls = functools.partial(
            make,
            tool_names=frozenset[str]() if tool_use is None else tool_use.names,
            tool_choice=choice,
            forced=choice in ("required", "named"),
        )
        if with_calls() is None:
            return params, None
        shown, num_choices = self._shown[choice != "none"], params.n
        counter = None
        if self.form.reasoning_parser is not None:
            counter = ReasoningCounter(self._tokenizer, shown, make, num_choices)
        return params, Parsing(with_calls, num_choices, shown, counter, tool_use)

    def _held(
        self, asked: StructuredOutputsParams | None, use: ToolUse | None, prompt_end: str, answer_begin: str
    ) -> tuple[StructuredOutputsParams | None, Thoughts]:
        """What generation is held to, and whether the model thinks before."""
        asked, rules = self._with_tools(asked, use)
        begins = thoughts_begin(self.form, prompt_end)
        marks = THINK_MARKS.get(self.form.reasoning_parser or "", ("", ""))
        if asked is None or asked.structural_tag is not None:
            return asked, "free"
        # No rule can hold a control token's place in free thoughts, nor take up thoughts half-way.
        if begins is None or rules is None or answer_begin or self._tokenizer.special_ids_of(marks):
            return asked, "none"
        return after_thoughts(rules, asked.to_grammar().param, marks, opened=begins == "inside"), "held"

    def _with_tools(
        self, asked: StructuredOutputsParams | None, use: ToolUse | None
    ) -> tuple[StructuredOutputsParams | None, Rules | None]:
        """What is asked for beside these tools, and its rules where it has any."""
        if use is not None and use.choice in ("required", "named"):
            if asked is not None and not asked.param.startswith("response_format"):
                raise RequestError(asked.param, message=f"{asked.param}: must be left out with this tool_choice")
            asked = named_call(use) if use.choice == "named" else required_calls(use)
        elif use is not None and asked is None:
            asked = strict_calls(use, self.form, self._control_id) if is_strict(use) else None
        elif use is not None and asked is not None and asked.param.startswith("response_format"):
            rules, calls = rules_of(asked), call_rules(use, self.form, self._control_id)
            if rules is not None and calls is not None:
                rules = either(rules, calls)
                return grammar_of(rules, asked.param), rules
        return asked, None if asked is None else rules_of(asked)

    def _control_id(self, spelling: str) -> int | None:
        return next(iter(self._tokenizer.special_ids_of((spelling,))), None)


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
        tool_use: ToolUse | None,
    ) -> None:
        self.shown_special_ids = shown
        self.reasoning = reasoning
        self._make = make
        self._named = tool_use is not None and tool_use.choice == "named"
        self._parallel = tool_use is None or tool_use.parallel
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
