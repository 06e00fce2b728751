"""Beam searches among the running sequences: forks and drops by reference, in the order that the searches choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.beam_group import BeamGroup, Turn
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from octavo.core.step import RowFork, StepPlan
from octavo.errors import InvariantError
from octavo.messages import TokenDelta, TokenLogprobs

if TYPE_CHECKING:
    from octavo.core.scheduler import Scheduler


class Beams:
    """Carries out what beam groups decide, and tells the worker with the next plan.

    A beam stands still from the plan that samples it until its group has chosen, so no plan in flight names the row of
    a beam that is forked or dropped, at any depth. A group moves as one: it is preempted, swapped and brought back
    whole.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._forks: list[RowFork] = []
        self._row_tokens: list[tuple[int, int]] = []

    def tell(self, plan: StepPlan) -> None:
        """Put what was chosen since the last plan into this one."""
        if self._row_tokens:
            plan.forks, self._forks = self._forks, []
            plan.row_tokens, self._row_tokens = self._row_tokens, []
            # Rows that leave from here on were named by this plan already.
            self._scheduler.rows.last_planned = plan.step_id

    def shortage(self, group: BeamGroup) -> int:
        """Blocks missing before every beam of a group can take its next tokens."""
        kv = self._scheduler.kv
        available = kv.num_available_blocks
        return sum(kv.shortage(beam, beam.num_tokens) + available for beam in group.beams) - available

    def reserve(self, group: BeamGroup, count: int) -> None:
        """Keep that many rows, and what blocks their beams need beforehand, for forks of a group."""
        self._scheduler.kv.reserve(group, count)
        self._scheduler.rows.num_reserved += count - group.num_reserved_rows
        group.num_reserved_rows = count

    @property
    def untold_rows(self) -> set[int]:
        """Rows that were given to forks which the worker has not heard of."""
        return {fork.row for fork in self._forks}

    # ---- the search

    def receive(self, group: BeamGroup, sequence: Sequence, found: TokenLogprobs | None) -> list[TokenDelta]:
        """Take one beam's likeliest tokens; the answers, if that ends the search.

        Raises:
            InvariantError: If the worker reported none. A beam that failed has ended before.
        """
        if found is None:
            raise InvariantError([f"beam {sequence.index} of request {sequence.request_id} got no candidates"])
        group.receive(sequence, found.top)
        return self.take_turn(group)

    def take_turn(self, group: BeamGroup) -> list[TokenDelta]:
        """Let a group choose, if all its beams are here and have reported."""
        running = self._scheduler.running
        if not group.is_complete or any(running.get(beam.row) is not beam for beam in group.beams):
            return []
        group.num_cached_tokens = max(group.num_cached_tokens, group.beams[0].num_cached_tokens or 0)
        turn = group.choose()
        if turn is None:
            deltas = group.deltas()
            deltas[0].num_cached_tokens = group.num_cached_tokens
            self._scheduler.num_generated_tokens += sum(len(delta.token_ids) for delta in deltas)
            self.end(group)
            return deltas
        self._carry_out(group, turn)
        return []

    def _carry_out(self, group: BeamGroup, turn: Turn) -> None:
        scheduler = self._scheduler
        request = scheduler.requests[group.source.request_id]
        for beam in turn.dropped:
            self._leave(beam)
            beam.move_to(SequenceStatus.FINISHED)
            del request.sequences[beam.index]
        for parent, child, token in turn.forked:
            scheduler.kv.fork(parent, child)
            child.row = scheduler.rows.take()
            child.num_tokens = parent.num_tokens
            child.num_cached_tokens = 0
            child.move_to(SequenceStatus.RUNNING)
            request.sequences[child.index] = child
            scheduler.run(child)
            self._forks.append(RowFork(parent.row, child.row, child.index))
            self._append(child, token)
        for beam, token in turn.kept:
            self._append(beam, token)
        self.reserve(group, group.width - len(group.beams))

    def _append(self, beam: Sequence, token: int) -> None:
        beam.answer.append(token)
        beam.num_tokens += 1
        self._row_tokens.append((beam.row, token))

    # ---- the end, and beginning again

    def _leave(self, beam: Sequence) -> None:
        """Take the row and blocks of a beam that has reported at once: no plan in flight names them."""
        scheduler = self._scheduler
        row, beam.row = beam.row, NO_ROW
        del scheduler.running[row]
        scheduler.wake(scheduler.in_flight.leave(beam))
        scheduler.rows.give_back(row, scheduler.kv.detach(beam))

    def retire_untold(self, beam: Sequence) -> bool:
        """Take back what the worker was not told of a beam. True if it has never heard of its row either, which is
        then free without being named."""
        scheduler = self._scheduler
        row = beam.row
        self._row_tokens = [entry for entry in self._row_tokens if entry[0] != row]
        untold = [fork for fork in self._forks if fork.row == row]
        if not untold:
            return False
        self._forks = [fork for fork in self._forks if fork.row != row]
        beam.row = NO_ROW
        scheduler.rows.forget(row, scheduler.kv.detach(beam))
        return True

    def end(self, group: BeamGroup) -> None:
        """End every sequence of a group."""
        request = self._scheduler.requests[group.source.request_id]
        for sequence in sorted(request.sequences.values(), key=lambda s: -s.index):
            self._scheduler.end(sequence)

    def restart(self, group: BeamGroup) -> None:
        """Begin a search again from its prompt: nothing of it was told to anybody, and it will choose the same."""
        scheduler = self._scheduler
        request = scheduler.requests[group.source.request_id]
        for sequence in list(request.sequences.values()):
            if sequence.status is SequenceStatus.RUNNING:
                scheduler.leave_row(sequence)
            else:
                scheduler.waiting.remove(sequence)
                if sequence.status is SequenceStatus.SWAPPED:
                    scheduler.swapping.forget(sequence)
            sequence.move_to(SequenceStatus.FINISHED)
        self.reserve(group, 0)
        leader = group.begin()
        scheduler.kv.identify(leader)
        leader.num_cached_tokens = 0
        leader.num_lost_tokens = leader.num_tokens
        request.sequences = {leader.index: leader}
        scheduler.waiting.put(leader)
