"""Driving a host by hand."""

from __future__ import annotations

import time
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.host import Host
from octavo.messages import EngineRequest, SamplingParams, TokenDelta
from octavo.weights.sources import ModelFiles
from support.paths import TINYSTORIES

FILES = ModelFiles(path=TINYSTORIES, kind="huggingface", name="tiny")


def scripted_config(executor: str = "ScriptedExecutor", **settings: Any) -> EngineConfig:
    """An engine with one of the executors of `support.scripted`."""
    return EngineConfig.of(executor=f"support.scripted:{executor}", **{"num_blocks": 256, "block_size": 8, **settings})


def request(request_id: int, prompt: list[int], **changes: Any) -> EngineRequest:
    """A request with seed 100 + `request_id`."""
    sampling = SamplingParams(**changes)
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling=sampling,
        seed=100 + request_id,
        max_tokens=sampling.max_tokens or 0,
        eos_token_ids=(2,),
    )


Deltas = dict[tuple[int, int], list[TokenDelta]]


def collect(host: Host, wanted: set[tuple[int, int]], timeout_s: float = 30) -> Deltas:
    """Deltas of each (request, index) until all wanted ones have ended."""
    got: Deltas = {}
    until = time.monotonic() + timeout_s
    left = set(wanted)
    while left:
        assert time.monotonic() < until, f"no end of {left}"
        batch = host.next_batch(1.0)
        for delta in batch.deltas if batch is not None else ():
            key = (delta.request_id, delta.index)
            assert key not in wanted or key in left, f"{key} says something after its end"
            got.setdefault(key, []).append(delta)
            if delta.finish_reason is not None:
                left.discard(key)
    return got


def tokens(deltas: list[TokenDelta]) -> list[int]:
    return [token_id for delta in deltas for token_id in delta.token_ids]


def first_tokens(host: Host) -> list[TokenDelta]:
    """Wait until something is generated."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        batch = host.next_batch(1.0)
        if batch is not None and any(delta.token_ids for delta in batch.deltas):
            return batch.deltas
    raise AssertionError("no token came")


def wait_idle(host: Host, num_generated: int = 1) -> None:
    """Wait until the engine reports that it has generated so many tokens and that nothing runs."""
    until = time.monotonic() + 10
    while True:
        stats = host.stats()
        if stats.num_generated_tokens >= num_generated and not stats.num_running and not stats.num_waiting:
            return
        assert time.monotonic() < until, stats
        host.next_batch(0.02)
