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


class CompletionOutput(msgspec.Struct, kw_only=True):
    """One finished or growing answer."""

    index: int
    text: str = ""
    token_ids: list[int] = msgspec.field(default_factory=list)
    cumulative_logprob: float | None = None
    logprobs: list[TokenLogprobs] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class RequestOutput(msgspec.Struct, kw_only=True):
    """A request with its n answers."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool = False
    prompt_logprobs: list[TokenLogprobs | None] | None = None
    num_cached_tokens: int = 0
