"""Beam search over sequences: which forks, which is dropped, and what the request answers in the end."""

from __future__ import annotations

from typing import NamedTuple

from octavo.core.accounts import Account
from octavo.core.beam import BeamSearch, Hypothesis, Survivor, plan_moves
from octavo.core.request import Sequence
from octavo.messages import FINISH_STOP, EngineRequest, TokenDelta


class Turn(NamedTuple):
    """What a step of the search decided about the sequences."""

    kept: list[tuple[Sequence, int]]
    """Sequences that go on, each with its next token."""
    forked: list[tuple[Sequence, Sequence, int]]
    """(parent, child, token): new sequences that go on from a parent, before its own next token."""
    dropped: list[Sequence]


class BeamGroup:
    """One request's beams. Each is an ordinary sequence that samples nothing: its likeliest tokens come here, and when
    those of all beams are there the search chooses.

    Args:
        source: The request.
        first_arrival: Arrivals `first_arrival .. first_arrival + width - 1` are the group's.
        stop_tokens: Token id to the `stop_reason` it gives.
        num_groups: KV groups of the model.
        account: The tenant's.
    """

    def __init__(
        self,
        source: EngineRequest,
        first_arrival: int,
        stop_tokens: dict[int, int | None],
        num_groups: int,
        account: Account,
    ) -> None:
        self.source = source
        self.width = source.sampling.beam_width or 1
        self.num_reserved_rows = 0
        """Rows kept free for beams to come."""
        self.num_cached_tokens = 0
        self._first_arrival = first_arrival
        self._stop_tokens = stop_tokens
        self._num_groups = num_groups
        self._account = account
        self._pending: dict[Sequence, list[tuple[int, float]]] = {}
        self.beams: list[Sequence] = []
        """In the order of the search."""
        self.search = self._new_search()

    @property
    def num_candidates(self) -> int:
        return self.search.num_candidates

    def begin(self) -> Sequence:
        """A new search; returns the one sequence that computes the prompt."""
        self.search = self._new_search()
        self._pending.clear()
        self.beams = [self._make(0)]
        return self.beams[0]

    def _new_search(self) -> BeamSearch:
        sampling = self.source.sampling
        return BeamSearch(
            self.width,
            length_penalty=sampling.length_penalty,
            early_stopping=sampling.early_stopping,
            max_tokens=self.source.max_tokens,
            stop_tokens=self._stop_tokens,
            num_logprobs=sampling.logprobs or 0,
        )

    def _make(self, slot: int) -> Sequence:
        sequence = Sequence(
            self.source,
            slot,
            self._first_arrival + slot,
            self.source.sampling,
            self._stop_tokens,
            self._num_groups,
            self._account,
        )
        sequence.beams = self
        return sequence

    def receive(self, sequence: Sequence, candidates: list[tuple[int, float]]) -> None:
        """Take one beam's likeliest tokens with their logprobs."""
        self._pending[sequence] = candidates

    @property
    def is_complete(self) -> bool:
        """Whether every beam has reported."""
        return len(self._pending) == len(self.beams)

    def choose(self) -> Turn | None:
        """Let the search choose among all beams' tokens; None when that ends it."""
        pending, self._pending = self._pending, {}
        advance = self.search.advance([pending[beam] for beam in self.beams])
        return None if advance.finished else self._turn(advance.survivors)

    def _turn(self, survivors: list[Survivor]) -> Turn:
        """A parent's first survivor keeps its sequence and row; the others are forked (paper, section 4.4)."""
        old = {beam.index: beam for beam in self.beams}
        parents = [self.beams[survivor.parent] for survivor in survivors]
        moves = plan_moves([parent.index for parent in parents], list(old), self.width)
        turn = Turn([], [], [old[slot] for slot in moves.drops])
        self.beams = []
        for slot, parent, survivor in zip(moves.slots, parents, survivors, strict=True):
            if slot == parent.index:
                turn.kept.append((parent, survivor.token_id))
                self.beams.append(parent)
            else:
                child = self._make(slot)
                child.answer = parent.answer.copy()
                turn.forked.append((parent, child, survivor.token_id))
                self.beams.append(child)
        return turn

    def deltas(self) -> list[TokenDelta]:
        """The `sampling.n` best answers, whole.

        Where too few continuations are possible at all (bans and biases leave so few tokens), the missing answers are
        empty and have no score.
        """
        request_id, wanted = self.source.request_id, self.source.sampling.n
        deltas = [
            self._delta(request_id, index, hypothesis)
            for index, hypothesis in enumerate(self.search.results()[:wanted])
        ]
        return deltas + [TokenDelta(request_id, index, [], FINISH_STOP) for index in range(len(deltas), wanted)]

    def _delta(self, request_id: int, index: int, found: Hypothesis) -> TokenDelta:
        delta = TokenDelta(request_id, index, list(found.token_ids), found.finish_reason, found.stop_reason)
        delta.score = found.score
        if self.source.sampling.logprobs is not None:
            delta.logprobs = found.logprobs
        return delta
