"""The default model on 50 prompts x 64 tokens, on every kernel path. `make test-full`; OCTAVO_PROMPTS takes fewer."""

from __future__ import annotations

import os
import random

import pytest

import octavo._native as _native
from golden import cases, compare
from octavo.weights.sources import resolve
from support.core_runs import run

pytestmark = [pytest.mark.full, pytest.mark.model]

COUNT = int(os.environ.get("OCTAVO_PROMPTS", "50"))

SCHEDULES = [(512, False, 8), (512, True, 32), (64, True, 16), (64, False, 32)]
"""Chunk budget, forced preemption, block size: every value with every other kind's at least once."""


@pytest.mark.parametrize("isa", _native.supported_paths())
@pytest.mark.parametrize(("chunk", "preempted", "block_size"), SCHEDULES)
def test_greedy(isa: str, chunk: int, preempted: bool, block_size: int, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, expected = cases.real_prompts()[:COUNT], compare.load("smollm2")[:COUNT]
    per_sequence = (max(map(len, prompts)) + cases.REAL_TOKENS) // block_size + 1
    answers, seen = run(
        resolve("smollm2-135m").path,
        compare.greedy_requests(prompts, cases.REAL_TOKENS),
        arrivals=random.Random(chunk),
        dtype="float32",
        quantization="none",
        isa=isa,
        max_num_batched_tokens=chunk,
        block_size=block_size,
        max_num_seqs=16,
        num_blocks=1 + per_sequence * (3 if preempted else 16),
        max_model_len=512,
        depth=2 if preempted else 1,
    )
    assert seen.stats is not None
    assert (seen.stats.num_preemptions > 0) is preempted or COUNT < 10
    ties = compare.near_ties(answers, expected)
    with capsys.disabled():
        print(f"\n{isa}, chunk {chunk}, block size {block_size}: {ties} of {len(prompts)} prompts left at a near tie")


@pytest.mark.parametrize("isa", _native.supported_paths())
def test_logits(isa: str, capsys: pytest.CaptureFixture[str]) -> None:
    prompts, expected = cases.real_prompts()[:COUNT], compare.load("smollm2")[:COUNT]
    worst = compare.worst_logits(resolve("smollm2-135m").path, prompts, expected, chunk=64, ids=cases.REAL_IDS, isa=isa)
    with capsys.disabled():
        print(f"\n{isa}: worst logit off by {worst:.2e} of the largest of its position")
    assert worst < compare.LOGITS_TOLERANCE
