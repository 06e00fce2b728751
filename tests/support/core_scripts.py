"""Small parts that the core's unit tests share: specs, requests, and an executor that answers as told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from octavo.core.engine_core import EngineCore
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.scheduler import ScheduledStep
from octavo.core.step import StepPlan, StepResult
from octavo.messages import PUBLIC_TENANT, EngineRequest, SamplingParams, TokenDelta


def spec(block_size: int = 4, windows: tuple[int | None, ...] = (None,)) -> KVSpec:
    groups = tuple(KVGroup(layers=(i,), window=window) for i, window in enumerate(windows))
    return KVSpec(groups=groups, block_size=block_size, bytes_per_block=1)


def prompt(request_id: int, num_tokens: int) -> list[int]:
    """Tokens that no other request's prompt begins with."""
    return [1000 * request_id + 10 + i for i in range(num_tokens)]


def request(request_id: int = 1, num_prompt: int | None = None, max_tokens: int = 4, **changes: Any) -> EngineRequest:
    """A request whose prompt is its own, if `token_ids` does not say otherwise."""
    token_ids = changes.pop("token_ids", None)
    if token_ids is None:
        token_ids = prompt(request_id, 5 if num_prompt is None else num_prompt)
    sampling = {
        name: changes.pop(name) for name in list(changes) if name in SamplingParams.__struct_fields__ and name != "seed"
    }
    fields: dict[str, Any] = {
        "request_id": request_id,
        "token_ids": token_ids,
        "num_prompt_tokens": len(token_ids) if num_prompt is None else num_prompt,
        "sampling": SamplingParams(**{"max_tokens": max_tokens, **sampling}),
        "seed": 7,
        "max_tokens": max_tokens,
    }
    return EngineRequest(**{**fields, **changes})


class Handle:
    def __init__(self, result: Callable[[], StepResult]) -> None:
        self.result = result


class ScriptedExecutor:
    """Samples `token` for every row, or whatever `answer(plan)` says."""

    def __init__(
        self, kv_spec: KVSpec | None = None, num_blocks: int = 65, token: int = 5, num_host_blocks: int = 0
    ) -> None:
        self.kv_spec = kv_spec or spec()
        self.num_blocks = num_blocks
        self.num_host_blocks = num_host_blocks
        self.plans: list[StepPlan] = []
        self.answer: Callable[[StepPlan], StepResult] = lambda plan: StepResult(
            plan.step_id, [token] * len(plan.sample_rows)
        )

    def submit(self, plan: StepPlan) -> Handle:
        self.plans.append(plan)
        return Handle(lambda: self.answer(plan))

    def close(self) -> None:
        pass


def engine(executor: ScriptedExecutor | None = None, depth: int = 1, **settings: Any) -> EngineCore:
    defaults: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16, "max_model_len": 64}
    return EngineCore(executor or ScriptedExecutor(), **{**defaults, **settings}, depth=depth)


def publish(request_id: int, token_ids: list[int], name: str) -> EngineRequest:
    """A request to keep a text for every tenant."""
    return request(request_id, token_ids=token_ids, max_tokens=0, tenant=PUBLIC_TENANT, publish=name)


def run(core: EngineCore, *requests: EngineRequest) -> list[TokenDelta]:
    """Queue requests and step until idle."""
    for source in requests:
        core.add(source)
    return drain(core)


def preempt(core: EngineCore, request_id: int) -> None:
    """Take the row and blocks of a request that runs, as if somebody older needed them."""
    scheduler = core._scheduler
    gang = [s for s in scheduler.running.values() if s.request_id == request_id]
    scheduler._preempt(gang, StepPlan(scheduler.rows.last_planned + 1, [], [], [], [], [], []))


def preempt_next(core: EngineCore, *request_ids: int) -> None:
    """The same by the next plan, by swap if that is the engine's way."""
    scheduler = core._scheduler
    choose = scheduler._choose_running

    def once(step: ScheduledStep) -> bool:
        del scheduler.__dict__["_choose_running"]
        for request_id in request_ids:
            gang = [s for s in scheduler.running.values() if s.request_id == request_id]
            if gang:
                scheduler._preempt(gang, step.plan)
        choose(step)
        return False

    scheduler.__dict__["_choose_running"] = once


def drain(core: EngineCore, limit: int = 500) -> list[TokenDelta]:
    """Step until idle, auditing after each step."""
    deltas: list[TokenDelta] = []
    for _ in range(limit):
        if not core.has_work:
            return deltas
        deltas += core.step(0.0)
        assert core.audit() == []
    raise AssertionError("the engine does not become idle")


def tokens_of(deltas: list[TokenDelta], request_id: int = 1, index: int = 0) -> list[int]:
    return [t for d in deltas if (d.request_id, d.index) == (request_id, index) for t in d.token_ids]
