"""Watching a real engine's steps: what each computed, and how long it took from the end of the one before it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from octavo.config import EngineConfig
from octavo.core.kv_spec import KVSpec
from octavo.core.step import Executor, StepHandle, StepPlan
from octavo.engine.build import build_core
from octavo.engine.loop import EngineLoop
from octavo.errors import ConfigError
from octavo.messages import FINISH_ERROR, EngineInfo, EngineRequest, TokenDelta
from octavo.sim.clock import VirtualClock
from octavo.sim.cost_model import StepCost, StepWork
from octavo.sim.executor import SimulatedExecutor
from octavo.sim.request import TimedRequest
from octavo.sim.result import RequestRecord, SimResult
from octavo.sim.system import System


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One step of a real engine."""

    work: StepWork
    num_admitted: int
    """Rows that were set up for it."""
    seconds: float
    """From the end of the step before it, taking in requests left out."""


class _NoTime:
    def step(self, work: StepWork) -> StepCost:
        return StepCost(forward_s=0.0)


class WatchedExecutor:
    """An executor with a simulated one beside it that follows the same plans, and so tells what each step computes.

    The time that takes is counted, in seconds, to be left out.
    """

    def __init__(self, inner: Executor, system: System) -> None:
        self.kv_spec = inner.kv_spec
        self.num_blocks = inner.num_blocks
        self.num_host_blocks = inner.num_host_blocks
        self.work: StepWork | None = None
        """Of the plan that came last, taken away by whoever reads it."""
        self.num_admitted = 0
        self.spent_s = 0.0
        self._inner = inner
        self._shadow = SimulatedExecutor(system, _NoTime(), VirtualClock())

    def submit(self, plan: StepPlan) -> StepHandle:
        started = time.perf_counter()
        self._shadow.submit(plan)
        self.work, self.num_admitted = self._shadow.last_work, len(plan.setups)
        self.spent_s += time.perf_counter() - started
        return self._inner.submit(plan)

    def close(self) -> None:
        self._inner.close()


def simulated_system(config: EngineConfig, info: EngineInfo, kv_spec: KVSpec) -> System:
    """The system that simulates an engine of these settings."""
    return System(
        num_blocks=info.num_blocks - 1,
        block_size=info.block_size,
        max_num_seqs=info.max_num_seqs,
        max_num_batched_tokens=info.max_num_batched_tokens,
        max_model_len=info.max_model_len,
        num_host_blocks=info.num_host_blocks,
        kv_policy=config.cache.kv_policy,
        enable_prefix_caching=config.cache.caches_prefixes,
        preemption=config.cache.preemption,
        admission=config.scheduler.admission,
        depth=config.scheduler.depth,
        kv_groups=kv_spec.groups,
    )


class RealRun:
    """Serves timed requests on a real engine in this process, by the real clock, as a host does: requests are taken in
    between steps, and an engine without work waits for the next arrival.

    Args:
        temperature: Of every request; 0 is greedy.
    """

    def __init__(
        self, config: EngineConfig, executor: Executor, info: EngineInfo, *, temperature: float, first_id: int = 0
    ) -> None:
        self.system = simulated_system(config, info, executor.kv_spec)
        self.steps: list[Step] = []
        self._executor = WatchedExecutor(executor, self.system)
        self._loop = EngineLoop(build_core(config, self._executor, info), lambda: None)
        self._temperature = temperature
        self._first_id = first_id
        self._records: list[RequestRecord] = []
        self._started_s = 0.0
        self._adding_s = 0.0

    def open_loop(self, requests: Sequence[TimedRequest]) -> SimResult:
        """Requests come at their times."""
        waiting = sorted(requests, key=lambda request: request.arrival_s)
        self._started_s = time.perf_counter()
        while len(self._records) < len(waiting) or self._loop.core.has_work:
            now_s = self._now_s()
            while len(self._records) < len(waiting) and waiting[len(self._records)].arrival_s <= now_s:
                self._add(waiting[len(self._records)])
            if self._loop.core.has_work:
                self._step()
            elif len(self._records) < len(waiting):
                time.sleep(max(0.0, waiting[len(self._records)].arrival_s - self._now_s()))
        return self._result()

    def closed_loop(self, requests: Sequence[TimedRequest], in_flight: int) -> SimResult:
        """`in_flight` requests are unanswered at any time. The records' times of arrival are when they were sent."""
        self._started_s = time.perf_counter()
        while len(self._records) < len(requests) or self._loop.core.has_work:
            now_s = self._now_s()
            while len(self._records) < len(requests) and self._num_open() < in_flight:
                self._add(msgspec.structs.replace(requests[len(self._records)], arrival_s=now_s))
            self._step()
        return self._result()

    def _now_s(self) -> float:
        return time.perf_counter() - self._started_s

    def _num_open(self) -> int:
        return sum(not record.is_finished for record in self._records)

    def _add(self, request: TimedRequest) -> None:
        started = time.perf_counter()
        self._loop.add(self._engine_request(request))
        self._records.append(RequestRecord.of(request))
        self._adding_s += time.perf_counter() - started

    def _engine_request(self, request: TimedRequest) -> EngineRequest:
        made = request.as_engine_request(self._first_id + len(self._records))
        sampling = msgspec.structs.replace(made.sampling, temperature=self._temperature)
        return msgspec.structs.replace(made, sampling=sampling)

    def _step(self) -> None:
        executor = self._executor
        executor.work, executor.spent_s = None, 0.0
        started = time.perf_counter()
        batch = self._loop.step()
        self._note(batch.deltas, self._now_s())
        seconds = time.perf_counter() - started - executor.spent_s
        if executor.work is not None:
            self.steps.append(Step(work=executor.work, num_admitted=executor.num_admitted, seconds=seconds))

    def _note(self, deltas: list[TokenDelta], now_s: float) -> None:
        for delta in deltas:
            record = self._records[delta.request_id - self._first_id]
            if record.first_token_s is None:
                record.first_token_s = now_s
            if delta.finish_reason is not None:
                if delta.finish_reason == FINISH_ERROR:
                    raise ConfigError("requests", delta.request_id, f"servable ({delta.error})")
                record.finishes_s.append(now_s)

    @property
    def add_s(self) -> float:
        """Seconds that taking in a request took, on average."""
        return self._adding_s / len(self._records) if self._records else 0.0

    def _result(self) -> SimResult:
        return SimResult(records=self._records, end_s=self._now_s(), num_steps=len(self.steps), running_s=0.0)
