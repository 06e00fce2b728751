"""What the next step computes, and what a computed step means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from octavo.core.admission import AdmissionPolicy, FirstComeFirstServed
from octavo.core.beam_group import BeamGroup
from octavo.core.beams import Beams
from octavo.core.host_slots import HostSlots
from octavo.core.in_flight import InFlightPrefixes
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.preemption import LastInOrder, MeasuredCosts, PreemptionPolicy, WayPolicy
from octavo.core.prefix_index import Match
from octavo.core.published import Published
from octavo.core.request import NO_ROW, Request, Sequence, SequenceStatus
from octavo.core.rows import Rows
from octavo.core.siblings import Siblings
from octavo.core.speculation import Speculation, Verified
from octavo.core.step import PromptLogprobs, RowSetup, StepPlan, StepResult
from octavo.core.swapping import Swapping
from octavo.errors import InvariantError
from octavo.messages import (
    FINISH_ERROR,
    FINISH_LENGTH,
    FINISH_STOP,
    REFUSED_GRAMMAR,
    REFUSED_LENGTH,
    TokenDelta,
)


class ScheduledStep:
    """A plan, and whom its rows belong to."""

    __slots__ = ("admitted", "ends", "plan", "sampled", "sequences", "token_budget")

    def __init__(self, step_id: int, token_budget: int) -> None:
        self.plan = StepPlan(step_id, [], [], [], [], [], [])
        self.sequences: list[Sequence] = []
        """Parallel to `plan.rows`."""
        self.ends: list[int] = []
        """Parallel to `plan.rows`: tokens computed after the plan."""
        self.sampled: list[Sequence] = []
        """Parallel to `plan.sample_rows`."""
        self.admitted: list[Sequence] = []
        """Parallel to `plan.setups`."""
        self.token_budget = token_budget
        """Tokens the plan may still take."""

    def choose(self, sequence: Sequence, num_new: int) -> None:
        self.sequences.append(sequence)
        self.plan.num_new_tokens.append(num_new)
        self.token_budget -= num_new

    def advance(self) -> None:
        """Move the chosen sequences forward by their new tokens, and sample those that have no more to compute.

        A beam that is sampled stands still until the search has chosen.
        """
        plan, sampled, ends = self.plan, self.sampled, self.ends
        for sequence, num_new in zip(self.sequences, plan.num_new_tokens, strict=True):
            start = sequence.num_computed_tokens
            end = start + num_new
            sequence.last_start = start
            sequence.num_computed_tokens = end
            ends.append(end)
            if end == sequence.num_tokens:
                if sequence.beams is None:
                    sequence.num_tokens = end + 1
                sampled.append(sequence)
        plan.rows = [sequence.row for sequence in self.sequences]
        plan.sample_rows = [sequence.row for sequence in sampled]

    def num_recomputed_tokens(self) -> int:
        """New tokens of the plan that had been computed before a preemption. Asked before `advance`."""
        return sum(
            min(num_new, max(0, sequence.num_lost_tokens - sequence.num_computed_tokens))
            for sequence, num_new in zip(self.sequences, self.plan.num_new_tokens, strict=True)
        )


class Scheduler:
    """Plans steps by the progress rule and applies their results.

    There are no phases: a step moves each sequence's `num_computed_tokens` towards its `num_tokens`, and samples where
    they meet. Prefill, its chunks, decode, a prefix hit and the recomputation after a preemption are all this rule.

    Plans may overlap (depth 2): `schedule` may be called again before the last plan's result is applied. A sequence
    that ends or is preempted while a plan in flight may name its row and blocks leaves them in quarantine until that
    plan was applied.
    """

    def __init__(
        self,
        kv: KVCacheManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        num_host_blocks: int = 0,
        admission: AdmissionPolicy | None = None,
        preemption: PreemptionPolicy | None = None,
        way: WayPolicy | None = None,
        speculation: Speculation | None = None,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.requests: dict[int, Request] = {}
        """Everything that is not finished, by request id."""
        self.running: dict[int, Sequence] = {}
        """By row; in the order of service when a plan is made."""
        self._is_in_order = True
        """Whether `running` is in that order."""
        self.waiting: AdmissionPolicy = FirstComeFirstServed() if admission is None else admission
        self._order = self.waiting.order
        self.rows = Rows(max_num_seqs, kv.pool)
        self.slots = HostSlots(num_host_blocks)
        self.swapping = Swapping(kv, self.rows, self.slots)
        self.in_flight = InFlightPrefixes()
        self.published = Published(kv)
        self._preemption: PreemptionPolicy = LastInOrder(self._order) if preemption is None else preemption
        self._way: WayPolicy = MeasuredCosts() if way is None else way
        self.speculation = speculation
        """Grants drafts; None where nothing is guessed."""
        self.siblings = Siblings(self)
        self.beams = Beams(self)
        self.refused: list[TokenDelta] = []
        """Requests that turned out never to fit; whoever makes steps tells them."""

        self.num_preemptions = 0
        self.num_swap_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_wasted_slots = 0
        self.num_errors = 0

    @property
    def num_steps(self) -> int:
        """Plans made that had work."""
        return self.rows.last_planned

    @property
    def has_work(self) -> bool:
        """Whether a plan made now may hold something."""
        return bool(self.running or self.rows.released or len(self.waiting) or self.kv.has_work or self.slots.discards)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + len(self.in_flight) + self.siblings.num_unborn

    # ---- arrivals and departures

    def add(self, request_id: int, sequences: list[Sequence], num_needed_blocks: int) -> None:
        """Queue a request's sequences; where blocks are shared, the first one computes the prompt for all that have
        computed nothing.

        The caller has checked that they can run and that their indices are new.

        Args:
            num_needed_blocks: Most blocks that one of them, or a beam search, needs at once to get on.
        """
        request = self.requests.setdefault(request_id, Request())
        request.num_needed_blocks = max(request.num_needed_blocks, num_needed_blocks)
        for sequence in sequences:
            request.sequences[sequence.index] = sequence
            self.kv.identify(sequence)
        leader, *others = sequences
        self.waiting.put(leader)
        # Each for itself where nothing is shared, or under an id whose prompt is being computed for others already.
        if not self.kv.shares or request.leader is not None:
            for sequence in others:
                self.waiting.put(sequence)
        elif others:
            self.siblings.wait(request, leader, others)

    def end(self, sequence: Sequence, *, keep: bool = True) -> None:
        """End an unfinished sequence wherever it is; its row and blocks are free once no plan in flight names them.

        Args:
            keep: Whether what it computed may be reused.
        """
        request = self.requests[sequence.request_id]
        if sequence.status is SequenceStatus.RUNNING:
            if keep and sequence.row in self.running:
                self.kv.seal(sequence)
            self.leave_row(sequence)
        elif sequence.index in request.unborn:
            self.siblings.end(request, sequence)
        elif sequence in self.in_flight:
            self.in_flight.give_up(sequence)
        else:
            self.waiting.remove(sequence)
            if sequence.status is SequenceStatus.SWAPPED:
                self.swapping.forget(sequence)
        sequence.move_to(SequenceStatus.FINISHED)
        del request.sequences[sequence.index]
        if request.leader is sequence:
            self.siblings.pass_on(request)
        if not request.sequences:
            del self.requests[sequence.request_id]
            if sequence.beams is not None:
                self.beams.reserve(sequence.beams, 0)

    def leave_row(self, sequence: Sequence) -> None:
        """Take a resident sequence's row and blocks, whether it runs or is on its way back from the host."""
        if sequence in self.swapping.arriving:
            self.swapping.forget_arriving(sequence)
        else:
            del self.running[sequence.row]
            self.wake(self.in_flight.leave(sequence))
        if sequence.beams is None or not self.beams.retire_untold(sequence):
            row, sequence.row = sequence.row, NO_ROW
            self.rows.retire(row, self.kv.detach(sequence))

    def beam_groups(self) -> list[BeamGroup]:
        """Of the requests that search."""
        leaders = [next(iter(request.sequences.values())) for request in self.requests.values()]
        return [leader.beams for leader in leaders if leader.beams is not None]

    def wake(self, sequences: list[Sequence]) -> None:
        """Sequences wait no more for another's prefix."""
        for sequence in sequences:
            self.waiting.put(sequence)

    # ---- planning

    def schedule(self) -> ScheduledStep:
        """Plan one forward pass.

        Running sequences come first, so a decode never waits for a new prompt; admission spends what is left of the
        token budget. A step in which somebody could not get a block admits nobody: the blocks just won back would go
        to the newcomer, and the next step would preempt again.
        """
        step = ScheduledStep(self.rows.last_planned + 1, self.max_num_batched_tokens)
        plan = step.plan
        self.beams.tell(plan)
        if not self._is_in_order:
            self._put_in_order()
        num_released = len(self.rows.released)
        if self.kv.has_windows:
            for sequence in self.running.values():
                if sequence.num_computed_tokens < sequence.num_tokens < sequence.max_num_tokens:
                    self.kv.leave_windows(sequence, plan)
        everyone_fits = self._choose_running(step)
        plan.released_rows = self.rows.take_released()
        preempted = plan.released_rows[num_released:]
        if preempted:  # which left their windows before
            plan.table_growth = [entry for entry in plan.table_growth if entry[1] not in preempted]
        if everyone_fits:
            self._admit_waiting(step)
            if self.speculation is not None and not self.siblings.num_unborn:  # who is born soon needs the blocks
                self.speculation.grant(step)
        if self.num_preemptions:
            self.num_recomputed_tokens += step.num_recomputed_tokens()
        step.advance()
        if self.siblings.num_unborn:
            self.siblings.bear(step)
        self.kv.end_plan(plan)
        if self.slots.discards:
            plan.discards = self.slots.take_discards()
        if plan.has_work:
            self.rows.last_planned = plan.step_id
        return step

    def _choose_running(self, step: ScheduledStep) -> bool:
        """Choose how far running sequences go, in order. False if one of them lacked a block at first."""
        everyone_fits = True
        budget = step.token_budget
        choose, count = step.sequences.append, step.plan.num_new_tokens.append
        running = list(self.running.values())
        checked: BeamGroup | None = None
        for i, sequence in enumerate(running):
            num_tokens = sequence.num_tokens
            if num_tokens == sequence.max_num_tokens or sequence.row == NO_ROW:
                continue  # its last token is being sampled, or it was just preempted
            num_new = num_tokens - sequence.num_computed_tokens
            if num_new > budget:
                num_new = budget
            if num_new <= 0:
                if budget:
                    continue  # a beam that waits for the others
                break
            if sequence.beams is not None and sequence.beams is not checked:
                checked = sequence.beams
                if self.beams.shortage(checked) > 0:
                    everyone_fits = False
                    if not self._make_room(step, running, i, partial(self.beams.shortage, checked)):
                        break
            end = sequence.num_computed_tokens + num_new
            if end > sequence.num_slots and not self.kv.grow(sequence, end, step.plan):
                everyone_fits = False
                if not self._make_room(step, running, i, partial(self.kv.shortage, sequence, end)):
                    break  # nobody younger may take the blocks it waits for
                self.kv.grow(sequence, end, step.plan)
            budget -= num_new
            choose(sequence)
            count(num_new)
        step.token_budget = budget
        return everyone_fits

    def _make_room(self, step: ScheduledStep, running: list[Sequence], i: int, shortage: Callable[[], int]) -> bool:
        """Preempt until `running[i]` can grow. False if it must wait for a plan in flight, or was preempted itself."""
        sequence = running[i]
        first = i
        while first and sequence.beams is not None and running[first - 1].beams is sequence.beams:
            first -= 1  # beams move as one, those too that wait for the others
        while (missing := shortage()) > 0:
            if missing <= self.rows.quarantine.num_blocks:
                return False
            candidates = [s for s in running[first:] if s.row != NO_ROW and not _is_being_published(s)]
            if self._holds_everything(candidates):
                self._give_up(sequence)
                return False
            victim = self._preemption.choose(candidates)
            gang = [victim]
            if victim.request_id != sequence.request_id or victim.beams is not None:
                # Its sequences share blocks, so one of them alone would free little.
                gang = [s for s in candidates if s.request_id == victim.request_id]
            self._preempt(gang, step.plan)
            if sequence in gang:
                return False
        return True

    def _holds_everything(self, candidates: list[Sequence]) -> bool:
        """Whether one sequence, or one beam search, is all there is: to preempt it would win nothing."""
        first = candidates[0]
        is_one = len(candidates) == 1 or (first.beams is not None and all(s.beams is first.beams for s in candidates))
        nobody_else = len(self.running) == len(candidates) and not self.swapping.arriving
        return is_one and nobody_else and not len(self.rows.quarantine)

    def _preempt(self, gang: list[Sequence], plan: StepPlan) -> None:
        """Take rows and blocks from sequences of one request, by swap or to be computed again."""
        self.num_preemptions += len(gang)
        num_tokens = sum(sequence.num_computed_tokens for sequence in gang)
        beams = gang[0].beams
        if self._swaps(gang, num_tokens):
            self.num_swap_preemptions += len(gang)
            for sequence in gang:
                del self.running[sequence.row]
                self.wake(self.in_flight.leave(sequence))
            self.swapping.swap_out(gang, plan)
            self.wake(gang)
            if beams is not None:
                self.beams.reserve(beams, 0)
        elif beams is not None:
            self.beams.restart(beams)
        else:
            for sequence in gang:
                self.kv.seal(sequence)
                self.leave_row(sequence)
                sequence.forget_blocks()
                sequence.move_to(SequenceStatus.PREEMPTED)
                self.waiting.put(sequence)

    def _swaps(self, gang: list[Sequence], num_tokens: int) -> bool:
        """Whether a gang leaves for the host.

        Not if it reads published blocks: it would come back with copies of its own, and may not fit beside them. Nor
        if it publishes: what came back from the host might not be found by others.
        """
        if gang[0].source.publish is not None or not self.swapping.has_room(gang):
            return False
        if any(sequence.lineage is not None and sequence.lineage.public for sequence in gang):
            return False
        return self._way.swaps(self.swapping.num_blocks(gang), num_tokens)

    def _admit_waiting(self, step: ScheduledStep) -> None:
        # A preempted sequence may still wait for a token from a plan in flight, but not here: the plan that preempted
        # it admits nobody, and the plan before that was applied before another is made.
        for sequence in self.waiting.candidates():
            if not step.token_budget:
                return
            if sequence.status is SequenceStatus.SWAPPED:
                admitted = self._swap_in(step, sequence)
            else:
                admitted = self._admit(step, sequence)
            if not admitted and self.is_alone:
                self._give_up(sequence)

    @property
    def is_alone(self) -> bool:
        """Whether nothing that holds rows or blocks will give them back by itself."""
        return not (self.running or self.swapping.arriving or len(self.rows.quarantine))

    def _give_up(self, sequence: Sequence) -> None:
        """A sequence does not fit, though nobody else is there."""
        if sequence.status is SequenceStatus.SWAPPED:
            self.lost(self.swapping.lose(sequence))
            return
        request = self.requests[sequence.request_id]
        why = (
            f"the request needs up to {request.num_needed_blocks} KV blocks at once, and "
            f"{self.published.num_blocks} of the pool's {self.kv.pool.num_blocks} are taken by published prefixes"
        )
        if sequence.beams is not None:
            indices = list(range(sequence.source.sampling.n))
            self.beams.end(sequence.beams)
        else:
            indices = sorted(request.sequences)
            for index in reversed(indices):
                self.end(request.sequences[index], keep=False)
        self.refused += [
            TokenDelta(sequence.request_id, index, [], finish_reason=FINISH_ERROR, error=why, refusal=REFUSED_LENGTH)
            for index in indices
        ]

    def _admit(self, step: ScheduledStep, sequence: Sequence) -> bool:
        """Let a sequence in, or let it wait for another. False if there is no room for it."""
        num_rows = 1 if sequence.beams is None else sequence.beams.width
        num_siblings = self.siblings.num_with(sequence) + self.siblings.num_awaited()
        if self.rows.num_available < num_rows + num_siblings:
            return False
        match = self.kv.match(sequence)
        if self._waits_for_another(sequence, match):
            return True
        sequence.row = self.rows.free[-1]
        spare = self.siblings.blocks_for(num_siblings)
        num_new = self.kv.admit(sequence, match, step.token_budget, step.plan, spare=spare)
        if not num_new:
            sequence.row = NO_ROW
            return False
        self._start(step, sequence)
        if sequence.beams is not None:
            self.beams.reserve(sequence.beams, num_rows - 1)
        step.choose(sequence, num_new)
        return True

    def _waits_for_another(self, sequence: Sequence, match: Match) -> bool:
        """Whether somebody computes right now what this sequence needs next; then it waits for that."""
        index, lineage = self.kv.index, sequence.lineage
        if index is None or lineage is None or not self.in_flight.num_computing:
            return False
        if sequence.sampling.prompt_logprobs is not None or len(match.contents) < len(lineage.public):
            return False
        tokens = sequence.token_ids
        columns = range(len(match.contents), (len(tokens) - 1) // self.kv.block_size)
        key = self.in_flight.last_shared(index.key_of(lineage, column, tokens) for column in columns)
        if key is None:
            return False
        self.waiting.remove(sequence)
        self.in_flight.wait(sequence, key)
        return True

    def _start(self, step: ScheduledStep, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        source = sequence.source
        if sequence.num_cached_tokens is None:
            sequence.num_cached_tokens = 0
            if sequence.index == source.first_index:  # once, whatever n is
                self.num_prompt_tokens += source.num_prompt_tokens
                sequence.num_cached_tokens = min(sequence.num_computed_tokens, source.num_prompt_tokens)
                if sequence.lineage is not None:
                    sequence.account.num_prefix_query_tokens += source.num_prompt_tokens
                    sequence.account.num_prefix_hit_tokens += sequence.num_cached_tokens
        sequence.move_to(SequenceStatus.RUNNING)
        self.rows.take()
        self.run(sequence)
        self.siblings.begin(sequence)
        self._set_up(step, sequence)
        index, lineage = self.kv.index, sequence.lineage
        if index is not None and lineage is not None:
            tokens = sequence.token_ids
            columns = range(len(lineage.contents), len(tokens) // self.kv.block_size)
            if len(columns):
                self.in_flight.begin(sequence, [index.key_of(lineage, column, tokens) for column in columns])

    def run(self, sequence: Sequence) -> None:
        """Enter a sequence that has a row. The next plan puts it in its place."""
        last = next(reversed(self.running.values()), None)
        self.running[sequence.row] = sequence
        if last is not None and self._order(last) > self._order(sequence):
            self._is_in_order = False

    def _put_in_order(self) -> None:
        """Sort once for all that came since the last plan: a step of beam searches may fork a hundred beams."""
        in_order = sorted(self.running.values(), key=self._order)
        self.running = {s.row: s for s in in_order}
        self._is_in_order = True

    def _set_up(self, step: ScheduledStep, sequence: Sequence) -> None:
        source = sequence.source
        step.admitted.append(sequence)
        step.plan.setups.append(
            RowSetup(
                row=sequence.row,
                token_ids=sequence.token_ids,
                num_prompt_tokens=source.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                sampling=sequence.sampling,
                seed=source.seed,
                sequence_index=sequence.index,
                eos_token_ids=source.eos_token_ids,
                adapter=source.adapter,
                grammar_id=source.grammar_id,
                bad_token_ids=source.bad_token_ids,
                num_candidates=0 if sequence.beams is None else sequence.beams.num_candidates,
            )
        )

    def _swap_in(self, step: ScheduledStep, sequence: Sequence) -> bool:
        """Bring a swapped sequence back with its gang. False if there is no room for all of them yet."""
        gang = self.swapping.gang_of(sequence)
        beams = sequence.beams
        num_rows = len(gang.sequences) if beams is None else beams.width
        if not gang.is_out or self.rows.num_available < num_rows:
            return False
        # Those that run must each get their next block, or they would push the gang out again.
        margin = 0
        if self.running or self.swapping.arriving:
            margin = (len(self.running) + len(gang.sequences)) * self.kv.spec.num_groups
        if self.swapping.needs(gang) + margin > self.kv.num_available_blocks:
            return False
        for member in gang.sequences:
            self.waiting.remove(member)
        self.swapping.swap_in(gang, step.plan)
        if beams is not None:
            self.beams.reserve(beams, num_rows - len(gang.sequences))
        for member in gang.sequences:
            self._set_up(step, member)
        return True

    # ---- applying

    def apply(self, step: ScheduledStep, result: StepResult) -> list[TokenDelta]:
        """Take a step's result, in the order of the plans, and say what became known.

        Raises:
            InvariantError: If the result is not this plan's, or names what the plan did not ask for.
        """
        plan = step.plan
        if result.step_id != plan.step_id or len(result.token_ids) != len(step.sampled):
            raise InvariantError(
                [
                    f"step {plan.step_id} with {len(step.sampled)} sampled rows was answered by the result of step "
                    f"{result.step_id} with {len(result.token_ids)} tokens"
                ]
            )
        self.rows.applied(plan.step_id)
        self._way.observe(plan, result)
        swapped = self._apply_swaps(plan, result) if plan.swap_out or plan.swap_in else []
        deltas = swapped + self._prompt_deltas(step, result.prompt_logprobs or []) + self._error_deltas(step, result)
        if self.kv.index is not None:
            self._commit(step)
        self._append_tokens(step, result, deltas, None if self.speculation is None else self._settle(step, result))
        return deltas

    def _settle(self, step: ScheduledStep, result: StepResult) -> dict[Sequence, Verified]:
        """Take what was verified of drafts, and let others find the blocks which that completed."""
        assert self.speculation is not None
        verified = self.speculation.settle(step, result)
        for sequence in verified:
            self.wake(self.in_flight.done(self.kv.commit(sequence, sequence.num_computed_tokens)))
        self.num_generated_tokens += sum(len(found.token_ids) for found in verified.values())
        return verified

    def _apply_swaps(self, plan: StepPlan, result: StepResult) -> list[TokenDelta]:
        arrived, lost = self.swapping.applied(plan, result)
        for sequence in arrived:
            self.run(sequence)
        self.lost(lost)
        still_running = (s.beams for s in arrived if s.status is SequenceStatus.RUNNING)
        groups = dict.fromkeys(group for group in still_running if group is not None)  # in order, unlike a set
        return [delta for group in groups for delta in self.beams.take_turn(group)]

    def lost(self, sequences: list[Sequence]) -> None:
        """Sequences lost what they had swapped: they compute it again."""
        self.wake(sequences)
        for group in dict.fromkeys(s.beams for s in sequences if s.beams is not None):
            self.beams.restart(group)

    def _commit(self, step: ScheduledStep) -> None:
        """Let others find the blocks that the step completed."""
        running = SequenceStatus.RUNNING
        for sequence, end in zip(step.sequences, step.ends, strict=True):
            if end >= sequence.next_commit and sequence.status is running and sequence.row in self.running:
                self.wake(self.in_flight.done(self.kv.commit(sequence, end)))

    def _append_tokens(
        self,
        step: ScheduledStep,
        result: StepResult,
        deltas: list[TokenDelta],
        verified: dict[Sequence, Verified] | None,
    ) -> None:
        add_delta = deltas.append
        finished = SequenceStatus.FINISHED
        logprobs = result.logprobs
        num_dropped = num_of_beams = 0
        for i, (sequence, token) in enumerate(zip(step.sampled, result.token_ids, strict=True)):
            if sequence.status is finished:
                num_dropped += 1
                continue
            if sequence.beams is not None:
                num_of_beams += 1
                deltas += self.beams.receive(sequence.beams, sequence, None if logprobs is None else logprobs[i])
                continue
            answer = sequence.answer
            answer.append(token)
            delta = TokenDelta(sequence.request_id, sequence.index, [token])
            if logprobs is not None and (found := logprobs[i]) is not None:
                delta.logprobs = [found]
            if verified and (before := verified.get(sequence)) is not None:
                before.begin(delta)
            if len(answer) == 1:
                delta.num_cached_tokens = sequence.num_cached_tokens or 0
            if len(answer) >= sequence.max_answer_tokens or token in sequence.stop_tokens:
                self._finish_if_due(sequence, delta)
            add_delta(delta)
        self.num_wasted_slots += num_dropped
        self.num_generated_tokens += len(step.sampled) - num_dropped - num_of_beams

    def _finish_if_due(self, sequence: Sequence, delta: TokenDelta) -> None:
        token = sequence.answer[-1]
        num_answer = len(sequence.answer)
        if sequence.max_answer_tokens == 0:  # only the prompt was asked for
            sequence.answer.clear()
            delta.token_ids = []
            delta.logprobs = None
            delta.finish_reason = FINISH_LENGTH
            self.num_generated_tokens -= 1
            if sequence.source.publish is not None:
                why = self._why_not_published(sequence.source.publish, sequence)
                if why is not None:
                    self.num_errors += 1
                    delta.finish_reason = FINISH_ERROR
                    delta.error = why
                self.end(sequence, keep=False)  # whole blocks are public, what comes after them is nobody's
                return
        elif token in sequence.stop_tokens and num_answer > sequence.min_answer_tokens:
            delta.finish_reason = FINISH_STOP
            delta.stop_reason = sequence.stop_tokens[token]
        elif num_answer == sequence.max_answer_tokens:
            delta.finish_reason = FINISH_LENGTH
        else:
            return
        self.end(sequence)

    def _why_not_published(self, name: str, sequence: Sequence) -> str | None:
        """Publish what a sequence has computed; why that is not done, if it is not."""
        others = [r.num_needed_blocks for i, r in self.requests.items() if i != sequence.request_id]
        num_left = self.kv.pool.num_blocks - len(set(sequence.block_ids()).union(*self.published))
        if others and max(others) > num_left:
            return (
                f"a request that is not finished may need {max(others)} KV blocks at once, and the text would leave "
                f"{num_left} of {self.kv.pool.num_blocks}; publish it when the request is finished"
            )
        if not self.published.keep(name, sequence):
            return "the text lost blocks before all of them were published; publish it again"
        return None

    def _error_deltas(self, step: ScheduledStep, result: StepResult) -> list[TokenDelta]:
        """End the sequences that failed alone; of a beam search all."""
        deltas: list[TokenDelta] = []
        if result.row_errors:
            by_row = dict(zip(step.plan.rows, step.sequences, strict=True))
            by_row |= dict(zip(step.plan.sample_rows, step.sampled, strict=True))
            for row, message in result.row_errors:
                sequence = by_row[row]
                if sequence.status is SequenceStatus.FINISHED:
                    continue
                self.num_errors += 1
                indices = [sequence.index]
                if sequence.beams is not None:
                    indices = list(range(sequence.source.sampling.n))
                    self.beams.end(sequence.beams)
                else:
                    self.end(sequence, keep=False)
                refusal = REFUSED_GRAMMAR if row in result.refused_rows else None
                deltas += [
                    TokenDelta(sequence.request_id, index, [], FINISH_ERROR, error=message, refusal=refusal)
                    for index in indices
                ]
        return deltas

    def _prompt_deltas(self, step: ScheduledStep, entries: list[PromptLogprobs]) -> list[TokenDelta]:
        """Logprobs of prompt positions that were not known before. A recomputation brings old ones again."""
        deltas: list[TokenDelta] = []
        for sequence in step.admitted:
            if sequence.num_prompt_logprobs == 0 and _wants_prompt_logprobs(sequence):
                sequence.num_prompt_logprobs = 1
                deltas.append(TokenDelta(sequence.request_id, sequence.index, [], prompt_logprobs=[None]))
        if entries:
            by_row = dict(zip(step.plan.rows, step.sequences, strict=True))
            for entry in entries:
                sequence = by_row[entry.row]
                if not _wants_prompt_logprobs(sequence):
                    continue
                num_known = sequence.num_prompt_logprobs - entry.start
                if num_known < 0:
                    raise InvariantError([f"prompt logprobs of row {entry.row} skip {-num_known} positions"])
                fresh = entry.positions[num_known:]
                if fresh:
                    sequence.num_prompt_logprobs += len(fresh)
                    deltas.append(TokenDelta(sequence.request_id, sequence.index, [], prompt_logprobs=[*fresh]))
                if sequence.num_prompt_logprobs == sequence.source.num_prompt_tokens:
                    # A recomputation need not score the prompt again.
                    sequence.sampling = msgspec.structs.replace(sequence.sampling, prompt_logprobs=None)
        return deltas


def _wants_prompt_logprobs(sequence: Sequence) -> bool:
    return sequence.sampling.prompt_logprobs is not None and sequence.status is not SequenceStatus.FINISHED


def _is_being_published(sequence: Sequence) -> bool:
    """Whether the plan in flight completes a text to publish: its blocks must still be there when that is applied."""
    return sequence.source.publish is not None and sequence.num_tokens == sequence.max_num_tokens
