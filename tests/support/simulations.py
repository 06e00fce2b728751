"""Small systems and workloads for simulations."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from octavo.sim.cost_model import StepCost, StepWork
from octavo.sim.request import TimedRequest
from octavo.sim.system import System


class LinearCost:
    """A step takes `step_s` and `token_s` for each new token."""

    def __init__(self, step_s: float = 0.01, token_s: float = 0.001) -> None:
        self.step_s, self.token_s = step_s, token_s
        self.works: list[StepWork] = []

    def step(self, work: StepWork) -> StepCost:
        self.works.append(work)
        return StepCost(forward_s=self.step_s + self.token_s * work.num_tokens if work.num_tokens else 0.0)


def small_system(**changes: Any) -> System:
    system = System(num_blocks=64, block_size=16, max_num_seqs=16, max_num_batched_tokens=256, max_model_len=512)
    return msgspec.structs.replace(system, **changes)


def request(arrival_s: float, num_prompt: int, num_output: int, **rest: Any) -> TimedRequest:
    return TimedRequest(arrival_s=arrival_s, token_ids=[0] * num_prompt, num_output_tokens=num_output, **rest)


def random_requests(count: int, seed: int, rate: float = 20.0) -> list[TimedRequest]:
    """Poisson arrivals of prompts of 1 to 120 tokens and answers of 1 to 60."""
    rng = random.Random(seed)
    now_s, requests = 0.0, []
    for _ in range(count):
        now_s += rng.expovariate(rate)
        requests.append(request(now_s, rng.randint(1, 120), rng.randint(1, 60)))
    return requests
