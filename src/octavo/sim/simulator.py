"""The real EngineCore, driven by a virtual clock.

Requests arrive at their times, the core plans and applies as in service, and each step takes what the cost model says.
Everything that decides who runs, who waits and which blocks are whose is the core's; nothing of that is here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from octavo.core.engine_core import EngineCore
from octavo.errors import ConfigError, OctavoError
from octavo.messages import FINISH_ERROR, TokenDelta
from octavo.sim.clock import VirtualClock
from octavo.sim.cost_model import CostModel, StepWork
from octavo.sim.executor import Candidates, SimulatedExecutor
from octavo.sim.request import TimedRequest
from octavo.sim.result import RequestRecord, SimResult
from octavo.sim.system import System


class Probe(Protocol):
    """Looks on. May read anything of the core and must change nothing."""

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        """A step is planned and under way: whoever is computed in it runs and holds its blocks, and nobody has left.

        Args:
            core: Of which `core.scheduler` holds those that run and wait, and the blocks.
            work: What the step computes.
            now_s: Simulated time at which it will have ended.
            duration_s: Seconds that it takes; 0 for a plan that only hands back rows.
        """
        ...


def make_core(system: System, executor: SimulatedExecutor) -> EngineCore:
    """The core that a system runs, on an executor.

    Raises:
        ConfigError: For settings that the core refuses.
    """
    return EngineCore(
        executor,
        kv_policy=system.kv_policy,
        max_num_seqs=system.max_num_seqs,
        max_num_batched_tokens=system.max_num_batched_tokens,
        max_model_len=system.max_model_len,
        depth=system.depth,
        admission=system.admission,
        enable_prefix_caching=system.enable_prefix_caching,
        preemption=system.preemption,
    )


class Simulation:
    """One run. `simulate` is the short way.

    Args:
        system: What serves.
        cost: What its steps take.
        requests: In any order; they arrive by their times.
        probes: Look on after every step.
        beams: Recorded choices for beam searches.
    """

    def __init__(
        self,
        system: System,
        cost: CostModel,
        requests: Iterable[TimedRequest],
        *,
        probes: Sequence[Probe] = (),
        beams: Candidates | None = None,
    ) -> None:
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(system, cost, self.clock, beams, self._observe if probes else None)
        self.core = make_core(system, self.executor)
        self._requests = sorted(requests, key=lambda request: request.arrival_s)
        self._num_arrived = 0
        self._probes = probes
        self._records: list[RequestRecord] = []
        self._running_s = 0.0
        self._num_steps = 0

    def run(self, until_s: float | None = None) -> SimResult:
        """Run until every request is answered, or until a time.

        Raises:
            ConfigError: For a request that the system can never serve.
        """
        clock, core, executor = self.clock, self.core, self.executor
        limit_s = float("inf") if until_s is None else until_s
        while clock.now_s < limit_s:
            self._arrive(clock.now_s)
            if not core.has_work:
                if self._num_arrived == len(self._requests):
                    break
                clock.advance_to(self._requests[self._num_arrived].arrival_s)
                continue
            start_s = clock.now_s
            deltas = core.step(start_s)
            duration_s = clock.now_s - start_s
            work = executor.last_work
            self._note(deltas, clock.now_s)
            self._running_s += (work.num_decodes + len(work.chunks)) * duration_s
            self._num_steps += 1
        return self._result()

    def _observe(self, work: StepWork, now_s: float, duration_s: float) -> None:
        for probe in self._probes:
            probe.observe(self.core, work, now_s, duration_s)

    def _arrive(self, now_s: float) -> None:
        requests = self._requests
        while self._num_arrived < len(requests) and requests[self._num_arrived].arrival_s <= now_s:
            request = requests[self._num_arrived]
            try:
                self.core.add(request.as_engine_request(self._num_arrived))
            except OctavoError as error:
                raise ConfigError(f"requests[{self._num_arrived}]", _text(request), f"servable ({error})") from error
            self._records.append(RequestRecord.of(request))
            self._num_arrived += 1

    def _note(self, deltas: list[TokenDelta], now_s: float) -> None:
        records = self._records
        for delta in deltas:
            record = records[delta.request_id]
            if record.first_token_s is None:
                record.first_token_s = now_s
            if delta.finish_reason is not None:
                if delta.finish_reason == FINISH_ERROR:
                    raise ConfigError(f"requests[{delta.request_id}]", "a request", f"servable ({delta.error})")
                record.finishes_s.append(now_s)

    def _result(self) -> SimResult:
        stats = self.core.stats()
        return SimResult(
            records=self._records,
            end_s=self.clock.now_s,
            num_steps=self._num_steps,
            running_s=self._running_s,
            num_preemptions=stats.num_preemptions,
            num_swap_preemptions=stats.num_swap_preemptions,
            num_recomputed_tokens=stats.num_recomputed_tokens,
            num_prefix_hit_tokens=stats.num_prefix_hit_tokens,
            num_prefix_query_tokens=stats.num_prefix_query_tokens,
        )


def _text(request: TimedRequest) -> str:
    return f"{len(request.token_ids)} prompt tokens, {request.num_output_tokens} answer tokens"


def simulate(
    system: System,
    cost: CostModel,
    requests: Iterable[TimedRequest],
    *,
    probes: Sequence[Probe] = (),
    until_s: float | None = None,
    beams: Candidates | None = None,
) -> SimResult:
    """Serve requests on a simulated system until all are answered, or until a time.

    Raises:
        ConfigError: For settings that the core refuses, or a request that can never be served.
    """
    return Simulation(system, cost, requests, probes=probes, beams=beams).run(until_s)
