"""Performs StepPlans: block tables, batch arrays, forward, sample."""

from __future__ import annotations

import numpy as np

from octavo.backends.protocol import Array, Backend, Int32Array, KVMemory, Program, StepBatch
from octavo.core.step import PromptLogprobs, StepPlan, StepResult
from octavo.worker.batch_state import BatchState
from octavo.worker.sampler import logprobs_of, sample_batch, token_logprobs

NOT_FINITE = "the model's scores for this sequence are not finite numbers"


class ModelRunner:
    """One program over one KV memory, and the state of its rows. Plans are executed in the order they come."""

    def __init__(self, backend: Backend, program: Program, kv: KVMemory, state: BatchState) -> None:
        self._backend = backend
        self._program = program
        self._kv = kv
        self._state = state
        self._batch_index: Int32Array = np.zeros(len(state.num_tokens), np.int32)
        """Place of a row in the current batch; only entries of the batch's own rows are read."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Do everything `core.step` lists, in its order."""
        self._prepare(plan)
        if not plan.rows:
            return StepResult(plan.step_id, [])
        rows = np.array(plan.rows, np.int32)
        counts = np.array(plan.num_new_tokens, np.int32)
        sampled = np.array(plan.sample_rows, np.int32)
        batch, prompt_tokens = self._step_batch(rows, counts, sampled)
        logits = self._program.run(batch)
        self._state.num_computed[rows] += counts
        prompt_logprobs = None
        if prompt_tokens is not None:
            prompt_logprobs = self._prompt_logprobs(batch, logits, prompt_tokens)
            last = batch.query_start_loc[self._batch_index[sampled] + 1] - 1
            logits = logits[np.searchsorted(batch.logits_tokens, last)]
        return self._sample(plan, logits, sampled, prompt_logprobs)

    def _prepare(self, plan: StepPlan) -> None:
        state, kv = self._state, self._kv
        for row in plan.released_rows:
            state.release(row)
        for setup in plan.setups:
            state.set_up(setup)
        if plan.table_growth:
            group, row, column, block = np.array(plan.table_growth, np.int32).T
            kv.block_tables[group, row, column] = block
        if plan.swap_out or plan.swap_in:
            raise ValueError("the plan swaps blocks, but this worker has no tier to swap to")
        if plan.erases:
            kv.erase_blocks(plan.erases)
        if plan.copies:
            kv.copy_blocks(plan.copies)

    def _step_batch(
        self, rows: Int32Array, counts: Int32Array, sampled: Int32Array
    ) -> tuple[StepBatch, Int32Array | None]:
        """The step's arrays, and the tokens whose logits are wanted for the sake of prompt logprobs, if any."""
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
        last = query_start_loc[self._batch_index[sampled] + 1] - 1
        prompt_tokens = None
        if (state.num_prompt_logprobs[rows] >= 0).any():
            wanted = (state.num_prompt_logprobs[token_rows] >= 0) & (positions + 1 < state.num_prompt[token_rows])
            if wanted.any():
                prompt_tokens = np.flatnonzero(wanted).astype(np.int32)
                last = np.union1d(last, prompt_tokens).astype(np.int32)
        batch = StepBatch(
            token_ids=state.tokens[token_rows, positions],
            positions=positions,
            batch_rows=rows,
            query_start_loc=query_start_loc,
            seq_lens=starts + counts,
            logits_tokens=last,
        )
        return batch, prompt_tokens

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

    def _sample(
        self, plan: StepPlan, logits: Array, rows: Int32Array, prompt_logprobs: list[PromptLogprobs] | None
    ) -> StepResult:
        if not len(rows):
            return StepResult(plan.step_id, [], prompt_logprobs=prompt_logprobs)
        batch = sample_batch(self._state, rows)
        output = self._backend.sample(logits, batch)
        tokens = output.token_ids
        bad = tokens < 0
        errors = None
        if bad.any():
            errors = [(row, NOT_FINITE) for row in rows[bad].tolist()]
            rows, tokens = rows[~bad], tokens[~bad]
        self._state.append(rows, tokens)
        return StepResult(
            plan.step_id,
            output.token_ids.tolist(),
            logprobs=token_logprobs(output, batch.num_logprobs),
            prompt_logprobs=prompt_logprobs,
            row_errors=errors,
        )
