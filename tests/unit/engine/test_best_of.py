"""best_of: the n answers with the largest mean logprob, under indices of their own."""

from __future__ import annotations

from octavo.engine.best_of import BestOf
from octavo.engine.outputs import TextDelta
from octavo.messages import SamplingParams, TokenLogprobs


def piece(index: int, *logprobs: float, finish: str | None = None, cached: int = 0) -> TextDelta:
    return TextDelta(
        index=index,
        text=f"{index}" * len(logprobs),
        token_ids=[index] * len(logprobs),
        logprobs=[TokenLogprobs(index, value, 1, []) for value in logprobs],
        finish_reason=finish,
        num_cached_tokens=cached,
    )


def test_the_best_by_mean_logprob_come_first() -> None:
    best = BestOf(SamplingParams(n=2, best_of=4, logprobs=0))
    best.add(piece(1, -1.0, finish="length"))
    best.add(piece(0, -5.0, cached=8))
    best.add(piece(2, -0.4, -0.4, -0.4, -0.4, finish="stop"))  # a larger sum than index 1's, and a smaller one than 3's
    best.add(piece(3, -0.3))
    best.add(piece(0, -5.0, finish="length"))
    best.add(piece(3, -0.1, finish="length"))
    first, second = best.chosen()
    assert (first.index, first.text, first.token_ids) == (0, "33", [3, 3])
    assert (second.index, second.text, second.finish_reason) == (1, "2222", "stop")
    assert first.cumulative_logprob == -0.4 and second.cumulative_logprob == -1.6
    assert first.logprobs is not None and [entry.logprob for entry in first.logprobs] == [-0.3, -0.1]
    assert (first.num_unchosen_tokens, second.num_unchosen_tokens) == (3, 0)
    assert (first.num_cached_tokens, second.num_cached_tokens) == (8, 0), "the prompt's hit goes with the first answer"


def test_equals_keep_their_order_and_an_empty_answer_is_last() -> None:
    best = BestOf(SamplingParams(n=3, best_of=3))
    best.add(piece(0, finish="stop"))
    best.add(piece(2, -1.0, finish="stop"))
    best.add(piece(1, -1.0, -1.0, finish="stop"))
    assert [answer.text for answer in best.chosen()] == ["11", "2", ""]


def test_logprobs_that_nobody_asked_for_are_not_shown() -> None:
    best = BestOf(SamplingParams(n=1, best_of=2))
    best.add(piece(0, -2.0, finish="stop"))
    best.add(piece(1, -1.0, finish="stop"))
    (answer,) = best.chosen()
    assert answer.logprobs is None and answer.cumulative_logprob == -1.0
