"""From tokens to text: detokenises, looks for stop strings, and settles why an answer ended."""

from __future__ import annotations

from octavo.engine.detokenizer import Detokenizer
from octavo.engine.input_processor import Prepared
from octavo.engine.outputs import TextDelta
from octavo.engine.stop import StopStrings
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ContextLengthError, OctavoError, RequestError
from octavo.messages import (
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    REFUSED_GRAMMAR,
    REFUSED_LENGTH,
    REFUSED_REQUEST,
    SamplingParams,
    TokenDelta,
    TokenLogprobs,
)


class OutputProcessor:
    """The answers of one request."""

    def __init__(self, prepared: Prepared, tokenizer: Tokenizer) -> None:
        at_start = tokenizer.strips_leading_space and all(
            token_id in tokenizer.special_ids for token_id in prepared.prompt_token_ids
        )
        params = prepared.params
        drawn = prepared.request.sampling.n
        shown = prepared.shown_special_ids
        self._answers = [_Answer(index, params, tokenizer, shown, at_start=at_start) for index in range(drawn)]
        self._prompt_logprobs: list[TokenLogprobs | None] | None = None if params.prompt_logprobs is None else []
        self._num_unfinished = drawn
        grammar = prepared.request.grammar
        self._grammar_param = None if grammar is None else grammar.param

    @property
    def finished(self) -> bool:
        """Whether every answer has ended."""
        return self._num_unfinished == 0

    def process(self, delta: TokenDelta) -> TextDelta | None:
        """What a step's tokens mean as text; None when nothing can be said yet.

        When a stop string ends the answer, the result has a finish reason and `delta` has none: the caller then
        aborts that index. Tokens that still come for it are dropped.

        Raises:
            RequestError: If the core found that the request cannot be served as asked.
            OctavoError: If the sequence failed in the engine.
        """
        if delta.finish_reason == FINISH_ERROR:
            raise self._failure(delta)
        answer = self._answers[delta.index]
        if answer.finished:
            return None
        if delta.prompt_logprobs and self._prompt_logprobs is not None and delta.index == 0:
            self._prompt_logprobs += delta.prompt_logprobs
        if not delta.token_ids and delta.finish_reason is None:
            return None
        result = answer.process(delta)
        if delta.index == 0:  # its sequence computed the prompt, or found it
            result.num_cached_tokens = delta.num_cached_tokens
            if self._prompt_logprobs is not None:
                result.prompt_logprobs, self._prompt_logprobs = self._prompt_logprobs, None
        self._num_unfinished -= answer.finished
        return result

    def _failure(self, delta: TokenDelta) -> OctavoError:
        why = delta.error or "the engine could not compute this request"
        if delta.refusal == REFUSED_LENGTH:
            return ContextLengthError(None, message=why)
        if delta.refusal == REFUSED_GRAMMAR and self._grammar_param is not None:
            named = why if why.startswith(self._grammar_param) else f"{self._grammar_param}: {why}"
            return RequestError(self._grammar_param, message=named)
        if delta.refusal in (REFUSED_REQUEST, REFUSED_GRAMMAR):
            return RequestError(None, message=why)
        return OctavoError(why)


class _Answer:
    """One of a request's answers."""

    def __init__(
        self, index: int, params: SamplingParams, tokenizer: Tokenizer, shown: frozenset[int], *, at_start: bool
    ) -> None:
        self._index = index
        self._params = params
        self._text = Detokenizer(
            tokenizer, skip_special_tokens=params.skip_special_tokens, shown=shown, at_start=at_start
        )
        self._stop = StopStrings(params.stop, include=params.include_stop_str_in_output)
        self._num_tokens = 0
        self.finished = False

    def process(self, delta: TokenDelta) -> TextDelta:
        token_ids = delta.token_ids if self._params.max_tokens else []  # with 0 only the prompt was asked for
        reason, stop_reason = delta.finish_reason, delta.stop_reason
        # The token that ended the answer is no part of its text.
        silent = len(token_ids) - 1 if reason == FINISH_STOP and not self._params.include_stop_str_in_output else -1
        pieces: list[str] = []
        kept = 0
        while kept < len(token_ids) and not self._stopped:
            pieces.append("" if kept == silent else self._push(token_ids[kept]))
            kept += 1
        if reason is not None and not self._stopped:
            pieces.append(self._flush())
        if self._stopped:
            reason, stop_reason = FINISH_STOP, self._stop.matched
        elif reason is not None and not self._params.max_tokens:
            reason, stop_reason = FINISH_LENGTH, None
        self.finished = reason is not None
        result = TextDelta(
            index=self._index,
            text="".join(pieces),
            token_ids=token_ids[:kept],
            logprobs=None if delta.logprobs is None else delta.logprobs[:kept],
            finish_reason=reason,
            stop_reason=stop_reason,
            score=delta.score,
        )
        if self._params.beam_width is not None:
            result.sum_logprobs()
            if self._params.logprobs is None:
                result.logprobs = None
        return result

    @property
    def _stopped(self) -> bool:
        return self._stop.matched is not None

    def _push(self, token_id: int) -> str:
        """The text that became certain with a token."""
        if not self._params.detokenize:
            return ""
        self._num_tokens += 1
        text = self._text.push(token_id)
        return self._stop.push(text) if self._num_tokens > self._params.min_tokens else text

    def _flush(self) -> str:
        """What was held back: bytes that are no character, then the beginning of a stop string that did not come."""
        text = self._stop.push(self._text.finish())
        return text if self._stopped else text + self._stop.finish()
