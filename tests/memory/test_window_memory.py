"""How much memory local and global layers really hold, from the accounts of a sequence that decodes past 8k tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.kv_groups import group_layers
from octavo.core.kv_spec import KVSpec
from octavo.messages import EngineRequest, SamplingParams
from support.core_runs import RealEngine
from support.core_scripts import ScriptedExecutor
from support.mixed_windows import alternating, mixed_windows
from support.tiny_models import TinyLlama, write_tiny_llama

WINDOW = 512
NUM_PROMPT = 8192
NUM_ANSWER = 80
"""More than a block of any size in use, so that every fill of the last block is seen."""
CHUNK = 1024


def required(windows: list[int | None], num_tokens: int) -> int:
    """What windows require, in units of one layer's KV of one token."""
    return sum(min(window or num_tokens, num_tokens) for window in windows)


def ask(num_prompt: int, num_answer: int) -> EngineRequest:
    tokens = [3 + i * i % 61 for i in range(num_prompt)]
    sampling = SamplingParams(temperature=0.0, max_tokens=num_answer, ignore_eos=True)
    return EngineRequest(
        request_id=1,
        token_ids=tokens,
        num_prompt_tokens=num_prompt,
        sampling=sampling,
        seed=0,
        max_tokens=num_answer,
    )


def held(core: EngineCore) -> Iterator[tuple[int, int]]:
    """Step by step: tokens of the only sequence whose KV is there, and blocks that the accounts charge for it."""
    while core.has_work:
        core.step(0.0)
        for sequence in core.scheduler.running.values():
            (account,) = (a for a in core.kv_stats().accounts if a.num_held_blocks)
            assert account.num_held_blocks == sequence.num_held_blocks
            yield sequence.num_computed_tokens, account.num_held_blocks
    assert core.audit() == []


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("block_size", [8, 16, 32, 64])
@pytest.mark.parametrize("num_layers", [18, 26, 34, 48, 62])
def test_a_stack_of_local_and_global_layers_holds_what_its_windows_require(
    num_layers: int, block_size: int, depth: int
) -> None:
    windows = alternating(num_layers, WINDOW)
    groups = group_layers(windows, NUM_PROMPT + NUM_ANSWER, block_size)
    page = block_size * max(len(group.layers) for group in groups)
    spec = KVSpec(groups=groups, block_size=block_size, bytes_per_block=page)
    executor = ScriptedExecutor(spec, num_blocks=40_000)
    limits = {"max_num_seqs": 1, "max_num_batched_tokens": CHUNK, "max_model_len": NUM_PROMPT + NUM_ANSWER}
    core = EngineCore(executor, **limits, depth=depth, enable_prefix_caching=False)
    core.add(ask(NUM_PROMPT, NUM_ANSWER))
    peak = decoding = 0.0
    for num_tokens, num_blocks in held(core):
        share = num_blocks * page / required(windows, num_tokens)
        if num_tokens > NUM_PROMPT + depth:  # what the last chunk read has gone
            decoding = max(decoding, share)
        peak = max(peak, num_blocks)
    assert 1.0 <= decoding <= 1.1
    assert peak <= spec.peak_blocks(NUM_PROMPT + NUM_ANSWER, depth * CHUNK)
    print(
        f"{num_layers} layers in {len(groups)} groups, blocks of {block_size}, depth {depth}: {decoding:.3f} of what "
        f"windows require while decoding, {peak * page / required(windows, NUM_PROMPT):.3f} in chunks of {CHUNK}"
    )


@pytest.mark.parametrize("block_size", [16, None])
@pytest.mark.parametrize("num_layers", [18, 26])
def test_the_real_engine_holds_what_windows_require(tmp_path: Path, num_layers: int, block_size: int | None) -> None:
    """The prompt is short of 8000 tokens only as far as the sequence then decodes past them."""
    model = TinyLlama(
        num_layers=num_layers, hidden_size=16, intermediate_size=16, num_heads=1, num_kv_heads=1, max_position=8192
    )
    folder, windows = write_tiny_llama(tmp_path, model), alternating(num_layers, WINDOW)
    with (
        mixed_windows(windows),
        RealEngine.open(
            folder, block_size=block_size, max_num_seqs=1, max_num_batched_tokens=CHUNK, enable_prefix_caching=False
        ) as engine,
    ):
        info, spec = engine.executor.info, engine.executor.kv_spec
        assert info.max_model_len == 8192 and "groups of layers" in info.kv_groups
        if block_size is None:
            assert "tokens per sequence" in info.block_size_reason
        per_layer = info.bytes_per_block // (spec.block_size * max(len(group.layers) for group in spec.groups))
        engine.core.add(ask(8000 - 20, 100))
        shares = [
            num_blocks * info.bytes_per_block / (required(windows, num_tokens) * per_layer)
            for num_tokens, num_blocks in held(engine.core)
            if num_tokens > 8000
        ]
    print(f"{num_layers} layers, {info.block_size_reason}: {max(shares):.3f} of what windows require")
    assert len(shares) > 70 and 1.0 <= max(shares) <= 1.1
