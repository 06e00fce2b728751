"""Every mechanism of the table of families under batching, chunks, preemption and sharing: answers to the last bit.

Norm places, soft caps, learned positions, parallel layers and mixtures of experts have products and sums of their own,
and an expert sees as many rows as happen to choose it.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import octavo._native as _native
from golden.family_cases import MODELS
from support.core_runs import RealEngine, Seen, assert_same, random_requests, run, run_alone
from support.tiny_models import write_tiny_llama

PATHS = _native.supported_paths()
EXPERTS = ("mixtral", "qwen2-moe", "qwen3-moe", "olmoe")
COUNT = 24
LONGEST = 96


def answered(folder: Path, name: str, *, block_size: int, num_blocks: int, depth: int, **settings: str | int) -> Seen:
    """All requests in a mixed batch, compared with each alone."""
    model = MODELS[name]
    requests = random_requests(
        random.Random(name), COUNT, vocab_size=model.vocab_size, max_prompt=60, max_tokens=30, eos=(2,)
    )
    alone = run_alone(folder, requests, max_model_len=LONGEST, num_threads=1, **settings)
    found, seen = run(
        folder,
        requests,
        arrivals=random.Random(1),
        max_model_len=LONGEST,
        max_num_seqs=10,
        max_num_batched_tokens=18,
        num_threads=2,
        block_size=block_size,
        num_blocks=num_blocks,
        depth=depth,
        **settings,
    )
    assert_same(found, alone)
    return seen


@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("rope-")])
def test_a_mixed_batch_in_a_small_pool(tmp_path: Path, name: str) -> None:
    """The pool holds little more than the longest sequence in each group of KV that the model has."""
    folder = write_tiny_llama(tmp_path, MODELS[name])
    with RealEngine.open(folder, num_blocks=100, block_size=8, max_model_len=LONGEST) as engine:
        num_groups = len(engine.executor.kv_spec.groups)
    room = num_groups * (LONGEST // 8 + 3)
    seen = answered(folder, name, block_size=8, num_blocks=1 + room, depth=2, dtype="bfloat16")
    assert seen.largest_batch > 2 and seen.num_chunked > 0
    assert seen.stats is not None and seen.stats.num_preemptions > 0


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("name", EXPERTS)
def test_experts_on_every_path(tmp_path: Path, name: str, isa: str, quantization: str) -> None:
    folder = write_tiny_llama(tmp_path, MODELS[name])
    seen = answered(
        folder, name, block_size=16, num_blocks=80, depth=1, isa=isa, dtype="float32", quantization=quantization
    )
    assert seen.largest_batch > 4 and seen.num_mixed > 0
