"""`best_of`: more answers are drawn than returned, and the best are known only when all have ended."""

from __future__ import annotations

import math

from octavo.engine.outputs import TextDelta
from octavo.messages import SamplingParams


class BestOf:
    """Holds a request's answers back until it can tell which `n` of them are the best.

    Best is the largest mean logprob per token, the stopping token included; of equals the one with the lower index.
    An answer without tokens comes last.
    """

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._answers: dict[int, TextDelta] = {}

    def add(self, delta: TextDelta) -> None:
        """Take in a piece of any answer; its logprobs must be known."""
        earlier = self._answers.get(delta.index)
        if earlier is None:
            self._answers[delta.index] = delta
        else:
            earlier.append(delta)

    def chosen(self) -> list[TextDelta]:
        """The n best as whole answers, best first, with indices of their own. Call once, when all have ended."""
        drawn = [self._answers[index] for index in sorted(self._answers)]
        ranked = sorted(drawn, key=_mean_logprob, reverse=True)  # stable: equals stay in the order of their indices
        best, others = ranked[: self._params.n], ranked[self._params.n :]
        prompt_logprobs, num_cached_tokens = drawn[0].prompt_logprobs, drawn[0].num_cached_tokens
        for index, answer in enumerate(best):
            answer.index = index
            answer.prompt_logprobs = prompt_logprobs if index == 0 else None
            answer.num_cached_tokens = num_cached_tokens if index == 0 else 0
            answer.sum_logprobs()
            if self._params.logprobs is None:
                answer.logprobs = None
        best[0].num_unchosen_tokens = sum(len(answer.token_ids) for answer in others)
        return best


def _mean_logprob(answer: TextDelta) -> float:
    if not answer.logprobs:
        return -math.inf
    return sum(entry.logprob for entry in answer.logprobs) / len(answer.logprobs)
