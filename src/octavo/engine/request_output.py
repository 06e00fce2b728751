"""Whole answers, put together from deltas."""

from __future__ import annotations

from octavo.engine.input_processor import Prepared
from octavo.engine.outputs import CompletionOutput, RequestOutput, TextDelta


def new_output(prepared: Prepared, request_id: str | None = None) -> RequestOutput:
    """A request with nothing generated yet."""
    return RequestOutput(
        request_id=str(prepared.request_id) if request_id is None else request_id,
        prompt=prepared.prompt_text,
        prompt_token_ids=prepared.prompt_token_ids,
        outputs=[CompletionOutput(index=index) for index in range(prepared.params.n)],
    )


def update_output(output: RequestOutput, delta: TextDelta) -> None:
    """Add a delta, in place."""
    answer = output.outputs[delta.index]
    answer.text += delta.text
    answer.token_ids += delta.token_ids
    if delta.logprobs is not None:
        answer.logprobs = (answer.logprobs or []) + delta.logprobs
        answer.cumulative_logprob = sum((entry.logprob for entry in delta.logprobs), answer.cumulative_logprob or 0.0)
    elif delta.cumulative_logprob is not None:
        answer.cumulative_logprob = delta.cumulative_logprob
    if delta.prompt_logprobs is not None:
        output.prompt_logprobs = delta.prompt_logprobs
    output.num_cached_tokens += delta.num_cached_tokens
    answer.score = delta.score
    answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
    output.finished = all(answer.finish_reason is not None for answer in output.outputs)
