"""A worker that computes nothing and notices everything.

Each slot of its KV memory holds a tag (see `tags`) in place of keys and values. Attention reads no vectors, but checks
the tag of every position it would read. So a block used after it was freed, a copy that was forgotten, a stale prefix,
a wrong swap slot, a missed chunk or a row mixed up with another becomes a failure that says so, in the step in which
it happens. Things that leave no wrong tag behind are checked when they are done: a write into a block that another
table names, too, a block taken that was not erased, a host slot overwritten.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from octavo.core.kv_spec import KVSpec
from octavo.core.step import Drafted, PromptLogprobs, RowFork, RowSetup, StepPlan, StepResult
from octavo.messages import EngineRequest
from property.tags import PUBLIC_SCOPE, VOCAB, candidates, chain, mix, next_token, own_scope, reported

ERASED = 0
"""Zeroed, or never written."""
POISON = -1
"""Freed, or lost in a transfer."""


class Failing:
    """The `first`-th call fails; with `forever`, all after it, too."""

    def __init__(self, first: int = 0, forever: bool = False) -> None:
        self.first = first
        self.forever = forever
        self.num_calls = 0

    def __call__(self) -> bool:
        self.num_calls += 1
        return bool(self.first) and (self.num_calls == self.first or (self.forever and self.num_calls > self.first))


class LostStepError(Exception):
    """A whole step failed in the worker."""


@dataclass
class Row:
    setup: RowSetup
    index: int
    request: EngineRequest
    token_ids: list[int]
    tags: list[int]
    """What the slot of each known token must hold."""
    num_computed: int
    tables: list[list[int]]
    """Per group, the block of each column."""
    failed: bool = False

    @property
    def num_answer(self) -> int:
        return len(self.token_ids) - self.setup.num_prompt_tokens


class Handle:
    """Computes when asked for, or before: the worker may be early or late."""

    def __init__(self, compute: Callable[[], StepResult]) -> None:
        self._compute = compute
        self._result: StepResult | None = None
        self._error: Exception | None = None

    def result(self) -> StepResult:
        if self._error is not None:
            raise self._error
        if self._result is None:
            try:
                self._result = self._compute()
            except Exception as error:
                self._error = error
                raise
        return self._result


@dataclass
class Events:
    """What plans asked for, counted."""

    chunks: int = 0
    mixed: int = 0
    windows_left: int = 0
    forks: int = 0
    twins_sampled: int = 0
    beam_tokens: int = 0
    copies: int = 0
    erases: int = 0
    idle_erases: int = 0
    swap_outs: int = 0
    swap_ins: int = 0
    discards: int = 0
    hits: int = 0
    partial_hits: int = 0
    public_reads: int = 0
    failed_puts: int = 0
    failed_gets: int = 0
    injected_row_errors: int = 0
    drafts: int = 0
    rejected_drafts: int = 0
    draft_columns_returned: int = 0


@dataclass
class TaggedExecutor:
    """Performs plans as `core.step` says, and fails on anything a real worker would silently get wrong."""

    kv_spec: KVSpec
    num_blocks: int
    """The null block included."""
    num_host_blocks: int = 0
    max_num_seqs: int = 1
    max_num_batched_tokens: int = 1
    max_model_len: int = 1
    erases_freed_blocks: bool = False
    late: bool = False
    """Compute a plan only when its result is asked for."""

    put_fails: Failing = field(default_factory=Failing)
    get_fails: Failing = field(default_factory=Failing)
    row_fails: Failing = field(default_factory=Failing)
    step_fails: Failing = field(default_factory=Failing)

    def __post_init__(self) -> None:
        self.events = Events()
        self.num_plans = 0
        self.num_computed_tokens = 0
        self.last_plan: StepPlan | None = None
        self.rows: dict[int, Row] = {}
        self.request_of_seed: dict[int, EngineRequest] = {}
        self.published_tags: set[int] = set()
        """Tags of every text that was ever published."""
        self.free_blocks: list[int] = []
        """Blocks that are free before the next plan is made: nobody may read them before they are written again."""
        self.lost_rows: set[tuple[int, int]] = set()
        """(seed, index) of rows made to fail by `row_fails`."""
        self.first_hits: dict[tuple[int, int], int] = {}
        """(seed, index) to the tokens that were there when the row was first set up."""
        self._slots = [[ERASED] * self.kv_spec.block_size for _ in range(self.num_blocks)]
        self._host: list[list[int] | None] = [None] * self.num_host_blocks
        self._failed_host_slots: set[int] = set()
        self._num_names = [0] * self.num_blocks
        """How often the tables of all rows name each block."""
        self._dirty: set[int] = set()
        """Blocks written since they were last poisoned or erased."""
        self._in_flight: Handle | None = None

    # ---- what the test tells it

    def expect(self, request: EngineRequest) -> None:
        """A request is about to be added; its seed is its own, or that of the request it resumes."""
        self.request_of_seed[request.seed] = request
        self.first_hits.pop((request.seed, request.first_index), None)
        if request.publish is not None:
            self.published_tags.update(chain(PUBLIC_SCOPE, request.token_ids))

    def remains(self) -> list[str]:
        """Device blocks and host slots that are not erased, one sentence each."""
        device = [i for i, slots in enumerate(self._slots) if any(slots)]
        host = [i for i, slots in enumerate(self._host) if slots is not None]
        return [f"block {i} is not erased" for i in device] + [f"host slot {i} is not discarded" for i in host]

    # ---- Executor

    def submit(self, plan: StepPlan) -> Handle:
        self._check(plan)
        self.num_plans += 1
        self.last_plan = plan
        for setup in plan.setups:
            self.first_hits.setdefault((setup.seed, setup.sequence_index), setup.num_computed_tokens)
        before, free_blocks = self._in_flight, self.free_blocks

        def compute() -> StepResult:
            if before is not None:
                before.result()  # plans run in order
            for block_id in self._dirty.intersection(free_blocks):
                self._poison(block_id)
            return self._execute(plan)

        self._in_flight = Handle(compute)
        if not self.late:
            with suppress(LostStepError):  # which the one who asks for the result will get
                self._in_flight.result()
        return self._in_flight

    def close(self) -> None:
        pass

    def _check(self, plan: StepPlan) -> None:
        forked = {fork.row for fork in plan.forks}
        assert plan.has_work, "a plan without work was submitted"
        assert plan.step_id == self.num_plans + 1, "step ids are not consecutive"
        assert len(plan.rows) == len(plan.num_new_tokens)
        assert len(set(plan.rows)) == len(plan.rows), "a row is in the batch twice"
        assert all(0 <= row < self.max_num_seqs for row in plan.rows), "no such row"
        assert all(count >= 1 for count in plan.num_new_tokens), "a scheduled row computes nothing"
        num_tokens = sum(plan.num_new_tokens) + sum(plan.num_drafts)
        assert num_tokens <= self.max_num_batched_tokens, "the token budget is exceeded"
        assert len(plan.num_drafts) in (0, len(plan.rows)), "drafts are granted to no row"
        for row, count, num_drafts in zip(plan.rows, plan.num_new_tokens, plan.num_drafts, strict=False):
            is_decoding = count == 1 and row in plan.sample_rows and row not in forked
            assert not num_drafts or is_decoding, f"row {row} is granted drafts and is not decoding"
        assert len(set(plan.sample_rows)) == len(plan.sample_rows), "a row is sampled twice"
        assert len(plan.sample_sources) in (0, len(plan.sample_rows)), "a sampled row has no source, or two"
        assert set(plan.sample_rows) <= forked | set(plan.rows), "a row is sampled that is neither computed nor forked"
        for row, source in zip(plan.sample_rows, plan.sample_sources or plan.sample_rows, strict=True):
            assert source in plan.rows, f"row {row} is sampled from row {source}, which is not computed"
            assert row == source or row not in plan.rows, f"row {row} is computed and sampled from row {source}"

    def _execute(self, plan: StepPlan) -> StepResult:
        if self.step_fails():
            raise LostStepError(f"step {plan.step_id}")
        result = StepResult(plan.step_id, [], logprobs=[], prompt_logprobs=[], row_errors=[])
        twins = self._change_rows(plan)
        self._move_blocks(plan, result)
        self._forward(plan, twins, result)
        self._pretend_to_take_time(plan, result)
        self._count(plan)
        return result

    @staticmethod
    def _pretend_to_take_time(plan: StepPlan, result: StepResult) -> None:
        """Swapping is cheap in some steps and dear in others, so that what is measured changes its mind."""
        result.forward_s = 1e-3 * (sum(plan.num_new_tokens) + (5 if plan.step_id % 40 < 20 else 0))
        result.forward_s += 5e-4 * sum(found.num_drafts for found in result.drafted)
        result.swap_s = (len(plan.swap_out) + len(plan.swap_in)) * (1e-4 if plan.step_id % 3 else 1e-1)

    # ---- rows and tables

    def _change_rows(self, plan: StepPlan) -> dict[int, int]:
        """Returns the source of each row forked by this plan."""
        for row_id in plan.released_rows:
            assert row_id in self.rows, f"row {row_id} is released and was not set up"
            for table in self.rows.pop(row_id).tables:
                for block_id in table:
                    self._num_names[block_id] -= 1
        for setup in plan.setups:
            self._set_up(setup)
        twins = {fork.row: fork.source_row for fork in plan.forks}
        for fork in plan.forks:
            self._fork(fork)
        for row_id, token in plan.row_tokens:
            row = self.rows[row_id]
            assert row.setup.num_candidates > 0, f"row {row_id} is given a token and has no candidates"
            assert row.num_computed == len(row.token_ids), f"row {row_id} is given a token and has computed too little"
            self._append(row, token)
            self.events.beam_tokens += 1
        for group, row_id, column, block_id in plan.table_growth:
            self._name(self.rows[row_id].tables[group], column, block_id)
        return twins

    def _set_up(self, setup: RowSetup) -> None:
        assert setup.row not in self.rows, f"row {setup.row} is set up and was not released"
        assert 0 <= setup.row < self.max_num_seqs, "no such row"
        # A beam that has reported may be swapped out and come back before the search has chosen.
        most = len(setup.token_ids) - (setup.num_candidates == 0)
        assert 0 <= setup.num_computed_tokens <= most, (
            f"row {setup.row} begins with {setup.num_computed_tokens} of {len(setup.token_ids)} tokens computed"
        )
        request = self.request_of_seed[setup.seed]
        assert setup.adapter == request.adapter
        tables: list[list[int]] = [[] for _ in self.kv_spec.groups]
        tags = chain(own_scope(request), setup.token_ids)
        index, num_computed = setup.sequence_index, setup.num_computed_tokens
        self.rows[setup.row] = Row(setup, index, request, list(setup.token_ids), tags, num_computed, tables)

    def _fork(self, fork: RowFork) -> None:
        assert fork.row not in self.rows, f"row {fork.row} is forked and was not released"
        assert 0 <= fork.row < self.max_num_seqs, "no such row"
        source = self.rows[fork.source_row]
        tables = [list(table) for table in source.tables]
        for table in tables:
            for block_id in table:
                self._num_names[block_id] += 1
        self.rows[fork.row] = Row(
            source.setup,
            fork.sequence_index,
            source.request,
            list(source.token_ids),
            list(source.tags),
            source.num_computed,
            tables,
            source.failed,
        )

    def _name(self, table: list[int], column: int, block_id: int) -> None:
        assert 0 <= block_id < self.num_blocks, f"there is no block {block_id}"
        table += [0] * (column + 1 - len(table))
        self._num_names[table[column]] -= 1
        self._num_names[block_id] += 1
        table[column] = block_id

    def _append(self, row: Row, token: int) -> None:
        row.tags += chain(row.tags[-1], [token], len(row.token_ids))
        row.token_ids.append(token)

    # ---- blocks

    def _move_blocks(self, plan: StepPlan, result: StepResult) -> None:
        """Discard, swap out, erase, copy, swap in."""
        self._swap_out(plan, result)
        assert not plan.erases or self.erases_freed_blocks, "blocks are erased and nobody asked for it"
        assert len(set(plan.erases)) == len(plan.erases), "a block is erased twice"
        for block_id in plan.erases:
            assert block_id != 0, "the null block is erased"
            self._slots[block_id] = [ERASED] * self.kv_spec.block_size
        self._dirty.difference_update(plan.erases)
        self._check_taken(plan)
        sources = {source for source, _ in plan.copies}
        targets = [target for _, target in plan.copies] + [block for _, block in plan.swap_in]
        assert len(set(targets)) == len(targets), "a block is filled twice"
        assert not sources & set(targets), "a block is copied from and filled by one plan"
        assert 0 not in sources and 0 not in targets, "the null block is copied"
        self._dirty.update(targets)
        for source, target in plan.copies:
            self._slots[target] = list(self._slots[source])
        self._swap_in(plan, result)

    def _swap_out(self, plan: StepPlan, result: StepResult) -> None:
        for slot in plan.discards:
            assert self._host[slot] is not None or slot in self._failed_host_slots, f"host slot {slot} is empty already"
            self._failed_host_slots.discard(slot)
            self._host[slot] = None
        for block_id, slot in plan.swap_out:
            assert self._host[slot] is None, f"host slot {slot} is overwritten"
            assert block_id != 0, "the null block is swapped out"
            self._failed_host_slots.discard(slot)
            if self.put_fails():
                self._failed_host_slots.add(slot)
                result.failed_swap_out.append(slot)
                self.events.failed_puts += 1
            else:
                self._host[slot] = list(self._slots[block_id])

    def _swap_in(self, plan: StepPlan, result: StepResult) -> None:
        for slot, block_id in plan.swap_in:
            content = self._host[slot]
            assert content is not None or slot in self._failed_host_slots, f"host slot {slot} is read and empty"
            if content is None or self.get_fails():
                result.failed_swap_in.append(block_id)
                self.events.failed_gets += 1
                content = [POISON] * self.kv_spec.block_size
            self._slots[block_id] = list(content)

    def _poison(self, block_id: int) -> None:
        """What is erased stays so."""
        self._dirty.discard(block_id)
        self._slots[block_id] = [ERASED if tag == ERASED else POISON for tag in self._slots[block_id]]

    def _check_taken(self, plan: StepPlan) -> None:
        """With erasure, a block that a row takes to write into holds nothing of whoever had it before."""
        if not self.erases_freed_blocks:
            return
        filled = {target for _, target in plan.copies} | {block for _, block in plan.swap_in}
        for group, row_id, column, block_id in plan.table_growth:
            is_hit = column * self.kv_spec.block_size < self.rows[row_id].num_computed and block_id not in filled
            if block_id != 0 and not is_hit and self.rows[row_id].tables[group][column] == block_id:
                assert not any(self._slots[block_id]), f"block {block_id} is taken and was not erased"

    # ---- the forward pass

    def _forward(self, plan: StepPlan, twins: dict[int, int], result: StepResult) -> None:
        drafts = self._draft(plan)
        counts = [count + drafts.get(row_id, 0) for row_id, count in zip(plan.rows, plan.num_new_tokens, strict=True)]
        # Every row writes before any row reads, as a layer does.
        for row_id, count in zip(plan.rows, counts, strict=True):
            self._write(row_id, count, plan, twins)
        for row_id, count in zip(plan.rows, counts, strict=True):
            self._attend(row_id, count)
        for row_id, count in zip(plan.rows, counts, strict=True):
            self._report_prompt(row_id, count, result)
            self.rows[row_id].num_computed += count
        sampled = set(plan.sample_rows)
        for row_id in plan.rows:
            row = self.rows[row_id]
            is_complete = row.num_computed == len(row.token_ids)
            assert row.failed or (row_id in sampled) == is_complete, f"row {row_id}: sampled before its last token"
        for row_id, source_id in zip(plan.sample_rows, plan.sample_sources or plan.sample_rows, strict=True):
            if row_id != source_id:
                self._take_over_progress(row_id, source_id, twins)
        for row_id in plan.sample_rows:
            if row_id in drafts:
                self._verify(row_id, drafts[row_id], result)
            else:
                self._sample(row_id, result)
        for row_id, num_granted in zip(plan.rows, plan.num_drafts, strict=False):
            if num_granted:
                self._return_columns(self.rows[row_id])

    # ---- drafts

    def _draft(self, plan: StepPlan) -> dict[int, int]:
        """Guess up to as many tokens as a row was granted, most of them right; returns how many. They are known to the
        row until they are verified."""
        drafts = {}
        for row_id, num_granted in zip(plan.rows, plan.num_drafts, strict=False):
            row = self.rows[row_id]
            setup, luck = row.setup, mix(row.tags[-1], plan.step_id)
            num_drafts = luck % (num_granted + 1)
            if row.failed or not num_drafts:
                continue
            drafts[row_id] = num_drafts
            for i in range(num_drafts):
                sampling, eos = setup.sampling, setup.eos_token_ids
                token = next_token(row.tags[-1], setup.seed, row.index, row.num_answer, sampling, eos)
                is_wrong = token == -1 or mix(luck, i) % 4 == 0
                self._append(row, (token + 1 + luck % (VOCAB - 1)) % VOCAB if is_wrong else token)
            self.events.drafts += num_drafts
        return drafts

    def _verify(self, row_id: int, num_drafts: int, result: StepResult) -> None:
        """Sample at the row's last token and at each draft that agrees with what was sampled before it."""
        row = self.rows[row_id]
        num_known = len(row.token_ids) - num_drafts
        guessed = row.token_ids[num_known:]
        del row.token_ids[num_known:], row.tags[num_known:]
        self._sample(row_id, result)
        found = Drafted(row_id, num_drafts, [], [])
        assert result.logprobs is not None and result.row_errors is not None
        for i, draft in enumerate(guessed):
            if row.failed or row.token_ids[num_known + i] != draft:
                break
            scratch = StepResult(result.step_id, [], logprobs=[])
            if self._choose(row, scratch) == -1:
                break  # which the next step will find again
            found.token_ids += row.token_ids[-1:]
            found.logprobs += scratch.logprobs or []
        if row.setup.sampling.logprobs is None:
            found.logprobs = None
        row.num_computed = num_known + len(found.token_ids)
        result.drafted.append(found)
        self.events.rejected_drafts += num_drafts - len(found.token_ids)

    def _return_columns(self, row: Row) -> None:
        """What held drafts alone is the row's no more."""
        num_columns = -(-row.num_computed // self.kv_spec.block_size)
        for table in row.tables:
            for block_id in table[num_columns:]:
                self._num_names[block_id] -= 1
                self.events.draft_columns_returned += 1
            del table[num_columns:]

    # ---- samples

    def _take_over_progress(self, row_id: int, source_id: int, twins: dict[int, int]) -> None:
        row, source = self.rows[row_id], self.rows[source_id]
        assert twins.get(row_id) == source_id, f"row {row_id} is sampled from row {source_id}, which is not its twin"
        assert row.token_ids == source.token_ids[: len(row.token_ids)], f"row {row_id} differs from row {source_id}"
        row.num_computed = source.num_computed
        self.events.twins_sampled += 1

    def _write(self, row_id: int, count: int, plan: StepPlan, twins: dict[int, int]) -> None:
        row = self.rows[row_id]
        start, end = row.num_computed, row.num_computed + count
        assert end <= self.max_model_len, f"row {row_id} passes the context"
        assert row.failed or end <= len(row.token_ids), f"row {row_id} computes a token that nobody knows"
        end = min(end, len(row.token_ids))
        size = self.kv_spec.block_size
        # Twins that are sampled from this row's logits name its blocks already and compute nothing.
        silent = [twin for twin, source in twins.items() if source == row_id and twin not in plan.rows]
        for table_group, table in enumerate(row.tables):
            for column in range(start // size, -(-end // size)):
                block_id = table[column] if column < len(table) else 0
                assert block_id != 0, f"row {row_id} writes column {column} of group {table_group}, which has no block"
                num_names = self._num_names[block_id]
                for twin in silent:
                    num_names -= sum(t.count(block_id) for t in self.rows[twin].tables)
                assert num_names == 1, f"row {row_id} writes into block {block_id}, which {num_names} tables name"
                low, high = max(start, column * size), min(end, (column + 1) * size)
                self._dirty.add(block_id)
                self._slots[block_id][low % size : low % size + high - low] = row.tags[low:high]

    def _attend(self, row_id: int, count: int) -> None:
        row = self.rows[row_id]
        if row.failed:
            return
        size, tags = self.kv_spec.block_size, row.tags
        start, end = row.num_computed, row.num_computed + count
        for kind, table in zip(self.kv_spec.groups, row.tables, strict=True):
            lowest = 0 if kind.window is None else max(0, start - kind.window + 1)
            for column in range(lowest // size, -(-end // size)):
                low, high = max(lowest, column * size), min(end, (column + 1) * size)
                block_id = table[column]
                found = self._slots[block_id][low % size : low % size + high - low]
                if found != tags[low:high]:
                    self._check_public(row_id, block_id, low, found)

    def _check_public(self, row_id: int, block_id: int, low: int, found: list[int]) -> None:
        """Where a row does not read what it would have written itself, it reads what was published."""
        row = self.rows[row_id]
        public = chain(PUBLIC_SCOPE, row.token_ids[: low + len(found)])
        for position, tag in enumerate(found, low):
            is_public = tag == public[position] and tag in self.published_tags and row.request.adapter is None
            assert is_public or tag == row.tags[position], (
                f"row {row_id}, position {position}: block {block_id} holds "
                f"{ {ERASED: 'nothing', POISON: 'poison'}.get(tag, 'another tag') }"
            )
        self.events.public_reads += 1

    def _report_prompt(self, row_id: int, count: int, result: StepResult) -> None:
        row = self.rows[row_id]
        first, last = row.num_computed + 1, min(row.num_computed + count, row.setup.num_prompt_tokens - 1)
        if row.setup.sampling.prompt_logprobs is not None and row.index == 0 and first <= last and not row.failed:
            assert result.prompt_logprobs is not None
            known = [reported(row.tags[i - 1], row.token_ids[i]) for i in range(first, last + 1)]
            result.prompt_logprobs.append(PromptLogprobs(row_id, first, known))

    def _sample(self, row_id: int, result: StepResult) -> None:
        row = self.rows[row_id]
        assert result.logprobs is not None and result.row_errors is not None
        if not row.failed and self.row_fails():
            row.failed = True
            self.lost_rows.add((row.setup.seed, row.index))
            self.events.injected_row_errors += 1
        token = -1
        if not row.failed:
            token = self._choose_beams(row, result) if row.setup.num_candidates else self._choose(row, result)
        if token == -1:
            row.failed = True
            result.row_errors.append((row_id, "scores are not numbers"))
            result.logprobs.append(None)
        result.token_ids.append(token)

    def _choose(self, row: Row, result: StepResult) -> int:
        assert result.logprobs is not None
        setup, tag = row.setup, row.tags[-1]
        token = next_token(tag, setup.seed, row.index, row.num_answer, setup.sampling, setup.eos_token_ids)
        if token != -1:
            result.logprobs.append(None if setup.sampling.logprobs is None else reported(tag, token))
            self._append(row, token)
        return token

    def _choose_beams(self, row: Row, result: StepResult) -> int:
        """Reports candidates and appends nothing."""
        assert result.logprobs is not None
        setup, tag = row.setup, row.tags[-1]
        top = candidates(tag, setup.num_candidates, row.num_answer, setup.sampling, setup.eos_token_ids)
        if top is None:
            return -1
        result.logprobs.append(reported(tag, top[0][0], top))
        return top[0][0]

    def _count(self, plan: StepPlan) -> None:
        events, size = self.events, self.kv_spec.block_size
        long_rows = sum(count > 1 for count in plan.num_new_tokens)
        self.num_computed_tokens += sum(plan.num_new_tokens)
        events.chunks += len(set(plan.rows) - set(plan.sample_rows))
        events.mixed += 0 < long_rows < len(plan.rows)
        events.windows_left += sum(entry[3] == 0 for entry in plan.table_growth)
        events.forks += len(plan.forks)
        events.copies += len(plan.copies)
        events.erases += len(plan.erases)
        events.idle_erases += bool(plan.erases) and not plan.rows
        events.swap_outs += len(plan.swap_out)
        events.swap_ins += len(plan.swap_in)
        events.discards += len(plan.discards)
        hits = [setup.num_computed_tokens for setup in plan.setups if setup.num_computed_tokens]
        events.hits += len(hits)
        events.partial_hits += sum(num % size != 0 for num in hits)
