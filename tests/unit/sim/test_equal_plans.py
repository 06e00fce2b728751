"""Engine and simulator make the same plans, byte for byte, for one trace."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from golden.family_cases import MODELS
from octavo.cli.plan_model import model_shape
from octavo.config import EngineConfig
from octavo.core.step import StepPlan
from octavo.engine.build import build_engine
from octavo.engine.loop import EngineLoop
from octavo.messages import EngineRequest, SamplingParams
from octavo.sim.cost_model import StepCost, StepWork
from octavo.sim.executor import TOKEN
from octavo.sim.request import TimedRequest
from octavo.sim.simulator import Simulation
from octavo.sim.system import System
from octavo.weights.sources import resolve
from support.paths import TINYSTORIES
from support.tiny_models import write_tiny_llama

NUM_REQUESTS = 60


class _Trace(msgspec.Struct, frozen=True, kw_only=True):
    """Requests by the number of plans that had been made when they came."""

    arrivals: list[int]
    requests: list[EngineRequest]
    plans: list[bytes]


class _Timed(TimedRequest, frozen=True, kw_only=True):
    """A request as the real engine got it."""

    source: EngineRequest

    def as_engine_request(self, request_id: int) -> EngineRequest:
        return msgspec.structs.replace(self.source, request_id=request_id)


class _OneSecond:
    """Every plan takes a second, so that the clock counts plans."""

    def step(self, work: StepWork) -> StepCost:
        return StepCost(forward_s=1.0)


def _requests(rng: random.Random, n: int, vocab: int) -> list[EngineRequest]:
    """Prompts, some of which begin alike. The model always answers what the simulator answers."""
    heads = [[rng.randrange(3, vocab) for _ in range(40)] for _ in range(3)]
    requests = []
    for i in range(NUM_REQUESTS):
        tail = [rng.randrange(3, vocab) for _ in range(rng.randint(1, 60))]
        prompt = rng.choice([[], [], *heads]) + tail
        limit = rng.randint(1, 40)
        sampling = SamplingParams(
            n=rng.choice([1, n]), temperature=0.0, logit_bias={TOKEN: 100.0}, max_tokens=limit, ignore_eos=True
        )
        requests.append(
            EngineRequest(
                request_id=i,
                token_ids=prompt,
                num_prompt_tokens=len(prompt),
                sampling=sampling,
                seed=i,
                max_tokens=limit,
            )
        )
    return requests


def _serve(config: EngineConfig, requests: list[EngineRequest], rng: random.Random) -> _Trace:
    """Send the requests to a real engine on the real clock, in bursts, and note what it planned."""
    core, _, close = build_engine(config, resolve(config.model.model))
    plans: list[bytes] = []
    executor: Any = core._executor
    submit = executor.submit

    def watched(plan: StepPlan) -> Any:
        plans.append(msgspec.msgpack.encode(plan))
        return submit(plan)

    executor.submit = watched
    loop = EngineLoop(core, close)
    arrivals: list[int] = []
    due_s = time.monotonic()
    left = list(requests)
    while left or loop.has_work:
        while left and due_s <= time.monotonic():
            arrivals.append(len(plans))
            loop.add(left.pop(0))
            due_s += rng.expovariate(1 / 0.001)
        for delta in loop.step().deltas:
            assert set(delta.token_ids) <= {TOKEN}
    assert core.audit() == []
    loop.close()
    return _Trace(arrivals=arrivals, requests=requests, plans=plans)


@pytest.mark.parametrize(
    ("settings", "n"),
    [
        ({"preemption": "recompute"}, 3),
        ({"preemption": "swap", "swap_space_bytes": 1 << 20}, 2),
        ({"preemption": "recompute", "enable_prefix_caching": False, "admission": "skip"}, 1),
    ],
    ids=["recompute", "swap", "skip"],
)
def test_engine_and_simulator_plan_alike(settings: dict[str, Any], n: int) -> None:
    _plan_alike(TINYSTORIES, settings, n)


@pytest.mark.parametrize("name", ["gemma3", "qwen2-moe"])
def test_so_they_do_for_models_whose_layers_differ(name: str, tmp_path: Path) -> None:
    _plan_alike(write_tiny_llama(tmp_path / name, MODELS[name]), {"preemption": "recompute"}, 2)


def _plan_alike(model: Path, settings: dict[str, Any], n: int) -> None:
    shape = model_shape(str(model))
    config = EngineConfig.of(
        model=str(model),
        block_size=8,
        num_blocks=48,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        num_threads=1,
        **settings,
    )
    rng = random.Random(7)
    trace = _serve(config, _requests(rng, n, shape.vocab), rng)
    system = System(
        num_blocks=47,
        block_size=8,
        max_num_seqs=12,
        max_num_batched_tokens=48,
        max_model_len=256,
        num_host_blocks=_num_host_blocks(config),
        enable_prefix_caching=config.cache.enable_prefix_caching,
        preemption=config.cache.preemption,
        admission=config.scheduler.admission,
        kv_groups=shape.kv_spec(8, 256).groups,
    )
    timed = [
        _Timed(arrival_s=k, token_ids=request.token_ids, num_output_tokens=request.max_tokens, source=request)
        for k, request in zip(trace.arrivals, trace.requests, strict=True)
    ]
    simulation = Simulation(system, _OneSecond(), timed)
    planned: list[bytes] = []
    submit = simulation.executor.submit

    def watched(plan: StepPlan) -> Any:
        planned.append(msgspec.msgpack.encode(plan))
        return submit(plan)

    simulation.executor.submit = watched  # type: ignore[method-assign]
    result = simulation.run()
    assert result.num_preemptions > 0, "the pool was to be too small"
    assert (result.num_swap_preemptions > 0) == (config.cache.preemption == "swap")
    assert planned == trace.plans


def _num_host_blocks(config: EngineConfig) -> int:
    _, info, close = build_engine(config, resolve(config.model.model))
    close()
    return info.num_host_blocks
