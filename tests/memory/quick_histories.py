"""Short histories of a real engine on tinystories, a second or less each: what a planted fault must break."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from golden import memory_scenarios as scenarios
from golden.memory_scenarios import INT8, Model
from memory import test_accounts as accounts
from memory import test_pool_bytes as erasure
from support.core_runs import RealEngine
from support.tiny_models import TinyLlama, write_tiny_llama

History = Callable[[], object]
HISTORIES: dict[str, History] = {}


def history(live: History) -> History:
    HISTORIES[live.__name__] = live
    return live


@cache
def windowed() -> Model:
    folder = Path(tempfile.mkdtemp(prefix="octavo-window-"))
    return Model(write_tiny_llama(folder, TinyLlama(window=24, tied=False, seed=6)), 96)


def audited(engine: RealEngine) -> None:
    """For `watch`: every invariant holds after each step."""
    assert engine.core.audit() == []


@history
def several_answers() -> None:
    scenarios.parallel_samples(count=12)


@history
def several_answers_in_few_rows() -> None:
    scenarios.parallel_samples(count=12, narrow=True, depth=2, block_size=8)


@history
def shared_prefixes() -> None:
    scenarios.shared_prefixes(count=30, max_num_batched_tokens=48)


@history
def shared_prefixes_and_evictions() -> None:
    scenarios.shared_prefixes(count=30, small=True, depth=2, block_size=8)


@history
def preempted_in_the_middle_of_prompts() -> None:
    scenarios.preempted_once_at(way="recompute", places=range(1), num_tokens=32, max_num_batched_tokens=16)


@history
def shared_prefixes_and_resets() -> None:
    rng = random.Random(5)

    def watch(engine: RealEngine) -> None:
        if rng.random() < 0.01:
            engine.core.reset_prefix_cache(rng.choice([None, "a", "b"]))

    scenarios.shared_prefixes(count=40, block_size=8, watch=watch)


@history
def swapped_at_every_step() -> None:
    scenarios.preempted_at_every_step(way="swap", num_tokens=32, depth=2)


@history
def recomputed_at_every_step() -> None:
    scenarios.preempted_at_every_step(INT8, way="recompute", num_tokens=32)


@history
def recomputed_at_depth_2() -> None:
    scenarios.preempted_at_every_step(way="recompute", num_tokens=32, depth=2, enable_prefix_caching=False)


@history
def everything_in_a_tiny_pool() -> None:
    scenarios.tiny_pool(way="swap", count=40, depth=2)


@history
def aborts() -> None:
    scenarios.aborts(count=60)


@history
def aborts_at_depth_2() -> None:
    scenarios.aborts(count=60, depth=2)


@history
def aborts_in_the_middle_of_prompts() -> None:
    scenarios.aborts(count=60, max_num_batched_tokens=24)


@history
def failing_puts() -> None:
    scenarios.failing_tier(put_every=2, count=40, depth=2)


@history
def failing_gets() -> None:
    scenarios.failing_tier(get_every=2, count=40)


@history
def takeover_from_the_failed() -> None:
    scenarios.takeover(abort=False)


@history
def takeover_from_the_aborted() -> None:
    scenarios.takeover(abort=True, depth=2)


@history
def published_prefix() -> None:
    scenarios.published()


@history
def window() -> None:
    scenarios.shared_prefixes(model=windowed(), count=30, block_size=8, depth=2)


@history
def window_and_evictions() -> None:
    scenarios.shared_prefixes(model=windowed(), count=40, block_size=8, small=True)


@history
def window_and_aborts() -> None:
    scenarios.aborts(model=windowed(), count=40)


@history
def accounts_of_tenants() -> None:
    accounts.test_tenants_salts_and_adapters_never_hit_each_others_blocks()


@history
def accounts_while_running() -> None:
    accounts.test_nobody_reads_a_strangers_block_while_all_run_at_once(1)


@history
def erasure_under_swaps() -> None:
    erasure.test_what_is_free_is_zero(erasure.swaps, 2, scenarios.PLAIN)


@history
def erasure_under_aborts() -> None:
    erasure.test_what_is_free_is_zero(erasure.aborted, 1, scenarios.PLAIN)


@history
def erasure_under_evictions() -> None:
    erasure.test_what_is_free_is_zero(erasure.hits, 1, scenarios.PLAIN)


@history
def erasure_when_idle() -> None:
    erasure.test_an_idle_engine_erases_what_a_reset_frees(1, True)


@history
def erasure_before_reuse() -> None:
    erasure.test_a_block_is_erased_before_it_is_held_again(1, True, True)


@history
def audited_tiny_pool() -> None:
    scenarios.tiny_pool(way="swap", count=40, room=340, watch=audited)


@history
def audited_aborts() -> None:
    scenarios.aborts(count=40, depth=2, watch=audited)


@history
def audited_prefixes() -> None:
    scenarios.shared_prefixes(count=30, small=True, block_size=8, watch=audited)
