"""Erasure, by reading the bytes of the real pool and of the real host tier.

With `erase_freed_blocks` every free block and every free slot is zero, but for those that the very next plan zeroes;
an idle engine zeroes them too. Each check is also made with erasure off, where it must find bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from golden import memory_scenarios as scenarios
from golden.memory_scenarios import INT8, PLAIN, STORIES, Format, Model, open_engine, request, some_tokens
from support.core_runs import RealEngine, Seen
from support.memory_runs import block_is_zero, dirty_blocks, dirty_slots, finish_plans, pending_erases, tier_of
from support.tiny_models import TinyLlama, write_tiny_llama

DEPTHS = pytest.mark.parametrize("depth", [1, 2])
FORMATS = pytest.mark.parametrize("form", [PLAIN, INT8], ids=["bfloat16", "int8"])


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("window")
    return Model(write_tiny_llama(folder, TinyLlama(window=24, tied=False, seed=6)), 96)


class Reader:
    """Reads all that is free after each step, and counts what it finds."""

    def __init__(self) -> None:
        self.num_dirty_blocks = 0
        self.num_dirty_slots = 0
        self.num_reads = 0
        self.num_pending = 0
        self.num_idle_ends = 0
        self._num_idle_steps = 0

    def __call__(self, engine: RealEngine) -> None:
        pending = pending_erases(engine)
        self.num_reads += 1
        self.num_pending += len(pending)
        self.num_dirty_blocks += len(dirty_blocks(engine, pending))
        self.num_dirty_slots += len(dirty_slots(engine))
        erases = engine.config.cache.erase_freed_blocks
        self._num_idle_steps = 0 if engine.core._scheduler.requests else self._num_idle_steps + 1
        assert self._num_idle_steps <= 4, "an idle engine goes on and on"
        if not engine.core.has_work:
            self.num_idle_ends += 1
            assert pending == [] and engine.core._scheduler.slots.discards == []
            assert not erases or dirty_blocks(engine) == [], "an idle engine left bytes"


def swaps(reader: Reader, form: Format, **settings: Any) -> Seen:
    return scenarios.tiny_pool(form, way="swap", watch=reader, **settings)


def aborted(reader: Reader, form: Format, **settings: Any) -> Seen:
    return scenarios.aborts(form, watch=reader, **settings)


def hits(reader: Reader, form: Format, **settings: Any) -> Seen:
    return scenarios.shared_prefixes(form, small=True, count=60, watch=reader, **settings)


HISTORIES: list[Callable[..., Seen]] = [swaps, aborted, hits]


@FORMATS
@DEPTHS
@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_what_is_free_is_zero(history: Callable[..., Seen], depth: int, form: Format) -> None:
    reader = Reader()
    seen = history(reader, form, depth=depth, erase_freed_blocks=True)
    assert (reader.num_dirty_blocks, reader.num_dirty_slots) == (0, 0)
    assert reader.num_reads > 40 and reader.num_idle_ends > 0
    assert seen.num_erased > 20 and seen.num_copies > 20
    assert history is hits or (seen.num_discarded > 0 and seen.num_swapped_out > 0)


@pytest.mark.parametrize("history", HISTORIES, ids=lambda history: history.__name__)
def test_without_erasure_bytes_are_found(history: Callable[..., Seen]) -> None:
    reader = Reader()
    seen = history(reader, PLAIN, depth=2)
    assert seen.num_erased == 0 and reader.num_dirty_blocks > 0
    assert history is hits or reader.num_dirty_slots > 0


@DEPTHS
@pytest.mark.parametrize("erase", [True, False])
def test_what_leaves_a_window_is_zero(windowed: Model, depth: int, erase: bool) -> None:
    reader = Reader()
    requests = [request(i, some_tokens(random.Random(i), 100, 96), max_tokens=70, ignore_eos=True) for i in range(3)]
    settings: dict[str, Any] = {"block_size": 8, "num_blocks": 200, "max_num_seqs": 4}
    with open_engine(
        windowed, PLAIN, watch=reader, depth=depth, erase_freed_blocks=erase, enable_prefix_caching=False, **settings
    ) as engine:
        found: list[int] = []

        def look(engine: RealEngine) -> None:
            if engine.stats.num_running == 3:
                found.append(len(dirty_blocks(engine, pending_erases(engine))))

        engine.drive(requests, None, look)
        assert engine.seen.num_windows_left > 20 and len(found) > 60
        assert (sum(found) == 0) is erase and (reader.num_dirty_blocks == 0) is erase


@DEPTHS
@pytest.mark.parametrize("erase", [True, False])
def test_an_idle_engine_erases_what_a_reset_frees(depth: int, erase: bool) -> None:
    with open_engine(STORIES, PLAIN, num_blocks=60, block_size=16, depth=depth, erase_freed_blocks=erase) as engine:
        engine.drive([request(1, some_tokens(random.Random(1), 100, 512), max_tokens=20, ignore_eos=True)])
        assert not engine.core.has_work and engine.stats.num_cached_blocks > 6
        assert dirty_blocks(engine) == [] or not erase
        assert engine.core.reset_prefix_cache() > 6
        assert dirty_blocks(engine) != [], "what was cached is not zero until the next plan"
        num_steps = 0
        while engine.core.has_work:
            engine.step()
            num_steps += 1
        assert num_steps <= depth
        finish_plans(engine)
        zero = [block_is_zero(engine, block_id) for block_id in range(1, 60)]
        assert all(zero) is erase


@DEPTHS
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("erase", [True, False])
def test_a_block_is_erased_before_it_is_held_again(depth: int, erase: bool, caching: bool) -> None:
    """What the last block of a running sequence holds is no more than its own tokens have written, whether it was free
    before or made room."""
    rng = random.Random(3)
    requests = [  # that share nothing, so that nobody's block is a copy of another's
        request(i, [3 + i, *some_tokens(rng, rng.randint(5, 60), 512)], max_tokens=rng.randint(2, 30), ignore_eos=True)
        for i in range(60)
    ]
    settings: dict[str, Any] = {"num_blocks": 24, "block_size": 16, "max_num_seqs": 6, "enable_prefix_caching": caching}
    num_too_many = num_looked_at = 0

    def look(engine: RealEngine) -> None:
        nonlocal num_too_many, num_looked_at
        finish_plans(engine)
        kv = engine.executor.inner._runner._kv
        for sequence in engine.core._scheduler.running.values():
            used = sequence.num_computed_tokens - 16 * (len(sequence.block_tables[0]) - 1)
            num_written = sum(byte != 0 for byte in kv.export_block(sequence.block_tables[0][-1]))
            num_looked_at += 1
            # A sequence that has ended in the plan in flight may have written one token more.
            num_too_many += num_written > (used + depth - 1) * engine.executor.kv_spec.bytes_per_block // 16

    with open_engine(
        STORIES, PLAIN, depth=depth, erase_freed_blocks=erase, preemption="recompute", **settings
    ) as engine:
        engine.drive(requests, None, look)
        assert (engine.stats.num_evictions > 0) is caching
    assert num_looked_at > 200
    assert (num_too_many == 0) is erase


@DEPTHS
def test_host_slots_hold_nothing_when_everybody_is_back(depth: int) -> None:
    for erase in (True, False):
        seen_bytes: list[bool] = []

        def look(engine: RealEngine, seen_bytes: list[bool] = seen_bytes) -> None:
            if not engine.core.has_work:
                finish_plans(engine)
                seen_bytes.append(bool(tier_of(engine)._slots.any()))

        scenarios.preempted_at_every_step(way="swap", num_tokens=32, depth=depth, erase_freed_blocks=erase, watch=look)
        assert seen_bytes == [not erase]
