"""Random histories on the memory of the paper's baselines, and the faults that they would notice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from octavo.core.accounts import Account
from octavo.core.buddy_pool import BuddyPool
from octavo.core.contiguous import ContiguousKVManager
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_policies import KV_POLICIES
from octavo.core.request import Sequence
from octavo.core.step import StepPlan
from property.driver import drive

CONTIGUOUS = [name for name in KV_POLICIES if name != "paged"]
MUST_HAPPEN = ("abort", "beam_tokens", "chunks", "copies", "erases", "forks", "mixed", "num_wasted_slots", "refused")
NEVER = ("num_preemptions", "num_swap_preemptions", "num_recompute_faults", "num_prefix_hit_tokens", "twins_sampled")


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_any_history_keeps_tokens_and_chunks_right(name: str) -> None:
    events = drive(2_500, kv_policy=name).events
    assert not [event for event in MUST_HAPPEN if not events[event]], events
    assert not [event for event in NEVER if events[event]], events


# ---- faults


def forget_the_copies(patch: pytest.MonkeyPatch) -> None:
    """A forked beam's chunk is empty."""
    end_plan = ContiguousKVManager.end_plan

    def forget(kv: ContiguousKVManager, plan: StepPlan) -> None:
        end_plan(kv, plan)
        plan.copies.clear()

    patch.setattr(ContiguousKVManager, "end_plan", forget)


def write_into_the_parent_s_chunk(patch: pytest.MonkeyPatch) -> None:
    """The worker is not told of a forked beam's own chunk."""
    end_plan = ContiguousKVManager.end_plan

    def silent(kv: ContiguousKVManager, plan: StepPlan) -> None:
        num_entries = len(plan.table_growth)
        end_plan(kv, plan)
        del plan.table_growth[num_entries:]

    patch.setattr(ContiguousKVManager, "end_plan", silent)


def copy_for_the_dead(patch: pytest.MonkeyPatch) -> None:
    """Who ends before the worker has heard of it is forked all the same."""
    patch.setattr(ContiguousKVManager, "detach", KVCacheManager.detach)


def spare_chunks_leak(patch: pytest.MonkeyPatch) -> None:
    """The chunks of beams to come stay held when the search ends."""
    reserve = ContiguousKVManager.reserve

    def clinging(kv: ContiguousKVManager, group: Any, count: int) -> None:
        if count:
            reserve(kv, group, count)

    patch.setattr(ContiguousKVManager, "reserve", clinging)


def beams_get_no_reserve(patch: pytest.MonkeyPatch) -> None:
    """A search is admitted with one chunk."""
    patch.setattr(ContiguousKVManager, "reserve", lambda kv, group, count: None)


def half_a_chunk(patch: pytest.MonkeyPatch) -> None:
    """Too little is reserved."""
    size = ContiguousKVManager._chunk_of
    patch.setattr(ContiguousKVManager, "_chunk_of", lambda kv, sequence: max(1, size(kv, sequence) // 2))


def buddies_stay_apart(patch: pytest.MonkeyPatch) -> None:
    """Freed chunks are not merged."""

    def put(pool: BuddyPool, offset: int, order: int) -> None:
        pool._num_free += 1 << order
        pool._chunks[order][offset] = None

    patch.setattr(BuddyPool, "_put_chunk", put)


def blocks_out_of_order(patch: pytest.MonkeyPatch) -> None:
    """A chunk's blocks are handed out in another order."""
    acquire = BuddyPool.acquire
    patch.setattr(BuddyPool, "acquire", lambda pool, count, account: acquire(pool, count, account)[::-1])


def the_wrong_half(patch: pytest.MonkeyPatch) -> None:
    """What is left of a chunk that was split is thought to lie where the taken half lies."""
    acquire = BuddyPool.acquire

    def shifted(pool: BuddyPool, count: int, account: Account) -> list[int]:
        before = [set(chunks) for chunks in pool._chunks]
        taken = acquire(pool, count, account)
        for order, chunks in enumerate(pool._chunks):
            for offset in set(chunks) - before[order]:
                del chunks[offset]
                chunks[taken[0] - 1] = None
        return taken

    patch.setattr(BuddyPool, "acquire", shifted)


def answers_share_the_prompt(patch: pytest.MonkeyPatch) -> None:
    """Answers of one request fork from the one that computes the prompt, as pages do, and own no chunk."""
    patch.setattr(ContiguousKVManager, "shares", True)
    patch.setattr(ContiguousKVManager, "fork", KVCacheManager.fork)


def the_last_of_a_crowd_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A sequence leaves, and the end of its chunk stays held."""
    detach = ContiguousKVManager.detach

    def forgetful(kv: ContiguousKVManager, sequence: Sequence) -> list[int]:
        return detach(kv, sequence)[:-1]

    patch.setattr(ContiguousKVManager, "detach", forgetful)


SMALL = {"depth": 1, "max_num_seqs": 6, "budget": 24, "capacity": 8, "block_size": 4}
"""A shape in which searches run beside others with little room to spare."""

Fault = Callable[[pytest.MonkeyPatch], None]
FAULTS: list[Fault] = [
    forget_the_copies,
    write_into_the_parent_s_chunk,
    copy_for_the_dead,
    spare_chunks_leak,
    beams_get_no_reserve,
    half_a_chunk,
    buddies_stay_apart,
    blocks_out_of_order,
    the_wrong_half,
    answers_share_the_prompt,
    the_last_of_a_crowd_is_forgotten,
]


@pytest.mark.parametrize("plant", FAULTS, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception) as caught:
        drive(40_000, kv_policy="orca-oracle", **SMALL)
    assert not isinstance(caught.value, AttributeError | TypeError | NameError), f"a broken switch: {caught.value!r}"
