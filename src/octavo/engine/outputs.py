"""What callers of the engine receive. Names follow vLLM's Python API."""

from __future__ import annotations

import msgspec

from octavo.messages import TokenLogprobs


class TextDelta(msgspec.Struct, kw_only=True):
    """A piece of one answer, as soon as it is certain.

    Text that might yet turn out to be the start of a stop string, or is an incomplete UTF-8 sequence, is held back.
    Concatenating `text` over the deltas of an index gives the answer; `token_ids` and `logprobs` likewise. A delta may
    carry tokens and no text, or (at the end) text and no tokens.
    """

    index: int
    text: str
    token_ids: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    """"stop", "length" or "abort" in the last delta of the index, else None."""
    stop_reason: int | str | None = None
    """The stop string or stop token id that ended it; None for end-of-sequence and length."""
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    """Whole prompt at once, in the first delta of index 0, when asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache, once per request: in the first delta of index 0."""
    score: float | None = None
    """Of a beam: the sum of its logprobs, length penalty included."""
    cumulative_logprob: float | None = None
    """Sum of a whole answer's logprobs, where they are known without having been asked for."""
    num_unchosen_tokens: int = 0
    """Tokens of answers that `best_of` drew and did not choose, in the first delta of index 0."""

    def append(self, later: TextDelta) -> None:
        """Add what comes next of the same answer, in place."""
        self.text += later.text
        self.token_ids += later.token_ids
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        if later.prompt_logprobs is not None:
            self.prompt_logprobs = later.prompt_logprobs
        self.finish_reason, self.stop_reason = later.finish_reason, later.stop_reason
        self.score, self.cumulative_logprob = later.score, later.cumulative_logprob
        self.num_cached_tokens += later.num_cached_tokens
        self.num_unchosen_tokens += later.num_unchosen_tokens

    def sum_logprobs(self) -> None:
        """Set `cumulative_logprob` from `logprobs`."""
        self.cumulative_logprob = None if self.logprobs is None else sum(entry.logprob for entry in self.logprobs)


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One finished or growing answer."""

    index: int
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum of the tokens' logprobs; None unless logprobs were asked for, or beams or `best_of` needed them."""
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None
    """Of a beam: its cumulative logprob divided by its number of tokens to the power of the length penalty."""


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request with its n answers; those of beams and of `best_of` are in order, the best first."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
    """Prompt tokens whose KV was in the prefix cache."""
