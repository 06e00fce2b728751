"""Performs StepPlans: block tables, batch arrays, forward, sample."""

from __future__ import annotations

import time

import numpy as np

from octavo.backends.protocol import Array, Backend, Int32Array, KVMemory, Program, StepBatch, TokenMask
from octavo.core.step import Drafted, PromptLogprobs, StepPlan, StepResult
from octavo.messages import TokenLogprobs
from octavo.worker.batch_state import BatchState
from octavo.worker.beam_candidates import beam_candidates
from octavo.worker.drafter import Drafter
from octavo.worker.failures import explain_failures
from octavo.worker.grammar_rows import GrammarRows
from octavo.worker.grammar_store import GrammarStore
from octavo.worker.sampler import logprobs_of, sample_batch, token_logprobs
from octavo.worker.steady_decode import SteadyDecode
from octavo.worker.swapper import Swapper
from octavo.worker.tier_store import HostTier, TierStore
from octavo.worker.verify import Drafts, draft


class ModelRunner:
    """One program over one KV memory, and the state of its rows. Plans are executed in the order they come.

    Without a `host_tier` there is nothing to swap to, and a plan that swaps is refused. Without a `drafter` nothing is
    guessed, whatever is granted.
    """

    def __init__(
        self,
        backend: Backend,
        program: Program,
        kv: KVMemory,
        state: BatchState,
        host_tier: TierStore[int] | None = None,
        drafter: Drafter | None = None,
        grammars: GrammarStore | None = None,
    ) -> None:
        self._backend = backend
        self._program = program
        self._kv = kv
        self._state = state
        self._swapper = Swapper(kv, HostTier(0, kv.shape.bytes_per_block) if host_tier is None else host_tier)
        self._drafter = drafter
        self._grammars = GrammarRows(grammars, state)
        self._steady = SteadyDecode(backend, program, state, self._grammars)
        self._batch_index: Int32Array = np.zeros(len(state.num_tokens), np.int32)
        """Place of a row in the current batch; only entries of the batch's own rows are read."""
        kv.expect(0)
        self._masks: dict[int, TokenMask] = {}
        """What the grammars of the rows being sampled allow."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Do everything `core.step` lists, in its order."""
        self._change_rows(plan)
        swap = self._move_blocks(plan)
        if self._grammars:
            self._grammars.begin(plan.sample_rows)
        if not plan.rows:
            result = StepResult(plan.step_id, [])
        elif self._steady.takes(plan):
            result = self._steady.run(plan)
        else:
            result = self._compute(plan)
        if swap is not None:
            result.failed_swap_out, result.failed_swap_in, result.swap_s = swap
        return result

    def _change_rows(self, plan: StepPlan) -> None:
        state, tables = self._state, self._kv.block_tables
        for row in plan.released_rows:
            state.release(row)
            self._grammars.release(row)
            if self._drafter is not None:
                self._drafter.forget(row)
        for setup in plan.setups:
            state.set_up(setup)
            self._grammars.set_up(setup)
        for fork in plan.forks:
            state.fork(fork)
            self._grammars.fork(fork)
            tables[:, fork.row] = tables[:, fork.source_row]
        for row, token in plan.row_tokens:
            state.append(np.array([row], np.int32), np.array([token], np.int32))
        if plan.table_growth:
            group, row, column, block = np.array(plan.table_growth, np.int32).T
            tables[group, row, column] = block
            self._kv.expect(int(block.max()))

    def _move_blocks(self, plan: StepPlan) -> tuple[list[int], list[int], float] | None:
        """Returns slots and blocks whose swap failed and the seconds that swapping took; None without swaps."""
        swapper, kv = self._swapper, self._kv
        swaps = bool(plan.swap_out or plan.swap_in)
        if plan.discards:
            swapper.discard(plan.discards)
        started = time.perf_counter()
        failed_out = swapper.swap_out(plan.swap_out) if plan.swap_out else []
        swap_s = time.perf_counter() - started
        if plan.erases:
            kv.erase_blocks(plan.erases)
        if plan.copies:
            kv.copy_blocks(plan.copies)
        if not swaps:
            return None
        started = time.perf_counter()
        failed_in = swapper.swap_in(plan.swap_in)
        return failed_out, failed_in, swap_s + time.perf_counter() - started

    def _compute(self, plan: StepPlan) -> StepResult:
        started = time.perf_counter()
        rows = np.array(plan.rows, np.int32)
        counts = np.array(plan.num_new_tokens, np.int32)
        sampled = np.array(plan.sample_rows, np.int32)
        sources = np.array(plan.sample_sources, np.int32) if plan.sample_sources else sampled
        drafts, draft_s = None, 0.0
        if plan.num_drafts and self._drafter is not None:
            drafts, draft_s = draft(self._drafter, plan, rows, sampled)
            counts = counts if drafts is None else counts + drafts.counts
        batch, last, prompt_tokens = self._step_batch(rows, counts, sources, drafts, shared=sources is not sampled)
        if drafts is None and batch.logits_tokens is last and self._state.takes_largest[sampled].all():
            tokens = self._program.run_greedy(batch)
            self._advance(rows, counts, sampled, sources)
            result = self._result(plan, self._append(sampled, tokens))
        else:
            logits = self._program.run(batch)
            self._advance(rows, counts, sampled, sources)
            prompt_logprobs = None
            if prompt_tokens is not None:
                prompt_logprobs = self._prompt_logprobs(batch, logits, prompt_tokens)
            if batch.logits_tokens is not last:
                logits = logits[np.searchsorted(batch.logits_tokens, last)]
            result = self._sample(plan, logits, sampled, drafts)
            result.prompt_logprobs = prompt_logprobs
        result.forward_s, result.draft_s = time.perf_counter() - started, draft_s
        return result

    def _advance(self, rows: Int32Array, counts: Int32Array, sampled: Int32Array, sources: Int32Array) -> None:
        """The rows have computed so many tokens; a row sampled from another's has computed what that one has."""
        computed = self._state.num_computed
        computed[rows] += counts
        if sources is not sampled:
            computed[sampled] = computed[sources]

    def _step_batch(
        self, rows: Int32Array, counts: Int32Array, sources: Int32Array, drafts: Drafts | None, *, shared: bool
    ) -> tuple[StepBatch, Int32Array, Int32Array | None]:
        """The step's arrays, the tokens to sample at, and those wanted for prompt logprobs, if any.

        Sampled are each source's last token, and before it those that its drafts follow. `logits_tokens` is the very
        array of these unless more is wanted or, as `shared` says, one may come twice.
        """
        state = self._state
        starts = state.num_computed[rows]
        query_start_loc = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        self._batch_index[rows] = np.arange(len(rows), dtype=np.int32)
        if query_start_loc[-1] == len(rows):  # one token each: the steady state of decoding
            token_rows, positions = rows, starts
        else:
            token_rows = np.repeat(rows, counts)
            offsets = np.repeat(starts - query_start_loc[:-1], counts)
            positions = np.arange(query_start_loc[-1], dtype=np.int32) + offsets
        last = query_start_loc[self._batch_index[sources] + 1] - 1
        if drafts is not None:
            last = drafts.spread(last)
        logits_tokens = np.unique(last) if shared else last
        prompt_tokens = None
        if (state.num_prompt_logprobs[rows] >= 0).any():
            wanted = (state.num_prompt_logprobs[token_rows] >= 0) & (positions + 1 < state.num_prompt[token_rows])
            if wanted.any():
                prompt_tokens = np.flatnonzero(wanted).astype(np.int32)
                logits_tokens = np.union1d(last, prompt_tokens).astype(np.int32)
        batch = StepBatch(
            token_ids=state.tokens[token_rows, positions],
            positions=positions,
            batch_rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=starts + counts,
            logits_tokens=logits_tokens,
        )
        return batch, last, prompt_tokens

    def _prompt_logprobs(self, batch: StepBatch, logits: Array, tokens: Int32Array) -> list[PromptLogprobs]:
        """The logits at position p score the prompt's token p + 1."""
        state = self._state
        sequence = np.searchsorted(batch.query_start_loc, tokens, side="right") - 1
        found = []
        for i in np.unique(sequence):
            row, own = int(batch.batch_rows[i]), tokens[sequence == i]
            first, count = int(batch.positions[own[0]]) + 1, len(own)
            wanted = (logits[at] for at in np.searchsorted(batch.logits_tokens, own).tolist())
            next_tokens = state.tokens[row, first : first + count].tolist()
            k = int(state.num_prompt_logprobs[row])
            found.append(PromptLogprobs(row, first, logprobs_of(wanted, next_tokens, k)))
        return found

    def _sample(self, plan: StepPlan, logits: Array, rows: Int32Array, drafts: Drafts | None) -> StepResult:
        if not len(rows):
            return StepResult(plan.step_id, [])
        self._masks = self._grammars.masks()
        beams = self._state.num_candidates
        choose = self._choose if not beams or beams.keys().isdisjoint(plan.sample_rows) else self._choose_beside_beams
        if drafts is None:
            tokens, logprobs = choose(logits, rows)
            return self._result(plan, tokens, logprobs, logits=logits)
        return self._result(plan, *drafts.settle(self._state, *choose(logits, drafts.rows, drafts.ahead)))

    def _result(
        self,
        plan: StepPlan,
        tokens: list[int],
        logprobs: list[TokenLogprobs | None] | None = None,
        drafted: list[Drafted] | None = None,
        *,
        logits: Array | None = None,
    ) -> StepResult:
        """`logits`: of the tokens, if they are at hand."""
        result = StepResult(plan.step_id, tokens, logprobs=logprobs, drafted=drafted or [])
        if min(tokens, default=0) < 0:
            explain_failures(result, plan.sample_rows, self._grammars, self._state, logits)
        return result

    def _append(self, rows: Int32Array, tokens: Int32Array) -> list[int]:
        """Add each row's token, but not -1, which says that there is none."""
        good = tokens >= 0
        self._state.append(rows[good], tokens[good])
        listed: list[int] = tokens.tolist()
        return listed

    def _choose(
        self, logits: Array, rows: Int32Array, ahead: Int32Array | None = None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """Choose a token for each row, -1 where that failed, and append it unless it is among drafts."""
        batch = sample_batch(self._state, rows, ahead, self._masks)
        output = self._backend.sample(logits, batch)
        tokens = self._append(rows, output.token_ids) if ahead is None else output.token_ids.tolist()
        if self._masks:
            self._grammars.accept(rows, output.token_ids)
        return tokens, token_logprobs(output, batch.num_logprobs)

    def _choose_beside_beams(
        self, logits: Array, rows: Int32Array, ahead: Int32Array | None = None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None]:
        """As `_choose`; for a beam the likeliest token and its candidates, and nothing is appended."""
        counts = [self._state.num_candidates.get(row, 0) for row in rows.tolist()]
        is_beam = np.array(counts) > 0
        tokens: Int32Array = np.full(len(rows), -1, np.int32)
        logprobs: list[TokenLogprobs | None] = [None] * len(rows)
        if not is_beam.all():
            others = np.flatnonzero(~is_beam).tolist()
            tokens[others], found = self._choose(logits[others], rows[others], None if ahead is None else ahead[others])
            for i, entry in zip(others, found or [], strict=False):
                logprobs[i] = entry
        beams = np.flatnonzero(is_beam).tolist()
        batch = sample_batch(self._state, rows[beams])
        for i, entry in zip(beams, beam_candidates(logits[beams], batch, [counts[i] for i in beams]), strict=True):
            logprobs[i] = entry
            tokens[i] = -1 if entry is None else entry.token_id
        return tokens.tolist(), logprobs
