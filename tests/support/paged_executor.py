"""An executor that keeps KV memory as the core's plans arrange it, and notices when a row reads anything but its own.

A slot holds the *link* of the token it was computed from: a hash of every token up to there. What a row attends to is
compared with what its tokens say. The next token, and a beam's candidates, are functions of the last link, so the right
answers are known without the core: `expected_tokens`, `expected_beams`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.core.beam import BeamSearch, Hypothesis
from octavo.core.kv_spec import KVSpec
from octavo.core.request import stop_tokens_of
from octavo.core.step import RowSetup, StepPlan, StepResult
from octavo.messages import EngineRequest, TokenLogprobs
from support.core_scripts import Handle, ScriptedExecutor

VOCAB = 40
LOST = -7
"""What a block holds that could not be restored."""


def mix(*values: int) -> int:
    return hash(values) & 0xFFFFFFFFFFFF


def links_of(token_ids: Sequence[int]) -> list[int]:
    links, link = [], 1
    for token in token_ids:
        link = mix(link, token)
        links.append(link)
    return links


def next_token(token_ids: Sequence[int], seed: int, index: int) -> int:
    return mix(links_of(token_ids)[-1], seed, index) % VOCAB


def candidates_after(link: int) -> list[tuple[int, float]]:
    """Every token with a logprob, best first."""
    found = [(token, -(mix(link, token) % 997 + 1) / 64) for token in range(VOCAB)]
    return sorted(found, key=lambda entry: -entry[1])


def expected_tokens(request: EngineRequest, index: int = 0) -> list[int]:
    """The answer of a request that runs into `max_tokens`, or a stop token."""
    tokens, stops = list(request.token_ids), stop_tokens_of(request)
    while len(tokens) < request.num_prompt_tokens + request.max_tokens:
        tokens.append(next_token(tokens, request.seed, index))
        if tokens[-1] in stops and len(tokens) - request.num_prompt_tokens > request.sampling.min_tokens:
            break
    return tokens[len(request.token_ids) :]


def expected_beams(request: EngineRequest) -> list[Hypothesis]:
    """The answers of a beam search that has the machine to itself."""
    sampling = request.sampling
    search = BeamSearch(
        sampling.beam_width or 1,
        max_tokens=request.max_tokens,
        stop_tokens=stop_tokens_of(request),
        length_penalty=sampling.length_penalty,
        early_stopping=sampling.early_stopping,
        num_logprobs=sampling.logprobs or 0,
    )
    while not search.is_finished:
        beams = [search.token_ids(beam) for beam in range(search.num_running)]
        tops = [candidates_after(links_of(request.token_ids + beam)[-1]) for beam in beams]
        search.advance([top[: search.num_candidates] for top in tops])
    return search.results()[: sampling.n]


class Row:
    def __init__(self, setup: RowSetup, num_groups: int) -> None:
        self.setup = setup
        self.index = setup.sequence_index
        self.token_ids = list(setup.token_ids)
        self.num_computed = setup.num_computed_tokens
        self.tables: list[dict[int, int]] = [{} for _ in range(num_groups)]

    def twin(self, index: int) -> Row:
        row = Row(self.setup, len(self.tables))
        row.index, row.token_ids, row.num_computed = index, self.token_ids.copy(), self.num_computed
        row.tables = [table.copy() for table in self.tables]
        return row


class PagedExecutor(ScriptedExecutor):
    """Performs plans as `core.step` says, and fails where a real worker would silently compute something else.

    `fail(plan)` may say what went wrong with a plan's swaps and rows: (slots not written, blocks not restored, rows in
    error).
    """

    def __init__(self, kv_spec: KVSpec | None = None, num_blocks: int = 65, num_host_blocks: int = 0) -> None:
        super().__init__(kv_spec, num_blocks, num_host_blocks=num_host_blocks)
        self.rows: dict[int, Row] = {}
        self.memory: list[list[int | None]] = [[None] * self.kv_spec.block_size for _ in range(num_blocks)]
        self.host: dict[int, list[int | None]] = {}
        self.fail: Callable[[StepPlan], tuple[list[int], list[int], list[int]]] = lambda plan: ([], [], [])
        self.answer = self._perform
        self.forward_s = self.swap_s = 0.0

    def submit(self, plan: StepPlan) -> Handle:
        assert plan.has_work and plan.step_id == len(self.plans) + 1
        return super().submit(plan)

    def _perform(self, plan: StepPlan) -> StepResult:
        failed_out, failed_in, failed_rows = self.fail(plan)
        for row in plan.released_rows:
            del self.rows[row]
        for setup in plan.setups:
            assert setup.row not in self.rows, f"row {setup.row} was not released"
            self.rows[setup.row] = Row(setup, self.kv_spec.num_groups)
        for fork in plan.forks:
            assert fork.row not in self.rows, f"row {fork.row} was not released"
            self.rows[fork.row] = self.rows[fork.source_row].twin(fork.sequence_index)
        for row, token in plan.row_tokens:
            assert self.rows[row].setup.num_candidates
            self.rows[row].token_ids.append(token)
        for group, row, column, block_id in plan.table_growth:
            self.rows[row].tables[group][column] = block_id
        self._move(plan, failed_out, failed_in)
        for row, count in zip(plan.rows, plan.num_new_tokens, strict=True):
            self._write(self.rows[row], count)
        for row, count in zip(plan.rows, plan.num_new_tokens, strict=True):
            self._read(row, count)
        return self._sample(plan, failed_out, failed_in, failed_rows)

    def _move(self, plan: StepPlan, failed_out: list[int], failed_in: list[int]) -> None:
        for slot in plan.discards:
            self.host.pop(slot, None)
        for block_id, slot in plan.swap_out:
            assert slot not in self.host, f"host slot {slot} is in use"
            if slot not in failed_out:
                self.host[slot] = self.memory[block_id].copy()
        for block_id in plan.erases:
            self.memory[block_id] = [None] * self.kv_spec.block_size
        for source, destination in plan.copies:
            self.memory[destination] = self.memory[source].copy()
        for slot, block_id in plan.swap_in:
            kept = self.host[slot]
            self.memory[block_id] = [LOST] * len(kept) if block_id in failed_in else kept.copy()

    def _slot(self, row: Row, group: int, position: int) -> tuple[list[int | None], int]:
        column, offset = divmod(position, self.kv_spec.block_size)
        block_id = row.tables[group].get(column, 0)
        assert block_id, f"position {position} of group {group} has no block"
        return self.memory[block_id], offset

    def _write(self, row: Row, count: int) -> None:
        assert row.num_computed + count <= len(row.token_ids), "a token is computed that nobody knows"
        links = links_of(row.token_ids)
        for group in range(self.kv_spec.num_groups):
            for position in range(row.num_computed, row.num_computed + count):
                slots, offset = self._slot(row, group, position)
                slots[offset] = mix(links[position], group)

    def _read(self, row_id: int, count: int) -> None:
        row = self.rows[row_id]
        start, end = row.num_computed, row.num_computed + count
        links = links_of(row.token_ids)
        for group, kind in enumerate(self.kv_spec.groups):
            lowest = 0 if kind.window is None else max(0, start - kind.window + 1)
            for position in range(lowest, end):
                slots, offset = self._slot(row, group, position)
                wanted = mix(links[position], group)
                assert slots[offset] == wanted, f"row {row_id} reads position {position} of group {group}: not its own"
        row.num_computed = end

    def _sample(
        self, plan: StepPlan, failed_out: list[int], failed_in: list[int], failed_rows: list[int]
    ) -> StepResult:
        sources = plan.sample_sources or plan.sample_rows
        tokens: list[int] = []
        logprobs: list[TokenLogprobs | None] = []
        for row_id, source_id in zip(plan.sample_rows, sources, strict=True):
            row, source = self.rows[row_id], self.rows[source_id]
            row.num_computed = source.num_computed
            assert row.num_computed == len(row.token_ids)
            if row.setup.num_candidates:
                top = candidates_after(links_of(row.token_ids)[-1])[: row.setup.num_candidates]
                tokens.append(-1)
                logprobs.append(TokenLogprobs(top[0][0], top[0][1], 1, top))
                continue
            token = next_token(row.token_ids, row.setup.seed, row.index)
            row.token_ids.append(token)
            tokens.append(token)
            logprobs.append(None)
        return StepResult(
            plan.step_id,
            tokens,
            logprobs=logprobs,
            row_errors=[(row, "not finite") for row in failed_rows if row in (*plan.rows, *plan.sample_rows)],
            failed_swap_out=failed_out,
            failed_swap_in=failed_in,
            forward_s=self.forward_s,
            swap_s=self.swap_s,
        )
