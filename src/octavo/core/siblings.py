"""The n answers to one prompt: one sequence computes it, and the others are born from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.core.request import Request, Sequence, SequenceStatus
from octavo.core.step import RowFork

if TYPE_CHECKING:
    from octavo.core.scheduler import ScheduledStep, Scheduler


class Siblings:
    """Sequences of requests whose prompt is computed once, by their leader.

    A leader is admitted when there is room for all of them, rows and a block each, and others are admitted only beside
    what its siblings will take: one that is not born with the others computes the prompt for itself, and shares nothing
    but what a prefix cache finds. Where all would never fit at once, or nobody else runs, a leader goes ahead without.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.num_unborn = 0
        """Sequences that wait for their leader."""
        self._leaders: dict[Sequence, None] = {}
        """Who was admitted to compute a prompt for others, and has not yet; some may have been preempted."""

    def wait(self, request: Request, leader: Sequence, others: list[Sequence]) -> None:
        """Let sequences of a request wait until their leader has computed the prompt."""
        request.leader = leader
        request.unborn = {sequence.index: sequence for sequence in others}
        self.num_unborn += len(others)

    def end(self, request: Request, sequence: Sequence) -> None:
        """One that waits for its leader has ended."""
        del request.unborn[sequence.index]
        self.num_unborn -= 1

    def pass_on(self, request: Request) -> None:
        """The leader is gone before the prompt was computed: the next one computes it."""
        self._dismiss(request)
        for index in request.unborn:
            heir = request.unborn.pop(index)
            self.num_unborn -= 1
            self._scheduler.waiting.put(heir)
            request.leader = heir if request.unborn else None
            return

    def _dismiss(self, request: Request) -> None:
        if request.leader is not None:
            self._leaders.pop(request.leader, None)
            request.leader = None

    # ---- admission

    def num_with(self, sequence: Sequence) -> int:
        """For how many siblings there must be room when a sequence is admitted."""
        scheduler = self._scheduler
        request = scheduler.requests[sequence.request_id]
        if request.leader is not sequence or scheduler.is_alone:
            return 0
        count, kv = len(request.unborn), scheduler.kv
        needed = kv.peak_blocks(sequence.num_tokens) + self.blocks_for(count)
        return count if 1 + count <= scheduler.rows.count and needed <= kv.pool.num_blocks else 0

    def blocks_for(self, count: int) -> int:
        """Blocks that so many siblings take with their first tokens, their leader's own counted."""
        return (count + 1) * self._scheduler.kv.spec.num_groups if count else 0

    def begin(self, sequence: Sequence) -> None:
        """A sequence was admitted."""
        if self._scheduler.requests[sequence.request_id].leader is sequence:
            self._leaders[sequence] = None

    def num_awaited(self) -> int:
        """Siblings of the prompts that are being computed."""
        running, requests = SequenceStatus.RUNNING, self._scheduler.requests
        return sum(len(requests[s.request_id].unborn) for s in self._leaders if s.status is running)

    # ---- birth

    def bear(self, step: ScheduledStep) -> None:
        """Where a leader has its whole prompt in the plan, its siblings are sampled from its logits.

        Those for whom there is no row or block come later, as sequences of their own.
        """
        scheduler = self._scheduler
        for leader in list(step.sampled):
            request = scheduler.requests[leader.request_id]
            if request.leader is not leader:
                continue
            unborn, request.unborn = request.unborn, {}
            self._dismiss(request)
            self.num_unborn -= len(unborn)
            # The worker forks before it writes this plan's entries, so the children need them too.
            growth = [(g, c, b) for g, row, c, b in step.plan.table_growth if row == leader.row]
            num_born = 0
            for child in unborn.values():
                fits = scheduler.kv.num_available_blocks >= self.blocks_for(num_born + 1)
                if scheduler.rows.num_available > 0 and fits:
                    self._fork(step, leader, child)
                    step.plan.table_growth += [(g, child.row, c, b) for g, c, b in growth]
                    num_born += 1
                else:
                    scheduler.waiting.put(child)

    def _fork(self, step: ScheduledStep, leader: Sequence, child: Sequence) -> None:
        scheduler, plan = self._scheduler, step.plan
        scheduler.kv.fork(leader, child)
        child.num_tokens = leader.num_tokens
        child.num_cached_tokens = 0
        child.row = scheduler.rows.take()
        child.move_to(SequenceStatus.RUNNING)
        scheduler.run(child)
        if not plan.sample_sources:
            plan.sample_sources = list(plan.sample_rows)
        plan.forks.append(RowFork(leader.row, child.row, child.index))
        plan.sample_rows.append(child.row)
        plan.sample_sources.append(leader.row)
        step.sampled.append(child)
