"""Beam search: which continuations live, which answers are finished, and when to stop.

Pure: log-probabilities in, choices out; rows, blocks and sequences belong to the scheduler. The rules are those of
`GenerationMixin._beam_search` in transformers 5.24 for one prompt, score for score in float32:

* all continuations of all running beams are ranked by the sum of their logprobs;
* those that end (a stop token, or the last token allowed) are finished if they are among the first `width`;
* the first `width` of the others run on;
* the best `width` finished ones, by sum / length ** length_penalty, are the answers.

Equal sums rank by beam, then by the order of the beam's candidates. transformers leaves the order of equal sums to
`torch.topk`, which promises none. Two more departures, both where transformers would answer with padding: a
continuation of probability zero never runs, so that fewer than `width` beams may run; and a finished answer counts
however low its score (transformers drops those below -1e9, which only extreme length penalties reach).
"""

from __future__ import annotations

import bisect
import ctypes
import heapq
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from octavo.errors import RequestError
from octavo.messages import FINISH_LENGTH, FINISH_STOP, TokenLogprobs

Candidates = Sequence[tuple[int, float]]
"""(token id, logprob in float32), best first."""

_MAX_FLOAT32 = (2 - 2**-23) * 2.0**127
_MIN_FLOAT32 = 2.0**-126


class Survivor(NamedTuple):
    """A beam of the next step: beam `parent` of this step, continued by `token_id`."""

    parent: int
    token_id: int
    score: float
    """Sum of the logprobs."""


class Advance(NamedTuple):
    survivors: list[Survivor]
    """In the order of the beams of the next step, best first. Empty when the search is over."""
    finished: bool


class Hypothesis(msgspec.Struct, frozen=True):
    """A finished answer."""

    token_ids: list[int]
    """The ending token included."""
    score: float
    """`logprob_sum` / length ** length_penalty."""
    logprob_sum: float
    finish_reason: str
    """FINISH_STOP or FINISH_LENGTH."""
    stop_reason: int | None
    """What `stop_tokens` says of the ending token; None with FINISH_LENGTH."""
    logprobs: list[TokenLogprobs]
    """One per token."""


class _Link(msgspec.Struct, frozen=True):
    """The last token of a chain. Chains share what they have in common."""

    previous: _Link | None
    token_id: int
    logprob: float
    rank: int
    top: list[tuple[int, float]]
    """Shared by all continuations of the same beam."""


class _Beam(NamedTuple):
    tail: _Link | None
    score: float


class _Finished(NamedTuple):
    tail: _Link
    score: float
    logprob_sum: float
    finish_reason: str


class BeamSearch:
    """The search of one request. A step costs O(width log width) time and O(width) memory.

    Args:
        width: Beams to run, and answers to find.
        max_tokens: Length of the longest answer.
        stop_tokens: Tokens that end an answer, with the `stop_reason` each gives. Whoever computes the candidates keeps
            them out (at -inf) until the request's `min_tokens` are there.
        length_penalty: As `SamplingParams.length_penalty`.
        early_stopping: As `SamplingParams.early_stopping`.
        num_logprobs: Likeliest tokens to keep with each token of an answer.

    Raises:
        RequestError: If `max_tokens` is below 1.
    """

    def __init__(
        self,
        width: int,
        *,
        max_tokens: int,
        stop_tokens: Mapping[int, int | None],
        length_penalty: float = 1.0,
        early_stopping: bool | str = False,
        num_logprobs: int = 0,
    ) -> None:
        if max_tokens < 1:
            raise RequestError("max_tokens", max_tokens, "at least 1 with beam_width")
        self._width = width
        self._max_tokens = max_tokens
        self._stop_tokens = stop_tokens
        self._length_penalty = length_penalty
        self._early_stopping = early_stopping
        self._num_logprobs = num_logprobs
        self._num_tokens = 0
        self._running = [_Beam(None, 0.0)]
        self._finished: list[_Finished] = []

    @property
    def num_candidates(self) -> int:
        """How many likeliest tokens each beam must report.

        With `width` + (number of stop tokens) of them, `width` go on whatever ends, and no beam can place more than
        `width` among the first `width`.
        """
        return max(self._width + len(self._stop_tokens), self._num_logprobs)

    @property
    def num_running(self) -> int:
        """Beams that wait for candidates: 1 at first, 0 when the search is over."""
        return len(self._running)

    @property
    def is_finished(self) -> bool:
        return not self._running

    def token_ids(self, beam: int) -> list[int]:
        """What running beam `beam` has generated."""
        return [link.token_id for link in _links(self._running[beam].tail)]

    def advance(self, candidates: Sequence[Candidates]) -> Advance:
        """Take one step.

        Args:
            candidates: For each running beam, in order, its `num_candidates` likeliest tokens (fewer if the vocabulary
                is smaller), best first.

        Raises:
            ValueError: If there is not one list for each running beam.
        """
        if len(candidates) != len(self._running):
            raise ValueError(f"{len(candidates)} lists of candidates for {len(self._running)} running beams")
        self._num_tokens += 1
        parents = self._running
        tops = [list(found[: self._num_logprobs]) for found in candidates]
        wanted = self._width if self._num_tokens < self._max_tokens else 0
        survivors: list[Survivor] = []
        self._running = []
        for rank, (negated, parent, position) in enumerate(self._ranked(parents, candidates)):
            if rank >= self._width and len(survivors) == wanted:
                break
            token_id, logprob = candidates[parent][position]
            link = _Link(parents[parent].tail, token_id, logprob, position + 1, tops[parent])
            reason = self._finish_reason(token_id)
            if reason is None and len(survivors) < wanted:
                survivors.append(Survivor(parent, token_id, -negated))
                self._running.append(_Beam(link, -negated))
            elif reason is not None and rank < self._width:
                self._finish(link, -negated, reason)
        if self._is_over():
            survivors, self._running = [], []
        return Advance(survivors, not survivors)

    def results(self) -> list[Hypothesis]:
        """The best finished answers so far, best first, `width` at most."""
        return [self._hypothesis(finished) for finished in self._finished]

    @staticmethod
    def _ranked(parents: list[_Beam], candidates: Sequence[Candidates]) -> Iterator[tuple[float, int, int]]:
        """(negated sum, beam, position in the beam's list) of every continuation, best first."""

        def continuations(beam: int) -> Iterator[tuple[float, int, int]]:
            # Rounding keeps the order, so each of these is sorted, as a merge needs it.
            for position, (_, logprob) in enumerate(candidates[beam]):
                if logprob > -math.inf:
                    yield -_float32(parents[beam].score + logprob), beam, position

        return heapq.merge(*map(continuations, range(len(parents))))

    def _finish_reason(self, token_id: int) -> str | None:
        if token_id in self._stop_tokens:
            return FINISH_STOP
        return FINISH_LENGTH if self._num_tokens == self._max_tokens else None

    def _finish(self, tail: _Link, logprob_sum: float, reason: str) -> None:
        score = self._penalised(logprob_sum, self._num_tokens)
        bisect.insort_right(self._finished, _Finished(tail, score, logprob_sum, reason), key=lambda f: -f.score)
        del self._finished[self._width :]

    def _is_over(self) -> bool:
        """Whether no running beam may still change the answers, in the sense of `early_stopping`."""
        if not self._running:
            return True
        if len(self._finished) < self._width:
            return False
        if self._early_stopping is True:
            return True
        farthest = self._early_stopping == "never" and self._length_penalty > 0
        hoped = self._penalised(self._running[0].score, self._max_tokens if farthest else self._num_tokens)
        return hoped <= self._finished[-1].score

    def _penalised(self, logprob_sum: float, num_tokens: int) -> float:
        try:
            divisor = _float32(float(num_tokens) ** self._length_penalty)
        except OverflowError:
            divisor = _MAX_FLOAT32
        return _float32(logprob_sum / max(divisor, _MIN_FLOAT32))

    def _hypothesis(self, finished: _Finished) -> Hypothesis:
        links = _links(finished.tail)
        return Hypothesis(
            token_ids=[link.token_id for link in links],
            score=finished.score,
            logprob_sum=finished.logprob_sum,
            finish_reason=finished.finish_reason,
            stop_reason=self._stop_tokens.get(finished.tail.token_id),
            logprobs=[TokenLogprobs(link.token_id, link.logprob, link.rank, link.top) for link in links],
        )


class BeamMoves(NamedTuple):
    """How beams change slots between two steps. Perform drops, then forks, then append the tokens."""

    slots: list[int]
    """Parallel to the survivors: the slot of each."""
    forks: list[tuple[int, int]]
    """(source slot, target slot): the target becomes the source's twin, as it was before this step's token."""
    drops: list[int]
    """Slots whose beam has no survivor. Forks use these first."""


def plan_moves(parents: Sequence[int], occupied: Collection[int], width: int) -> BeamMoves:
    """Find places with the fewest forks: a beam's first survivor stays in its slot.

    Args:
        parents: The slot that each survivor comes from; at most `width` of them.
        occupied: The slots that hold a beam now, of `range(width)`.
    """
    surviving = set(parents)
    drops = [slot for slot in sorted(occupied) if slot not in surviving]
    never_used = (slot for slot in range(width) if slot not in occupied)
    targets = iter([*drops, *never_used])
    slots: list[int] = []
    forks: list[tuple[int, int]] = []
    for parent in parents:
        if parent in surviving:
            surviving.remove(parent)
            slots.append(parent)
        else:
            target = next(targets)
            forks.append((parent, target))
            slots.append(target)
    return BeamMoves(slots, forks, drops)


def _links(tail: _Link | None) -> list[_Link]:
    """A chain, first token first."""
    found = []
    while tail is not None:
        found.append(tail)
        tail = tail.previous
    found.reverse()
    return found


def _float32(value: float) -> float:
    """`value` rounded to a finite float32. One operation on two float32 values, made in double and rounded by this,
    gives what float32 arithmetic gives: double has more than twice its digits."""
    return ctypes.c_float(max(-_MAX_FLOAT32, min(_MAX_FLOAT32, value))).value
