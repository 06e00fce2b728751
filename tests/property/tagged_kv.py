"""A worker that computes nothing and notices everything.

Each slot of its KV memory holds a *tag* in place of keys and values: a hash of tenant, adapter and every token up to
and including its own, and the position. Attention reads no vectors, but checks the tag of every position it would
read. A freed block is poisoned. So a block used after it was freed, a missed chunk, a stale table entry or a row mixed
up with another becomes a failure that says so, in the step in which it happens.

The next token is a function of tag, seed, index and position, so what a request must get is known beforehand, whatever
the schedule (`expected_answer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.core.kv_spec import KVSpec
from octavo.core.step import PromptLogprobs, RowSetup, StepPlan, StepResult
from octavo.messages import EngineRequest, SamplingParams, TokenLogprobs

VOCAB = 23
EOS = 0
STOP = 1
POISON = None

Tag = tuple[int, int]


def mix(*values: int) -> int:
    """A hash that is the same in every process, as Python's own is for ints."""
    return hash(values) & 0xFFFFFFFFFFFF


def first_link(tenant: str, adapter: str | None) -> int:
    return mix(*tenant.encode(), -1, *(adapter or "").encode())


def next_token(
    link: int, seed: int, index: int, num_tokens: int, num_prompt: int, sampling: SamplingParams, eos: tuple[int, ...]
) -> int:
    """The token that follows `num_tokens` tokens whose last tag has `link`. -1: the scores are not numbers."""
    draw = mix(link, seed, index, num_tokens)
    if draw % 97 == 13:
        return -1
    token = draw // 97 % VOCAB
    if num_tokens - num_prompt < sampling.min_tokens:
        masked = (*(() if sampling.ignore_eos else eos), *sampling.stop_token_ids)
        while token in masked:
            token += 1
    return token


@dataclass
class Expected:
    token_ids: list[int]
    finish_reason: str
    stop_reason: int | None = None


def expected_answer(request: EngineRequest, index: int) -> Expected:
    """What sequence `index` of a request gets, by the definition of the parameters, one token after another."""
    sampling, tokens = request.sampling, list(request.token_ids)
    link = first_link(request.tenant, request.adapter)
    for token in tokens:
        link = mix(link, token)
    answer: list[int] = []
    limit = request.num_prompt_tokens + request.max_tokens
    while True:
        token = next_token(
            link, request.seed, index, len(tokens), request.num_prompt_tokens, sampling, request.eos_token_ids
        )
        if token == -1:
            return Expected(answer, "error")
        if request.max_tokens == 0:
            return Expected([], "length")
        tokens.append(token)
        answer.append(token)
        link = mix(link, token)
        if len(tokens) - request.num_prompt_tokens > sampling.min_tokens:
            if token in request.eos_token_ids and not sampling.ignore_eos:
                return Expected(answer, "stop")
            if token in sampling.stop_token_ids:
                return Expected(answer, "stop", token)
        if len(tokens) == limit:
            return Expected(answer, "length")


@dataclass
class Row:
    setup: RowSetup
    token_ids: list[int]
    links: list[int]
    """Hash of everything up to each known token."""
    num_computed: int = 0
    failed: bool = False
    tables: list[dict[int, int]] = field(default_factory=list)


class Handle:
    """Computes when asked for, or before: the worker may be early or late."""

    def __init__(self, compute: Callable[[], StepResult]) -> None:
        self._compute = compute
        self._result: StepResult | None = None

    def result(self) -> StepResult:
        if self._result is None:
            self._result = self._compute()
        return self._result


class TaggedExecutor:
    """Performs plans as `core.step` says, and fails on anything a real worker would silently get wrong.

    Args:
        kv_spec: Groups, windows, block size.
        num_blocks: The null block included.
        max_num_seqs: Rows.
        max_num_batched_tokens: Tokens in a plan.
        max_model_len: Tokens in a row.
    """

    def __init__(
        self, kv_spec: KVSpec, num_blocks: int, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int
    ) -> None:
        self.kv_spec = kv_spec
        self.num_blocks = num_blocks
        self.late = False
        """Compute a plan only when its result is asked for."""
        self.tenant_of_seed: dict[int, str] = {}
        self.plans: list[StepPlan] = []
        self.rows: dict[int, Row] = {}
        self._max = (max_num_seqs, max_num_batched_tokens, max_model_len)
        self._slots: list[list[Tag | None]] = [[POISON] * kv_spec.block_size for _ in range(num_blocks)]
        self._in_flight: Handle | None = None

    def poison(self, block_id: int) -> None:
        self._slots[block_id] = [POISON] * self.kv_spec.block_size

    def submit(self, plan: StepPlan) -> Handle:
        self._check(plan)
        self.plans.append(plan)
        before = self._in_flight

        def compute() -> StepResult:
            if before is not None:
                before.result()  # plans run in order
            return self._execute(plan)

        self._in_flight = Handle(compute)
        if not self.late:
            self._in_flight.result()
        return self._in_flight

    def close(self) -> None:
        pass

    def _check(self, plan: StepPlan) -> None:
        max_num_seqs, max_num_batched_tokens, _ = self._max
        assert plan.has_work, "a plan without work was submitted"
        assert len(plan.rows) == len(plan.num_new_tokens)
        assert len(set(plan.rows)) == len(plan.rows), "a row is in the batch twice"
        assert all(0 <= row < max_num_seqs for row in plan.rows), "no such row"
        assert all(count >= 1 for count in plan.num_new_tokens), "a scheduled row computes nothing"
        assert sum(plan.num_new_tokens) <= max_num_batched_tokens, "the token budget is exceeded"
        assert plan.sample_rows == [row for row in plan.rows if row in set(plan.sample_rows)], "not in batch order"
        assert plan.step_id == (self.plans[-1].step_id + 1 if self.plans else 1), "step ids are not consecutive"

    def _execute(self, plan: StepPlan) -> StepResult:
        for row_id in plan.released_rows:
            assert self.rows.pop(row_id, None) is not None, f"row {row_id} is released and was not set up"
        for setup in plan.setups:
            self._set_up(setup)
        for group, row_id, column, block_id in plan.table_growth:
            assert 0 <= block_id < self.num_blocks
            self.rows[row_id].tables[group][column] = block_id
        result = StepResult(plan.step_id, [], logprobs=[], prompt_logprobs=[], row_errors=[])
        self._write(plan)
        for row_id, count in zip(plan.rows, plan.num_new_tokens, strict=True):
            self._attend(row_id, count)
            self._report_prompt(row_id, count, result)
            self.rows[row_id].num_computed += count
        sampled = set(plan.sample_rows)
        for row_id in plan.rows:
            row = self.rows[row_id]
            is_complete = row.num_computed == len(row.token_ids)
            assert row.failed or (row_id in sampled) == is_complete, f"row {row_id}: sampled before its last token"
        for row_id in plan.sample_rows:
            self._sample(row_id, result)
        return result

    def _set_up(self, setup: RowSetup) -> None:
        assert setup.row not in self.rows, f"row {setup.row} is set up and was not released"
        link = first_link(self.tenant_of_seed[setup.seed], setup.adapter)
        links = []
        for token in setup.token_ids:
            link = mix(link, token)
            links.append(link)
        tables: list[dict[int, int]] = [{} for _ in self.kv_spec.groups]
        self.rows[setup.row] = Row(setup, list(setup.token_ids), links, tables=tables)

    def _slot(self, row: Row, group: int, position: int) -> tuple[int, int]:
        column, offset = divmod(position, self.kv_spec.block_size)
        return row.tables[group].get(column, 0), offset

    def _write(self, plan: StepPlan) -> None:
        """Write every row's tags before any row reads, as a layer does."""
        writers: dict[int, tuple[int, int]] = {}
        for row_id, count in zip(plan.rows, plan.num_new_tokens, strict=True):
            row = self.rows[row_id]
            end = row.num_computed + count
            assert end <= self._max[2], f"row {row_id} passes the context"
            assert row.failed or end <= len(row.token_ids), f"row {row_id} computes a token that nobody knows"
            for group in range(self.kv_spec.num_groups):
                for position in range(row.num_computed, min(end, len(row.token_ids))):
                    block_id, offset = self._slot(row, group, position)
                    assert block_id != 0, f"row {row_id} writes position {position} into the null block"
                    owner = writers.setdefault(block_id, (row_id, group))
                    assert owner == (row_id, group), f"block {block_id} is written by {owner} and {(row_id, group)}"
                    self._slots[block_id][offset] = (row.links[position], position)

    def _attend(self, row_id: int, count: int) -> None:
        row = self.rows[row_id]
        if row.failed:
            return
        start, end = row.num_computed, row.num_computed + count
        for group, kind in enumerate(self.kv_spec.groups):
            lowest = 0 if kind.window is None else max(0, start - kind.window + 1)
            for position in range(lowest, end):
                block_id, offset = self._slot(row, group, position)
                found, wanted = self._slots[block_id][offset], (row.links[position], position)
                assert found == wanted, (
                    f"row {row_id}, group {group}, position {position}: block {block_id} holds {found}, not {wanted}"
                )

    def _report_prompt(self, row_id: int, count: int, result: StepResult) -> None:
        row = self.rows[row_id]
        first, last = row.num_computed + 1, min(row.num_computed + count, row.setup.num_prompt_tokens - 1)
        if row.setup.sampling.prompt_logprobs is not None and first <= last:
            assert row.setup.sequence_index == 0
            assert result.prompt_logprobs is not None
            known = [logprob_at(position, row.token_ids[position]) for position in range(first, last + 1)]
            result.prompt_logprobs.append(PromptLogprobs(row_id, first, known))

    def _sample(self, row_id: int, result: StepResult) -> None:
        row = self.rows[row_id]
        setup = row.setup
        assert result.logprobs is not None and result.row_errors is not None
        token = -1
        if not row.failed:
            token = next_token(
                row.links[-1],
                setup.seed,
                setup.sequence_index,
                len(row.token_ids),
                setup.num_prompt_tokens,
                setup.sampling,
                setup.eos_token_ids,
            )
        if token == -1:
            row.failed = True
            result.row_errors.append((row_id, "scores are not numbers"))
            result.logprobs.append(None)
        else:
            result.logprobs.append(None if setup.sampling.logprobs is None else logprob_at(len(row.token_ids), token))
            row.token_ids.append(token)
            row.links.append(mix(row.links[-1], token))
        result.token_ids.append(token)


def logprob_at(position: int, token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -float(position), 1, [])
