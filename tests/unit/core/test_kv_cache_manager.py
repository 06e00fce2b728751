"""Reserve, bind, return: what a sequence holds while it is computed chunk by chunk."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.accounts import Accounts
from octavo.core.block_keys import ModelFingerprint
from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_index import NO_MATCH, PrefixIndex
from octavo.core.request import Sequence, make_sequences
from octavo.core.step import StepPlan
from support.core_scripts import request, spec


def manager(
    num_blocks: int = 20,
    windows: tuple[int | None, ...] = (None,),
    block_size: int = 4,
    max_chunk: int = 8,
    depth: int = 1,
    caching: bool = False,
) -> KVCacheManager:
    kinds = spec(block_size, windows)
    model = ModelFingerprint(weights="", kv_dtype="", block_size=block_size, layout_version=1, kernel_path="")
    index = PrefixIndex(kinds, model, bytes(16)) if caching else None
    return KVCacheManager(kinds, BlockPool(num_blocks + 1), index, max_chunk=max_chunk, depth=depth)


def sequence(kv: KVCacheManager, num_prompt: int = 10, row: int = 3, **changes: Any) -> Sequence:
    (made,) = make_sequences(request(num_prompt=num_prompt, **changes), 0, kv.num_groups, Accounts().open("red"))
    made.row = row
    kv.identify(made)
    return made


def plan() -> StepPlan:
    return StepPlan(1, [], [], [], [], [], [])


def admit(kv: KVCacheManager, made: Sequence, budget: int, into: StepPlan | None = None) -> int:
    """Admit after a look-up, as the scheduler does."""
    return kv.admit(made, kv.match(made), budget, into or plan())


def go_on(kv: KVCacheManager, made: Sequence, end: int, into: StepPlan | None = None) -> bool:
    """Leave windows and grow, as the scheduler does."""
    into = into or plan()
    kv.leave_windows(made, into)
    return end <= made.num_slots or kv.grow(made, end, into)


def compute(made: Sequence, end: int) -> None:
    """What a plan does to the progress."""
    made.last_start, made.num_computed_tokens = made.num_computed_tokens, end


def test_admission_promises_the_prefill_and_binds_the_first_chunk() -> None:
    kv = manager()
    made, step = sequence(kv, num_prompt=10), plan()
    assert admit(kv, made, 5, step) == 5
    assert step.table_growth == [(0, 3, 0, 2), (0, 3, 1, 1)]
    assert (made.num_slots, made.num_promised_blocks, kv.num_promised_blocks) == (8, 1, 1)
    assert (made.account.num_held_blocks, made.account.num_promised_blocks) == (2, 1)
    assert kv.num_available_blocks == 20 - 3


def test_a_promise_is_used_up_by_later_chunks() -> None:
    kv = manager(num_blocks=3)
    made = sequence(kv, num_prompt=10)
    assert admit(kv, made, 5)
    assert kv.num_available_blocks == 0
    compute(made, 5)
    assert kv.grow(made, 10, plan())
    assert (made.num_promised_blocks, kv.num_promised_blocks, made.num_held_blocks) == (0, 0, 3)


def test_nobody_else_gets_a_promised_block() -> None:
    kv = manager(num_blocks=3)
    first, second = sequence(kv, num_prompt=10), sequence(kv, num_prompt=4)
    assert admit(kv, first, 4)
    step = plan()
    assert admit(kv, second, 4, step) == 0
    assert (step, second.num_held_blocks, second.num_promised_blocks) == (plan(), 0, 0)
    assert kv.pool.num_free == 2


def test_growth_without_room_changes_nothing() -> None:
    kv = manager(num_blocks=3, windows=(None, None))
    made = sequence(kv, num_prompt=4)
    assert admit(kv, made, 4)
    compute(made, 4)
    step = plan()
    assert kv.shortage(made, 5) == 1
    assert not kv.grow(made, 5, step)
    assert (step, made.num_slots, kv.pool.num_free) == (plan(), 4, 1)


def test_blocks_below_the_window_are_returned_before_the_sequence_grows() -> None:
    kv = manager(windows=(None, 6))
    made = sequence(kv, num_prompt=8)
    assert admit(kv, made, 8)
    compute(made, 8)
    assert go_on(kv, made, 9)
    assert made.block_tables[1][0] != 0, "token 8 still sees token 3"
    compute(made, 9)
    step = plan()
    held = made.block_tables[1][0]
    assert go_on(kv, made, 10, step)
    assert step.table_growth == [(1, 3, 0, 0)], "token 9 sees 4 .. 9; block 0 holds 0 .. 3, and no block is needed"
    assert made.first_columns == [0, 1] and made.block_tables[1][0] == 0
    assert held in kv.pool.free_blocks()


def test_groups_of_one_window_leave_it_together() -> None:
    kv = manager(windows=(6, None, 6, 2))
    made = sequence(kv, num_prompt=8)
    assert admit(kv, made, 8)
    compute(made, 8)
    kv.leave_windows(made, plan())
    assert made.first_columns == [0, 0, 0, 1]
    compute(made, 9)
    step = plan()
    kv.leave_windows(made, step)
    assert made.first_columns == [1, 0, 1, 2]
    assert step.table_growth == [(0, 3, 0, 0), (2, 3, 0, 0), (3, 3, 1, 0)]
    step = plan()
    kv.leave_windows(made, step)
    assert made.first_columns == [1, 0, 1, 2] and not step.table_growth


def test_with_plans_that_overlap_a_window_is_left_one_plan_later() -> None:
    """The plan in flight computes 8 .. 11 and reads from 7 on; the new one reads from 11 on."""
    early, late = manager(windows=(2,), depth=1), manager(windows=(2,), depth=2)
    left = []
    for kv in (early, late):
        made = sequence(kv, num_prompt=16)
        assert admit(kv, made, 8)
        compute(made, 8)
        assert go_on(kv, made, 12)
        compute(made, 12)
        assert go_on(kv, made, 16)
        left.append(made.first_columns[0])
    assert left == [2, 1]


def test_detach_takes_everything_and_frees_nothing() -> None:
    kv = manager(windows=(None, 1))
    made = sequence(kv, num_prompt=14)
    assert admit(kv, made, 8)
    compute(made, 8)
    assert go_on(kv, made, 9)
    num_free = kv.pool.num_free
    block_ids = kv.detach(made)
    assert 0 not in block_ids and len(set(block_ids)) == 4
    assert (made.block_tables, made.first_columns, made.num_slots) == ([[], []], [0, 0], 0)
    assert (kv.num_promised_blocks, made.account.num_promised_blocks) == (0, 0)
    assert kv.pool.num_free == num_free
    kv.pool.release(block_ids)
    assert kv.pool.num_free == 20


def test_faults_are_counted_by_cause() -> None:
    kv = manager(windows=(None, None))
    made = sequence(kv, num_prompt=10)
    made.num_lost_tokens = 6
    assert admit(kv, made, 10)
    assert (made.account.num_recompute_faults, made.account.num_allocation_faults) == (2 * 2, 1 * 2)


def test_without_an_index_nothing_is_known() -> None:
    kv = manager()
    made = sequence(kv, num_prompt=8)
    assert kv.match(made) == NO_MATCH
    admit(kv, made, 8)
    kv.seal(made)
    assert kv.commit(made, 8) == [] and kv.reset(None) == 0
    kv.pool.release(kv.detach(made))
    assert kv.pool.num_free == 20


@given(
    block_size=st.sampled_from([1, 2, 4, 8]),
    window=st.integers(1, 40),
    max_chunk=st.integers(1, 30),
    depth=st.integers(1, 2),
    num_tokens=st.integers(1, 80),
    data=st.data(),
)
def test_the_reserve_is_never_exceeded(
    block_size: int, window: int, max_chunk: int, depth: int, num_tokens: int, data: st.DataObject
) -> None:
    """Chunks of any size up to the limit hold at most `peak_blocks` at once, so a pool of that size is enough."""
    kv = manager(1, (None, window), block_size, max_chunk, depth)
    peak = kv.peak_blocks(num_tokens)
    kv.pool = BlockPool(peak + 1)
    made = sequence(kv, num_prompt=num_tokens)
    end = data.draw(st.integers(1, min(max_chunk, num_tokens)))
    assert admit(kv, made, end)
    compute(made, end)
    while end < num_tokens:
        end = data.draw(st.integers(end + 1, min(end + max_chunk, num_tokens)))
        assert go_on(kv, made, end)
        assert made.num_held_blocks + made.num_promised_blocks <= peak
        compute(made, end)
    assert made.num_promised_blocks == 0


@pytest.mark.parametrize(("num_tokens", "blocks"), [(1, 2), (4, 2), (5, 4), (16, 8), (17, 9), (400, 104)])
def test_a_window_bounds_the_reserve(num_tokens: int, blocks: int) -> None:
    """Window 6 and chunks of 8: 13 adjacent tokens, which touch at most 4 blocks of 4."""
    assert manager(windows=(None, 6)).peak_blocks(num_tokens) == blocks
