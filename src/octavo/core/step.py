"""The contract between the core and whoever computes: StepPlan, RowSetup, StepResult, Executor.

A worker performs a plan in this order: drop `released_rows`, take `setups`, write `table_growth` into the block
tables, swap out, erase, copy, swap in, forward, sample.

Written for depth 2, that is, a plan may be made while the one before it still runs:

* the input token of a decoding row is "the last one sampled for this row"; it lives in the worker, as does every
  row's progress (`num_computed_tokens` of its setup plus all `num_new_tokens` since);
* a row or block is released, reused or erased only after the last plan in flight that names it;
* a row that turns out to have finished wastes one slot; the worker computes it, and `apply` drops the result.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from octavo.core.kv_spec import KVSpec
from octavo.messages import SamplingParams, TokenLogprobs


class RowSetup(msgspec.Struct, array_like=True):
    """Everything a worker must know about a newly admitted row. Travels once per admission."""

    row: int
    token_ids: list[int]
    """Prompt, and after a preemption or resume also the tokens already generated."""
    num_prompt_tokens: int
    num_computed_tokens: int
    """Tokens whose KV is already in the row's blocks (a prefix hit); 0 otherwise."""
    sampling: SamplingParams
    seed: int
    sequence_index: int
    eos_token_ids: tuple[int, ...] = ()
    """Masked, like `sampling.stop_token_ids`, until `sampling.min_tokens` are generated."""
    adapter: str | None = None
    grammar_id: int | None = None


class StepPlan(msgspec.Struct, array_like=True):
    """One step's work, as ints and lists of ints. `rows`, `num_new_tokens` are parallel, in batch order."""

    step_id: int
    rows: list[int]
    num_new_tokens: list[int]
    sample_rows: list[int]
    """Rows, in batch order, whose last new token's logits are sampled."""
    setups: list[RowSetup]
    table_growth: list[tuple[int, int, int, int]]
    """(group, row, column, block id) entries to write into the block tables; block 0 is the null block."""
    released_rows: list[int]
    swap_out: list[tuple[int, int]] = []
    """(device block, host slot)."""
    erases: list[int] = []
    copies: list[tuple[int, int]] = []
    """(source block, destination block)."""
    swap_in: list[tuple[int, int]] = []
    """(host slot, device block)."""

    @property
    def has_work(self) -> bool:
        """Whether a worker must see this plan. A plan may hold no row and still have work."""
        return bool(self.rows or self.released_rows or self.erases or self.copies or self.swap_out or self.swap_in)


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Logprobs of a row's prompt tokens `start`, `start + 1`, ..., from one chunk."""

    row: int
    start: int
    positions: list[TokenLogprobs]


class StepResult(msgspec.Struct, array_like=True):
    """What a step computed. `token_ids` is parallel to the plan's `sample_rows`."""

    step_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None
    """Parallel to `token_ids`; None when no sampled row asked."""
    prompt_logprobs: list[PromptLogprobs] | None = None
    row_errors: list[tuple[int, str]] | None = None
    """Rows that failed alone (a NaN in their logits, say), with a sentence each; their token is -1."""


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step. Raises what the worker raised when the whole step failed."""
        ...


class Executor(Protocol):
    """Runs plans in the order given. `submit` may return before the work is done."""

    @property
    def kv_spec(self) -> KVSpec: ...
    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block 0 included."""
        ...

    def submit(self, plan: StepPlan) -> StepHandle: ...
    def close(self) -> None: ...
