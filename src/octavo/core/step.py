"""The contract between the core and whoever computes: StepPlan, RowSetup, StepResult, Executor.

A worker performs a plan in this order: drop `released_rows`, take `setups`, `forks` and `row_tokens`, write
`table_growth` into the block tables, discard host slots, swap out, erase, copy, swap in, forward, sample.

Written for depth 2, that is, a plan may be made while the one before it still runs:

* the input token of a decoding row is "the last one sampled for this row"; it lives in the worker, as does every
  row's progress (`num_computed_tokens` of its setup plus all `num_new_tokens` since);
* a row or block is released, reused or erased only after the last plan in flight that names it;
* a row that turns out to have finished wastes one slot; the worker computes it, and `apply` drops the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from octavo.core.kv_spec import KVSpec
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.structured import Grammar, Vocabulary


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
    """A grammar that the worker has compiled; what is sampled obeys it."""
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """Runs of tokens whose last one cannot be sampled after the others."""
    num_candidates: int = 0
    """Above 0 for a beam: sampling this row reports its `num_candidates` likeliest tokens as `logprobs`, from the
    processed scores and at least as many as `sampling.logprobs` asks for, and appends nothing. The core chooses; its
    choice comes back in `row_tokens` of a later plan."""


class RowFork(msgspec.Struct, array_like=True):
    """A row that begins as another one's twin.

    `row` gets a copy of everything that belongs to `source_row` (tokens, progress, parameters, block-table entries of
    all groups), and its own `sequence_index`. `row` is free, or was released by the same plan; `source_row` was set
    up before, or by the same plan. No KV is copied.
    """

    source_row: int
    row: int
    sequence_index: int


class StepPlan(msgspec.Struct, array_like=True):
    """One step's work, as ints and lists of ints. `rows`, `num_new_tokens` are parallel, in batch order."""

    step_id: int
    rows: list[int]
    num_new_tokens: list[int]
    sample_rows: list[int]
    """Rows whose next token is sampled. A row that is not in `rows` was forked by this plan from a row that finishes
    its prompt in it: it is sampled from that row's logits, and takes over its progress."""
    setups: list[RowSetup]
    table_growth: list[tuple[int, int, int, int]]
    """(group, row, column, block id) entries to write into the block tables; block 0 is the null block."""
    released_rows: list[int]
    swap_out: list[tuple[int, int]] = []
    """(device block, host slot)."""
    erases: list[int] = []
    """Freed blocks to zero. Some may be handed out again by this very plan."""
    copies: list[tuple[int, int]] = []
    """(source block, destination block)."""
    swap_in: list[tuple[int, int]] = []
    """(host slot, device block). The rows that wait for these blocks are set up by this plan and computed by a later
    one, when it is known that nothing was lost."""
    discards: list[int] = []
    """Host slots whose content nobody needs any more; zeroed where freed blocks are. May be reused by this plan."""
    forks: list[RowFork] = []
    row_tokens: list[tuple[int, int]] = []
    """(row, token) to append to rows with candidates."""
    sample_sources: list[int] = []
    """Parallel to `sample_rows`: the row in `rows` whose logits each uses. Empty when each uses its own."""
    num_drafts: list[int] = []
    """Parallel to `rows`: draft tokens that the worker may guess and compute after the row's last token. Their slots
    are bound. Empty when nobody may; rows with drafts are sampled, and were not forked by this plan."""

    @property
    def has_work(self) -> bool:
        """Whether a worker must see this plan. A plan may hold no row and still have work."""
        return bool(
            self.rows
            or self.released_rows
            or self.table_growth
            or self.erases
            or self.copies
            or self.swap_out
            or self.swap_in
            or self.discards
            or self.forks
            or self.row_tokens
        )


class PromptLogprobs(msgspec.Struct, array_like=True):
    """Logprobs of a row's prompt tokens `start`, `start + 1`, ..., from one chunk."""

    row: int
    start: int
    positions: list[TokenLogprobs]


class Drafted(msgspec.Struct, array_like=True):
    """What became of a row's drafts.

    The worker samples at the row's last token and at each draft, every time with the noise of that position. While
    the token sampled is the next draft, the one sampled there follows. KV of the drafts after that is void. Of every
    row that was granted drafts, the table entries are void past the last column with a token that stays computed.
    """

    row: int
    num_drafts: int
    """Tokens that were guessed and computed, at least one."""
    token_ids: list[int]
    """Tokens sampled after the one in `StepResult.token_ids`, at most `num_drafts`."""
    logprobs: list[TokenLogprobs] | None = None
    """Parallel to `token_ids`; None when the row did not ask."""


class StepResult(msgspec.Struct, array_like=True):
    """What a step computed. `token_ids` is parallel to the plan's `sample_rows`."""

    step_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprobs | None] | None = None
    """Parallel to `token_ids`; None when no sampled row asked."""
    prompt_logprobs: list[PromptLogprobs] | None = None
    row_errors: list[tuple[int, str]] | None = None
    """Rows that failed alone (a NaN in their logits, say), with a sentence each; their token is -1."""
    refused_rows: list[int] = []
    """Of `row_errors`, those whose own wishes leave nothing to sample."""
    failed_swap_out: list[int] = []
    """Host slots that did not take their block: nothing is in them."""
    failed_swap_in: list[int] = []
    """Device blocks that were not restored; what they hold is undefined."""
    forward_s: float = 0.0
    """Seconds that forward and sample took."""
    swap_s: float = 0.0
    """Seconds that swapping took."""
    drafted: list[Drafted] = []
    """Rows for which tokens were guessed."""
    draft_s: float = 0.0
    """Seconds of `forward_s` that guessing took."""


class StepHandle(Protocol):
    """A step under way."""

    def result(self) -> StepResult:
        """Wait for the step. Raises what the worker raised when the whole step failed."""
        ...


class Grammars(Protocol):
    """Compiles grammars where the matchers of rows will run. Safe to use from several threads."""

    def use_vocabulary(self, load: Callable[[], Vocabulary]) -> None:
        """Say where the vocabulary comes from; it is loaded for the first grammar."""
        ...

    def prepare(self, param: str) -> None:
        """Load the vocabulary if it is not there yet: the same for all grammars, and no part of compiling one.

        Raises:
            RequestError: Naming `param`, if there is none, or it cannot be used.
        """
        ...

    def compile(self, grammar: Grammar) -> int:
        """An id for `RowSetup.grammar_id`, good until `release`.

        Raises:
            RequestError: If it cannot be compiled within its limits, or nothing matches it.
        """
        ...

    def release(self, grammar_id: int) -> None:
        """Once for each `compile` that gave it."""
        ...


class Executor(Protocol):
    """Runs plans in the order given. `submit` may return before the work is done."""

    @property
    def kv_spec(self) -> KVSpec: ...
    @property
    def num_blocks(self) -> int:
        """Blocks in the pool, the null block 0 included."""
        ...

    @property
    def num_host_blocks(self) -> int:
        """Slots of one block each to swap to; 0 without a host tier."""
        ...

    def submit(self, plan: StepPlan) -> StepHandle: ...
    def close(self) -> None: ...
