"""The paper's FasterTransformer baseline: requests are batched whole (section 6.1).

FasterTransformer has no scheduler of its own; the paper's authors gave it one, which takes up to B of the earliest
requests, runs them until the longest answer has ended, and only then takes the next. `delivery.WithTheBatch` holds the
answers back until then.

What FasterTransformer pays for besides is not done here: it pads every prompt to the batch's longest, and goes on
computing for answers that have ended. Octavo computes neither, so this baseline flatters FasterTransformer; a
simulated device can charge for it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from itertools import groupby

from octavo.core.order import by_arrival
from octavo.core.request import Sequence, SequenceStatus
from octavo.messages import EngineRequest

SPARE_TOKENS = 8
"""Longest prompt plus longest answer of a batch stay this far below the context: 2040 of 2048 in the authors' own
scripts."""


class WholeBatches:
    """An `AdmissionPolicy` that lets a batch in when nobody runs: the earliest requests, as long as they fit together.

    A batch ends before the first request with which the longest prompt plus the longest answer would pass the context,
    that asks for another number of answers, or that finds no place. A batch whose prompts take several steps is let in
    over several steps.

    Args:
        max_num_seqs: B. Every answer and every beam counts.
        max_model_len: The context, in tokens.
    """

    order = staticmethod(by_arrival)

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        self._max_num_seqs = max_num_seqs
        self._max_tokens = max_model_len - SPARE_TOKENS
        self._waiting: dict[int, Sequence] = {}
        self._arrivals: list[int] = []
        """Of everyone who waits, sorted."""
        self._chosen: dict[int, Sequence] = {}
        """Who belongs to the batch and waits still."""
        self._admitted: list[Sequence] = []

    @property
    def is_over(self) -> bool:
        """Whether everyone in the batch has ended."""
        if self._chosen:
            return False
        self._admitted = [sequence for sequence in self._admitted if _is_running(sequence)]
        return not self._admitted

    def put(self, sequence: Sequence) -> None:
        if sequence.arrival not in self._waiting:
            self._waiting[sequence.arrival] = sequence
            insort(self._arrivals, sequence.arrival)
        if sequence.status is SequenceStatus.PREEMPTED:  # it belongs to the batch still
            self._chosen[sequence.arrival] = sequence

    def remove(self, sequence: Sequence) -> None:
        arrival = sequence.arrival
        del self._waiting[arrival]
        del self._arrivals[bisect_left(self._arrivals, arrival)]
        self._chosen.pop(arrival, None)

    def candidates(self) -> Iterator[Sequence]:
        if self.is_over:
            self._choose()
        while self._chosen:
            first = self._chosen[min(self._chosen)]
            yield first
            if first.arrival in self._chosen:  # no room for it: the batch is what runs
                self._chosen.clear()
            elif _is_running(first):
                self._admitted.append(first)

    def _choose(self) -> None:
        """The earliest requests, each with all its answers."""
        chosen = self._chosen
        num_rows = longest_prompt = longest_answer = 0
        first: EngineRequest | None = None
        waiting = (self._waiting[arrival] for arrival in self._arrivals)
        for _, group in groupby(waiting, key=lambda sequence: sequence.request_id):
            sequences = list(group)
            source = sequences[0].source
            num_rows += sum(1 if s.beams is None else s.beams.width for s in sequences)
            longest_prompt = max(longest_prompt, source.num_prompt_tokens)
            longest_answer = max(longest_answer, source.max_tokens)
            if first is not None and (
                num_rows > self._max_num_seqs
                or longest_prompt + longest_answer > self._max_tokens
                or _num_answers(source) != _num_answers(first)
            ):
                return
            first = first or source
            chosen.update((sequence.arrival, sequence) for sequence in sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return iter([self._waiting[arrival] for arrival in self._arrivals])

    def __len__(self) -> int:
        return len(self._waiting)


def _num_answers(source: EngineRequest) -> tuple[int, int | None]:
    return source.sampling.n, source.sampling.beam_width


def _is_running(sequence: Sequence) -> bool:
    """A search runs as long as one of its beams does."""
    beams = [sequence] if sequence.beams is None else sequence.beams.beams
    return any(beam.status is SequenceStatus.RUNNING for beam in beams)
