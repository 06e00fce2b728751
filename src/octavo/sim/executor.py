"""An executor that computes nothing: it follows the plans and takes the time that a cost model says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.core.step import RowSetup, StepPlan, StepResult
from octavo.errors import InvariantError
from octavo.messages import TokenLogprobs
from octavo.sim.clock import VirtualClock
from octavo.sim.cost_model import Chunk, CostModel, StepWork
from octavo.sim.system import System

TOKEN = 1
"""What every row samples. No simulated request names a stop token."""


class Candidates(Protocol):
    """Answers for the model in a beam search."""

    def candidates(self, seed: int, width: int, step: int, rank: int) -> list[tuple[int, float]]:
        """The likeliest tokens of one beam with their logprobs, best first.

        Args:
            seed: Of the request.
            width: Beams of the search.
            step: Tokens of the answer so far.
            rank: The beam's last token, 0 at first.
        """
        ...


class _Row:
    """What a worker would keep of a row."""

    __slots__ = ("has_siblings", "num_computed", "rank", "setup", "width")

    def __init__(self, setup: RowSetup) -> None:
        self.setup = setup
        self.num_computed = setup.num_computed_tokens
        self.width = setup.sampling.beam_width or 1
        self.has_siblings = self.width > 1 or setup.sampling.n > 1
        was_swapped_out = len(setup.token_ids) > setup.num_prompt_tokens
        self.rank = setup.token_ids[-1] if was_swapped_out else 0

    def fork(self) -> _Row:
        row = _Row(self.setup)
        row.num_computed, row.rank = self.num_computed, self.rank
        return row


class _Handle:
    """A step that ends at a known time. Whoever waits for it moves the clock there."""

    __slots__ = ("_clock", "_end_s", "_result")

    def __init__(self, result: StepResult, clock: VirtualClock, end_s: float) -> None:
        self._result, self._clock, self._end_s = result, clock, end_s

    def result(self) -> StepResult:
        self._clock.advance_to(self._end_s)
        return self._result


class SimulatedExecutor:
    """Follows plans as a worker does: rows, their progress, forks, candidates.

    Steps run one after another: a plan that comes while the one before it runs begins when that ends.

    Args:
        system: Says how many blocks there are and how KV is kept.
        cost: What steps take.
        clock: Moves to the end of a step when its result is asked for.
        beams: Answers for the model in beam searches; without it a plan with one is an error.
        observe: Called while a step is under way, with its work, its end and its duration.
    """

    def __init__(
        self,
        system: System,
        cost: CostModel,
        clock: VirtualClock,
        beams: Candidates | None = None,
        observe: Callable[[StepWork, float, float], None] | None = None,
    ) -> None:
        self.kv_spec = system.kv_spec
        self.num_blocks = system.num_blocks + 1
        self.num_host_blocks = system.num_host_blocks
        self.last_work = StepWork()
        """Of the plan submitted last."""
        self._shares_prompts = system.shares_prompts
        self._reach = system.reach
        self._cost = cost
        self._clock = clock
        self._beams = beams
        self._observe = observe
        self._busy_until_s = 0.0
        self._rows: dict[int, _Row] = {}

    def submit(self, plan: StepPlan) -> _Handle:
        self._follow(plan)
        work = self.last_work = self._work(plan)
        logprobs = self._candidates(plan)
        cost = self._cost.step(work)
        start_s = max(self._clock.now_s, self._busy_until_s)
        self._busy_until_s = start_s + cost.forward_s + cost.swap_s
        if self._observe is not None:
            self._observe(work, self._busy_until_s, cost.forward_s + cost.swap_s)
        result = StepResult(
            plan.step_id,
            [TOKEN] * len(plan.sample_rows),
            logprobs,
            forward_s=cost.forward_s,
            swap_s=cost.swap_s,
        )
        return _Handle(result, self._clock, self._busy_until_s)

    def close(self) -> None:
        self._rows.clear()

    def _follow(self, plan: StepPlan) -> None:
        """Take what the plan says of rows, before anything is computed."""
        rows = self._rows
        for number in plan.released_rows:
            rows.pop(number, None)  # a row may be released that no worker was told of
        for setup in plan.setups:
            rows[setup.row] = _Row(setup)
        for fork in plan.forks:
            rows[fork.row] = rows[fork.source_row].fork()
        for number, token in plan.row_tokens:
            rows[number].rank = token

    def _work(self, plan: StepPlan) -> StepWork:
        """Move the rows forward and sum up what that takes."""
        rows = self._rows
        num_tokens = num_siblings = 0
        contexts: list[int] = []
        chunks: list[Chunk] = []
        for number, num_new in zip(plan.rows, plan.num_new_tokens, strict=True):
            row = rows[number]
            before = row.num_computed
            row.num_computed = end = before + num_new
            num_tokens += num_new
            if num_new == 1 and before >= row.setup.num_prompt_tokens:
                contexts.append(end)
            else:
                times = 1 if self._shares_prompts else row.width
                chunks += [Chunk(num_new, before, self._reach)] * times
                num_tokens += num_new * (times - 1)
                num_siblings += times - 1
        if plan.sample_sources:
            for number, source in zip(plan.sample_rows, plan.sample_sources, strict=True):
                rows[number].num_computed = rows[source].num_computed
        seeds = [row.setup.seed for row in map(rows.__getitem__, plan.sample_rows) if row.has_siblings]
        num_siblings += len(seeds) - len(set(seeds))
        return StepWork(
            num_tokens=num_tokens,
            num_decodes=len(contexts),
            decode_context_tokens=self._reach.attended(contexts),
            chunks=chunks,
            num_sampled=len(plan.sample_rows),
            num_siblings=num_siblings,
            num_copied_blocks=len(plan.copies),
            num_swapped_out_blocks=len(plan.swap_out),
            num_swapped_in_blocks=len(plan.swap_in),
        )

    def _candidates(self, plan: StepPlan) -> list[TokenLogprobs | None] | None:
        """What beams are told; None when the plan samples none."""
        found: list[TokenLogprobs | None] = []
        for number in plan.sample_rows:
            row = self._rows[number]
            setup = row.setup
            if not setup.num_candidates:
                found.append(None)
                continue
            if self._beams is None:
                raise InvariantError(["a beam search was simulated without recorded choices to replay"])
            top = self._beams.candidates(setup.seed, row.width, row.num_computed - setup.num_prompt_tokens, row.rank)
            found.append(TokenLogprobs(top[0][0], top[0][1], 1, top))
        return found if any(entry is not None for entry in found) else None
