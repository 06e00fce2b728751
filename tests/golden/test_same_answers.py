"""Batch mix, chunking, block size, threads, depth and preemption change when a token is computed, never which.

Every answer is compared with the same request run alone: token ids, logprobs, prompt logprobs, and how it ended, to the
last bit. Each run is also asked whether what it is named for really happened.
"""

from __future__ import annotations

import itertools
import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

import octavo._native as _native
from octavo.messages import EngineRequest
from octavo.weights.sources import resolve
from support.core_runs import Answers, Seen, assert_same, random_requests, run, run_alone
from support.paths import TINYSTORIES

PATHS = _native.supported_paths()
NUM_SEQS = 12

COMBINATIONS = list(itertools.product([7, 64, 512], [8, 16, 32], [1, 2], [1, 2]))
"""Chunk budget, block size, threads, depth."""


@cache
def tiny_requests(count: int) -> list[EngineRequest]:
    return random_requests(random.Random(5), count, vocab_size=512, max_prompt=120, max_tokens=40, eos=(2,))


@cache
def tiny_alone(count: int, dtype: str, isa: str, kv_dtype: str = "auto", quantization: str = "auto") -> Answers:
    settings = {"dtype": dtype, "isa": isa, "kv_cache_dtype": kv_dtype, "quantization": quantization}
    return run_alone(TINYSTORIES, tiny_requests(count), **settings, num_threads=1)


def assert_happened(seen: Seen, chunk: int, *, preempted: bool) -> None:
    assert seen.stats is not None
    assert seen.largest_batch > 4, "there was no batch"
    assert chunk < 100 or seen.num_mixed > 0, "no step mixed a prefill with decodes"
    assert chunk > 100 or seen.num_chunked > 0, "no prompt was cut into chunks"
    assert (seen.stats.num_preemptions > 0) is preempted


def mixed_run(count: int, seed: int, small_pool: bool, **settings: Any) -> tuple[Answers, Seen]:
    """All requests, arriving at random; a small pool holds little more than the longest sequence."""
    block_size = settings["block_size"]
    per_sequence = 160 // block_size + 1
    num_blocks = 1 + (per_sequence * 5 // 4 if small_pool else per_sequence * NUM_SEQS)
    return run(
        TINYSTORIES,
        tiny_requests(count),
        arrivals=random.Random(seed),
        max_num_seqs=NUM_SEQS,
        num_blocks=num_blocks,
        max_model_len=160,
        **settings,
    )


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.full)])
@pytest.mark.parametrize(("chunk", "block_size", "threads", "depth"), COMBINATIONS)
def test_answers_are_those_of_running_alone(chunk: int, block_size: int, threads: int, depth: int, count: int) -> None:
    found, seen = mixed_run(
        count,
        seed=chunk * block_size + depth,
        small_pool=True,
        dtype="bfloat16",
        isa=PATHS[0],
        max_num_batched_tokens=chunk,
        block_size=block_size,
        num_threads=threads,
        depth=depth,
    )
    assert_happened(seen, chunk, preempted=True)
    assert_same(found, tiny_alone(count, "bfloat16", PATHS[0]))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("small_pool", [False, True])
def test_on_every_kernel_path(isa: str, dtype: str, small_pool: bool) -> None:
    count = 80
    found, seen = mixed_run(
        count,
        seed=3,
        small_pool=small_pool,
        dtype=dtype,
        isa=isa,
        max_num_batched_tokens=64,
        block_size=16,
        num_threads=2,
        depth=2,
    )
    assert_happened(seen, 64, preempted=small_pool)
    assert_same(found, tiny_alone(count, dtype, isa))


@pytest.mark.parametrize(
    ("isa", "chunk", "block_size", "threads", "depth"),
    [(PATHS[0], 7, 8, 2, 1), (PATHS[0], 64, 32, 1, 2), (PATHS[0], 512, 4, 2, 2), *[(p, 64, 16, 2, 2) for p in PATHS]],
)
def test_with_int8_kv(isa: str, chunk: int, block_size: int, threads: int, depth: int) -> None:
    """A chunk reads its own tokens' keys and values as they are stored, so where a prompt is cut changes nothing."""
    count = 80
    found, seen = mixed_run(
        count,
        seed=chunk + block_size,
        small_pool=True,
        dtype="bfloat16",
        isa=isa,
        kv_cache_dtype="int8",
        max_num_batched_tokens=chunk,
        block_size=block_size,
        num_threads=threads,
        depth=depth,
    )
    assert_happened(seen, chunk, preempted=True)
    assert_same(found, tiny_alone(count, "bfloat16", isa, "int8"))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize(
    ("isa", "chunk", "block_size", "threads", "depth"),
    [(PATHS[0], 7, 8, 2, 1), (PATHS[0], 512, 32, 1, 2), *[(p, 64, 16, 2, 2) for p in PATHS]],
)
def test_with_quantised_weights(
    isa: str, chunk: int, block_size: int, threads: int, depth: int, quantization: str
) -> None:
    """Activations are rounded by their own row's groups, whatever else is in the step."""
    count = 80
    found, seen = mixed_run(
        count,
        seed=chunk + block_size,
        small_pool=True,
        dtype="bfloat16",
        quantization=quantization,
        isa=isa,
        max_num_batched_tokens=chunk,
        block_size=block_size,
        num_threads=threads,
        depth=depth,
    )
    assert_happened(seen, chunk, preempted=True)
    assert_same(found, tiny_alone(count, "bfloat16", isa, quantization=quantization))


def test_quantised_weights_show() -> None:
    """Or the test above would compare something else."""
    found = [tiny_alone(80, "bfloat16", PATHS[0], quantization=name) for name in ("none", "int8", "int4")]
    assert found[0] != found[1] != found[2] != found[0]


def test_int8_kv_shows() -> None:
    """Or the test above would compare something else."""
    assert tiny_alone(80, "bfloat16", PATHS[0], "int8") != tiny_alone(80, "bfloat16", PATHS[0])


def test_the_comparison_sees_a_difference() -> None:
    """Another seed for one request must be found out, or the tests above could not fail."""
    requests = list(tiny_requests(40))
    place = next(i for i, r in enumerate(requests) if r.sampling.temperature > 0.5 and r.max_tokens > 20)
    requests[place] = msgspec.structs.replace(requests[place], seed=requests[place].seed ^ 1)
    found = run_alone(TINYSTORIES, requests, dtype="bfloat16", isa=PATHS[0], num_threads=1)
    with pytest.raises(AssertionError, match="differs"):
        assert_same(found, {k: v for k, v in tiny_alone(100, "bfloat16", PATHS[0]).items() if k[0] < 40})


# ---- the default model


@pytest.fixture(scope="module")
def smollm2() -> Path:
    return resolve("smollm2-135m").path


@pytest.fixture(scope="module")
def real_requests() -> list[EngineRequest]:
    return random_requests(random.Random(8), 24, vocab_size=49152, max_prompt=50, max_tokens=36, eos=(2,))


@pytest.fixture(scope="module", params=["auto", "none"])
def quantization(request: pytest.FixtureRequest) -> str:
    """The file's own integers, and expanded to bfloat16."""
    chosen: str = request.param
    return chosen


@pytest.fixture(scope="module")
def real_alone(smollm2: Path, real_requests: list[EngineRequest], quantization: str) -> Answers:
    return run_alone(smollm2, real_requests, dtype="bfloat16", quantization=quantization, num_threads=2)


@pytest.mark.model
@pytest.mark.parametrize(
    ("chunk", "block_size", "threads", "depth"),
    [
        (7, 8, 2, 1),
        pytest.param(32, 16, 2, 2, marks=pytest.mark.full),
        pytest.param(512, 32, 1, 1, marks=pytest.mark.full),
        (512, 16, 2, 2),
    ],
)
def test_the_default_model(
    smollm2: Path,
    real_requests: list[EngineRequest],
    real_alone: Answers,
    quantization: str,
    chunk: int,
    block_size: int,
    threads: int,
    depth: int,
) -> None:
    found, seen = run(
        smollm2,
        real_requests,
        arrivals=random.Random(chunk),
        dtype="bfloat16",
        quantization=quantization,
        max_num_batched_tokens=chunk,
        block_size=block_size,
        num_threads=threads,
        depth=depth,
        max_num_seqs=NUM_SEQS,
        max_model_len=96,
        num_blocks=1 + (96 // block_size + 1) * 3 // 2,
    )
    assert_happened(seen, chunk, preempted=True)
    assert_same(found, real_alone)
