"""What the next step computes, and what a computed step means."""

from __future__ import annotations

import msgspec

from octavo.core.admission import AdmissionPolicy, FirstComeFirstServed
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.preemption import LatestArrival, PreemptionPolicy
from octavo.core.quarantine import Quarantine, Retired
from octavo.core.request import NO_ROW, Request, Sequence, SequenceStatus
from octavo.core.step import PromptLogprobs, RowSetup, StepPlan, StepResult
from octavo.errors import InvariantError
from octavo.messages import FINISH_ERROR, FINISH_LENGTH, FINISH_STOP, TokenDelta


class ScheduledStep:
    """A plan, and whom its rows belong to."""

    __slots__ = ("admitted", "plan", "sampled", "sequences", "token_budget")

    def __init__(self, step_id: int, token_budget: int) -> None:
        self.plan = StepPlan(step_id, [], [], [], [], [], [])
        self.sequences: list[Sequence] = []
        """Parallel to `plan.rows`."""
        self.sampled: list[Sequence] = []
        """Parallel to `plan.sample_rows`."""
        self.admitted: list[Sequence] = []
        """Parallel to `plan.setups`."""
        self.token_budget = token_budget
        """Tokens the plan may still take."""

    def advance(self) -> None:
        """Move the chosen sequences forward by their new tokens, and sample those that have no more to compute."""
        plan, sampled = self.plan, self.sampled
        for sequence, num_new in zip(self.sequences, plan.num_new_tokens, strict=True):
            start = sequence.num_computed_tokens
            end = start + num_new
            sequence.last_start = start
            sequence.num_computed_tokens = end
            if end == sequence.num_tokens:
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
    they meet. Prefill, its chunks, decode and the recomputation after a preemption are all this rule.

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
        admission: AdmissionPolicy | None = None,
        preemption: PreemptionPolicy | None = None,
    ) -> None:
        self.kv = kv
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.requests: dict[int, Request] = {}
        """Everything that is not finished, by request id."""
        self.running: dict[int, Sequence] = {}
        """By row, in order of admission."""
        self.waiting: AdmissionPolicy = FirstComeFirstServed() if admission is None else admission
        self._preemption: PreemptionPolicy = LatestArrival() if preemption is None else preemption

        self.quarantine = Quarantine()
        self.free_rows = list(range(max_num_seqs - 1, -1, -1))
        self.released_rows: list[int] = []
        """Free rows that the next plan must name as released."""
        self._last_planned = 0
        self._last_applied = 0

        self.num_preemptions = 0
        self.num_prompt_tokens = 0
        self.num_generated_tokens = 0
        self.num_recomputed_tokens = 0
        self.num_wasted_slots = 0
        self.num_errors = 0

    @property
    def num_steps(self) -> int:
        """Plans made that had work."""
        return self._last_planned

    @property
    def has_work(self) -> bool:
        """Whether a plan made now may hold something."""
        return bool(self.running or self.released_rows or len(self.waiting))

    # ---- arrivals and departures

    def add(self, request_id: int, sequences: list[Sequence]) -> None:
        """Queue a request's sequences. The caller has checked that they can run and that their indices are new."""
        request = self.requests.setdefault(request_id, Request())
        for sequence in sequences:
            request.sequences[sequence.index] = sequence
            self.waiting.put(sequence)

    def end(self, sequence: Sequence) -> None:
        """End an unfinished sequence wherever it is; its row and blocks are free once no plan in flight names them."""
        if sequence.status is SequenceStatus.RUNNING:
            self._leave_row(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.move_to(SequenceStatus.FINISHED)
        request = self.requests[sequence.request_id]
        del request.sequences[sequence.index]
        if not request.sequences:
            del self.requests[sequence.request_id]

    # ---- planning

    def schedule(self) -> ScheduledStep:
        """Plan one forward pass.

        Running sequences come first, so a decode never waits for a new prompt; admission spends what is left of the
        token budget. A step in which somebody could not get a block admits nobody: the blocks just won back would go
        to the newcomer, and the next step would preempt again.
        """
        step = ScheduledStep(self._last_planned + 1, self.max_num_batched_tokens)
        everyone_fits = self._choose_running(step)
        plan = step.plan
        plan.released_rows = self.released_rows
        self.released_rows = []
        if everyone_fits:
            self._admit_waiting(step)
        if self.num_preemptions:
            self.num_recomputed_tokens += step.num_recomputed_tokens()
        step.advance()
        if plan.has_work:
            self._last_planned = plan.step_id
        return step

    def _choose_running(self, step: ScheduledStep) -> bool:
        """Choose how far running sequences go, in order. False if one of them lacked a block at first."""
        everyone_fits = True
        budget = step.token_budget
        choose, count = step.sequences.append, step.plan.num_new_tokens.append
        running = list(self.running.values())
        for i, sequence in enumerate(running):
            num_tokens = sequence.num_tokens
            if num_tokens == sequence.max_num_tokens or sequence.row == NO_ROW:
                continue  # its last token is being sampled, or it was just preempted
            num_new = num_tokens - sequence.num_computed_tokens
            if num_new > budget:
                # Never 0: nobody is admitted on an empty budget, so only the last admitted can be inside its prompt,
                # and everyone before it takes one token.
                num_new = budget
            end = sequence.num_computed_tokens + num_new
            if end > sequence.num_slots and not self.kv.grow(sequence, end, step.plan.table_growth):
                everyone_fits = False
                if not self._make_room(running, i, end):
                    break  # nobody younger may take the blocks it waits for
                self.kv.grow(sequence, end, step.plan.table_growth)
            budget -= num_new
            choose(sequence)
            count(num_new)
        step.token_budget = budget
        return everyone_fits

    def _make_room(self, running: list[Sequence], i: int, end: int) -> bool:
        """Preempt until `running[i]` can grow. False if it must wait for a plan in flight, or was preempted itself."""
        sequence = running[i]
        while (shortage := self.kv.shortage(sequence, end)) > 0:
            if shortage <= self.quarantine.num_blocks:
                return False
            victim = self._preemption.choose([s for s in running[i:] if s.status is SequenceStatus.RUNNING])
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, step: ScheduledStep) -> None:
        # A preempted sequence may still wait for a token from a plan in flight, but not here: the plan that preempted
        # it admits nobody, and the plan before that was applied before another is made.
        while len(self.waiting) and step.token_budget and self.free_rows:
            sequence = self.waiting.peek()
            num_new = min(sequence.num_tokens, step.token_budget)
            sequence.row = self.free_rows[-1]
            if not self.kv.admit(sequence, num_new, step.plan.table_growth):
                sequence.row = NO_ROW
                return  # admission is in order, so nobody behind may pass
            self._start(step, sequence)
            step.sequences.append(sequence)
            step.plan.num_new_tokens.append(num_new)
            step.token_budget -= num_new

    def _start(self, step: ScheduledStep, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        source = sequence.source
        if sequence.status is SequenceStatus.WAITING and sequence.index == source.first_index:
            self.num_prompt_tokens += source.num_prompt_tokens  # once, whatever n is
        sequence.move_to(SequenceStatus.RUNNING)
        self.running[self.free_rows.pop()] = sequence
        step.admitted.append(sequence)
        step.plan.setups.append(
            RowSetup(
                row=sequence.row,
                token_ids=sequence.token_ids,
                num_prompt_tokens=source.num_prompt_tokens,
                num_computed_tokens=0,
                sampling=sequence.sampling,
                seed=source.seed,
                sequence_index=sequence.index,
                eos_token_ids=source.eos_token_ids,
                adapter=source.adapter,
                grammar_id=source.grammar_id,
            )
        )

    def _preempt(self, sequence: Sequence) -> None:
        """Take a sequence's row and blocks; it computes its tokens again when it is next admitted."""
        sequence.num_lost_tokens = max(sequence.num_lost_tokens, sequence.num_computed_tokens)
        sequence.num_computed_tokens = sequence.last_start = 0
        self._leave_row(sequence)
        sequence.move_to(SequenceStatus.PREEMPTED)
        self.waiting.put(sequence)
        self.num_preemptions += 1

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
        self._last_applied = plan.step_id
        for retired in self.quarantine.take(plan.step_id):
            self._free(retired.row, retired.block_ids)
        deltas = self._prompt_deltas(step, result.prompt_logprobs or []) + self._error_deltas(step, result)
        self._append_tokens(step, result, deltas)
        return deltas

    def _append_tokens(self, step: ScheduledStep, result: StepResult, deltas: list[TokenDelta]) -> None:
        add_delta = deltas.append
        finished = SequenceStatus.FINISHED
        logprobs = result.logprobs
        num_dropped = 0
        for i, (sequence, token) in enumerate(zip(step.sampled, result.token_ids, strict=True)):
            if sequence.status is finished:
                num_dropped += 1
                continue
            answer = sequence.answer
            answer.append(token)
            delta = TokenDelta(sequence.request_id, sequence.index, [token])
            if logprobs is not None and (found := logprobs[i]) is not None:
                delta.logprobs = [found]
            if len(answer) >= sequence.max_answer_tokens or token in sequence.stop_tokens:
                self._finish_if_due(sequence, delta)
            add_delta(delta)
        self.num_wasted_slots += num_dropped
        self.num_generated_tokens += len(step.sampled) - num_dropped

    def _finish_if_due(self, sequence: Sequence, delta: TokenDelta) -> None:
        token = sequence.answer[-1]
        num_answer = len(sequence.answer)
        if sequence.max_answer_tokens == 0:  # only the prompt was asked for
            sequence.answer.clear()
            delta.token_ids = []
            delta.logprobs = None
            delta.finish_reason = FINISH_LENGTH
            self.num_generated_tokens -= 1
        elif token in sequence.stop_tokens and num_answer > sequence.min_answer_tokens:
            delta.finish_reason = FINISH_STOP
            delta.stop_reason = sequence.stop_tokens[token]
        elif num_answer == sequence.max_answer_tokens:
            delta.finish_reason = FINISH_LENGTH
        else:
            return
        self.end(sequence)

    def _error_deltas(self, step: ScheduledStep, result: StepResult) -> list[TokenDelta]:
        """End the sequences that failed alone."""
        deltas: list[TokenDelta] = []
        if result.row_errors:
            by_row = dict(zip(step.plan.rows, step.sequences, strict=True))
            for row, message in result.row_errors:
                sequence = by_row[row]
                if sequence.status is not SequenceStatus.FINISHED:
                    self.end(sequence)
                    self.num_errors += 1
                    deltas.append(
                        TokenDelta(sequence.request_id, sequence.index, [], finish_reason=FINISH_ERROR, error=message)
                    )
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

    # ---- rows and blocks

    def _leave_row(self, sequence: Sequence) -> None:
        row = sequence.row
        del self.running[row]
        sequence.row = NO_ROW
        block_ids = self.kv.detach(sequence)
        if self._last_planned > self._last_applied:
            self.quarantine.put(Retired(self._last_planned, row, block_ids))
        else:
            self._free(row, block_ids)

    def _free(self, row: int, block_ids: list[int]) -> None:
        self.kv.pool.release(block_ids)
        self.free_rows.append(row)
        self.released_rows.append(row)


def _wants_prompt_logprobs(sequence: Sequence) -> bool:
    return sequence.sampling.prompt_logprobs is not None and sequence.status is not SequenceStatus.FINISHED
