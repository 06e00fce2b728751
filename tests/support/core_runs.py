"""Run requests through the real core and executor, in this process, step by step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.core.step import StepHandle, StepPlan
from octavo.executor.local import LocalExecutor
from octavo.messages import FINISH_ERROR, EngineRequest, EngineStats, SamplingParams, TokenLogprobs
from octavo.weights.sources import resolve


class Answer(msgspec.Struct):
    """Everything one sequence was answered with. Equal answers are equal to the last bit."""

    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs | None] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None


Answers = dict[tuple[int, int], Answer]
"""By request id and index."""


class Seen(msgspec.Struct):
    """What really happened in a run, from its plans."""

    num_steps: int = 0
    num_mixed: int = 0
    """Steps that held a decode beside a prefill."""
    num_chunked: int = 0
    """Prompts that did not fit one step."""
    largest_batch: int = 0
    stats: EngineStats | None = None


class _Watching:
    """The executor, with a note taken of each plan."""

    def __init__(self, executor: LocalExecutor, seen: Seen) -> None:
        self._executor = executor
        self._seen = seen
        self._unread: dict[int, int] = {}
        self.kv_spec = executor.kv_spec
        self.num_blocks = executor.num_blocks
        self.num_host_blocks = executor.num_host_blocks

    def submit(self, plan: StepPlan) -> StepHandle:
        seen = self._seen
        new = {setup.row: len(setup.token_ids) - setup.num_computed_tokens for setup in plan.setups}
        counts = dict(zip(plan.rows, plan.num_new_tokens, strict=True))
        seen.num_steps += 1
        seen.largest_batch = max(seen.largest_batch, len(plan.rows))
        self._unread.update(new)  # a row may be set up by one plan and computed by a later one
        seen.num_chunked += sum(count < self._unread.pop(row, 0) for row, count in counts.items())
        seen.num_mixed += bool(new) and any(n == 1 and row not in new for row, n in counts.items())
        return self._executor.submit(plan)

    def close(self) -> None:
        self._executor.close()


def run(
    model: Path, requests: Sequence[EngineRequest], *, arrivals: random.Random | None = None, **settings: Any
) -> tuple[Answers, Seen]:
    """Answer all requests on one engine.

    Args:
        arrivals: Spreads the requests over the steps at random; without it all are there at the start.
        settings: As `EngineConfig.of`.
    """
    config = EngineConfig.of(model=str(model), **settings)
    executor = LocalExecutor.load(config, resolve(str(model)))
    seen = Seen()
    core = EngineCore(
        _Watching(executor, seen),
        max_num_seqs=executor.info.max_num_seqs,
        max_num_batched_tokens=executor.info.max_num_batched_tokens,
        max_model_len=executor.info.max_model_len,
        depth=config.scheduler.depth,
        preemption=config.cache.preemption,
    )
    try:
        return _drive(core, requests, arrivals), seen
    finally:
        seen.stats = core.stats()
        executor.close()


def run_alone(model: Path, requests: Sequence[EngineRequest], **settings: Any) -> Answers:
    """Answer each request on an engine that has nothing else to do: no batch, no chunk, no preemption."""
    config = EngineConfig.of(model=str(model), max_num_seqs=1, **settings)
    executor = LocalExecutor.load(config, resolve(str(model)))
    core = EngineCore(
        executor, max_num_seqs=1, max_num_batched_tokens=512, max_model_len=executor.info.max_model_len, depth=1
    )
    answers: Answers = {}
    try:
        for request in requests:
            answers |= _drive(core, [request], None)
    finally:
        executor.close()
    return answers


def _drive(core: EngineCore, requests: Sequence[EngineRequest], arrivals: random.Random | None) -> Answers:
    answers: Answers = {}
    left = list(reversed(requests))
    while left or core.has_work:
        while left and (arrivals is None or not core.has_work or arrivals.random() < 0.4):
            core.add(left.pop())
        for delta in core.step(0.0):
            assert delta.finish_reason != FINISH_ERROR, delta.error
            answer = answers.setdefault((delta.request_id, delta.index), Answer())
            assert answer.finish_reason is None, "a delta after the end"
            answer.token_ids += delta.token_ids
            answer.logprobs += delta.logprobs or []
            answer.prompt_logprobs += delta.prompt_logprobs or []
            answer.finish_reason, answer.stop_reason = delta.finish_reason, delta.stop_reason
            answer.score = delta.score
    assert core.audit() == []
    assert core.stats().num_held_blocks == 0, "blocks leaked"
    return answers


def random_requests(
    rng: random.Random, count: int, *, vocab_size: int, max_prompt: int, max_tokens: int, eos: tuple[int, ...]
) -> list[EngineRequest]:
    """Requests of every kind: greedy and seeded, filtered, penalised, biased, with logprobs of answer and prompt."""
    return [_random_request(rng, i, vocab_size, max_prompt, max_tokens, eos) for i in range(count)]


def _random_request(
    rng: random.Random, request_id: int, vocab_size: int, max_prompt: int, max_tokens: int, eos: tuple[int, ...]
) -> EngineRequest:
    prompt = [rng.randrange(3, vocab_size) for _ in range(rng.choice([1, 2, 9, 16, 33, rng.randint(1, max_prompt)]))]
    limit = rng.randint(1, max_tokens)
    sampling = SamplingParams(
        n=rng.choice([1, 1, 1, 2]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.5]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        top_k=rng.choice([0, 0, 20]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.4]),
        logit_bias=rng.choice([None, None, {rng.randrange(vocab_size): 4.0}]),
        min_tokens=rng.choice([0, 0, limit]),
        max_tokens=limit,
        logprobs=rng.choice([0, 0, 3]),
        prompt_logprobs=rng.choice([None, None, None, 2]),
        stop_token_ids=rng.choice([(), (rng.randrange(vocab_size),)]),
    )
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling=sampling,
        seed=rng.getrandbits(63),
        max_tokens=limit,
        eos_token_ids=eos,
        tenant=rng.choice(["a", "b"]),
    )
