"""The step that a server makes most often: everybody decodes one token.

From one such step to the next nothing changes but tokens and positions, so all other arrays are kept. What it computes
is what `ModelRunner` would compute the long way, to the bit.
"""

from __future__ import annotations

import time

import numpy as np

from octavo.backends.protocol import Array, Backend, Int32Array, Program, SampleBatch, StepBatch
from octavo.core.step import StepPlan, StepResult
from octavo.messages import TokenLogprobs
from octavo.worker.batch_state import BatchState
from octavo.worker.failures import explain_failures
from octavo.worker.grammar_rows import GrammarRows
from octavo.worker.sampler import sample_batch, token_logprobs


class SteadyDecode:
    """Runs plans in which every row computes one token and is sampled."""

    def __init__(self, backend: Backend, program: Program, state: BatchState, grammars: GrammarRows) -> None:
        self._backend = backend
        self._program = program
        self._state = state
        self._grammars = grammars
        self._listed: list[int] = []
        self._version = -1
        """`listed` and `version`: the rows, and the state's version, that the arrays below were made for."""

    def takes(self, plan: StepPlan) -> bool:
        """Whether a plan is of this kind. Beams are not: nothing is drawn for them."""
        rows = plan.rows
        return (
            rows == plan.sample_rows
            and not plan.sample_sources
            and not plan.num_drafts
            and plan.num_new_tokens.count(1) == len(rows)
            and not self._state.num_candidates
        )

    def run(self, plan: StepPlan) -> StepResult:
        """Forward and sample, as `ModelRunner` does; for plans that `takes` accepts."""
        started = time.perf_counter()
        state = self._state
        if plan.rows != self._listed or state.version != self._version:
            self._take_rows(plan.rows)
        rows = self._index
        positions = state.num_computed[rows]
        seq_lens = positions + 1
        batch = StepBatch(
            token_ids=state.tokens[rows, positions],
            positions=positions,
            batch_rows=self._rows,
            query_start_loc=self._query_start_loc,
            seq_lens=seq_lens,
            logits_tokens=self._logits_tokens,
        )
        logits: Array | None = None
        if self._takes_largest:
            tokens, logprobs = self._program.run_greedy(batch), None
        else:
            logits = self._program.run(batch)
            tokens, logprobs = self._sample(logits, seq_lens)
        state.num_computed[rows] = seq_lens
        result = StepResult(plan.step_id, tokens.tolist(), logprobs=logprobs)
        if min(result.token_ids) >= 0:
            state.tokens[rows, seq_lens] = tokens
            state.num_tokens[rows] = seq_lens + 1
        else:
            explain_failures(result, plan.rows, self._grammars, state, logits)
            good = tokens >= 0
            state.append(self._rows[good], tokens[good])
        result.forward_s = time.perf_counter() - started
        return result

    def _sample(self, logits: Array, seq_lens: Int32Array) -> tuple[Int32Array, list[TokenLogprobs | None] | None]:
        sampling, masks = self._sampling, None
        if sampling is None:
            masks = self._grammars.masks()
            sampling = sample_batch(self._state, self._rows, masks=masks)
        else:
            sampling.position = seq_lens  # a sampled row has computed all of its tokens, this step's included
        output = self._backend.sample(logits, sampling)
        if masks:
            self._grammars.accept(self._rows, output.token_ids)
        return output.token_ids, token_logprobs(output, sampling.num_logprobs)

    def _take_rows(self, rows: list[int]) -> None:
        count, state = len(rows), self._state
        self._listed, self._version = list(rows), state.version
        self._rows = np.array(rows, np.int32)
        self._index = np.array(rows, np.intp)  # what numpy indexes by without a conversion
        self._query_start_loc = np.arange(count + 1, dtype=np.int32)
        self._logits_tokens = np.arange(count, dtype=np.int32)
        self._takes_largest = bool(state.takes_largest[self._index].all())
        wishes = (state.stop_ids, state.bad_token_ids, self._grammars)
        changes = bool(state.has_penalties[self._index].any()) or any(row in w for w in wishes for row in rows)
        self._sampling: SampleBatch | None = None if changes else sample_batch(state, self._rows)
        """None where histories, bans or masks must be gathered anew for every token."""
