from __future__ import annotations

import time

import pytest

from octavo.core.accounts import Accounts
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.eviction import LeastRecentlyUsed
from octavo.errors import InvariantError


def test_every_block_but_the_null_block_is_handed_out_once() -> None:
    pool, account = BlockPool(6), Accounts().open("red")
    block_ids = pool.acquire(5, account)
    assert sorted(block_ids) == [1, 2, 3, 4, 5] and NULL_BLOCK not in block_ids
    assert (pool.num_free, pool.num_held, account.num_held_blocks) == (0, 5, 5)


def test_taking_is_all_or_nothing() -> None:
    pool, account = BlockPool(4), Accounts().open("red")
    with pytest.raises(InvariantError, match="4 blocks were taken when 3 were free"):
        pool.acquire(4, account)
    assert (pool.num_free, account.num_held_blocks) == (3, 0)
    assert pool.acquire(0, account) == []


def test_the_owner_is_charged_until_the_block_is_free() -> None:
    pool, accounts = BlockPool(5), Accounts()
    red, blue = accounts.open("red"), accounts.open("blue")
    held, other = pool.acquire(2, red), pool.acquire(2, blue)
    pool.release(held)
    assert (red.num_held_blocks, blue.num_held_blocks) == (0, 2)
    assert [pool.owner[block_id] for block_id in held + other] == [None, None, blue, blue]
    assert accounts.total("num_held_blocks") == 2


def test_a_block_with_two_references_is_free_after_the_second() -> None:
    pool, account = BlockPool(3), Accounts().open("red")
    block_ids = pool.acquire(1, account)
    pool.ref_count[block_ids[0]] += 1
    pool.release(block_ids)
    assert (pool.num_free, account.num_held_blocks) == (1, 1)
    pool.release(block_ids)
    assert (pool.num_free, account.num_held_blocks) == (2, 0)


def test_a_free_block_cannot_be_released() -> None:
    pool, account = BlockPool(3), Accounts().open("red")
    block_ids = pool.acquire(1, account)
    pool.release(block_ids)
    for again in (block_ids, [NULL_BLOCK]):
        with pytest.raises(InvariantError, match="nobody held it"):
            pool.release(again)


def test_the_tail_is_used_again_before_the_prefix_and_fresh_blocks_last() -> None:
    pool, account = BlockPool(10), Accounts().open("red")
    first, second = pool.acquire(3, account), pool.acquire(2, account)
    pool.release(second)
    pool.release(first)
    assert pool.acquire(5, account) == [*reversed(second), *reversed(first)]
    assert pool.acquire(2, account) == [6, 7]


def test_the_order_can_be_listed_and_counted() -> None:
    order = LeastRecentlyUsed(range(1, 4))
    assert (list(order), len(order)) == ([1, 2, 3], 3)
    order.put(order.pop())
    assert (list(order), order.pop(), len(order)) == ([1, 2, 3], 1, 2)


def test_a_given_order_is_used_even_when_it_is_empty() -> None:
    order = LeastRecentlyUsed(range(1, 1))
    assert BlockPool(3, order).eviction is order


def test_work_does_not_grow_with_the_pool() -> None:
    """Taking and returning costs the same in a pool of a million as in one of a thousand."""

    def best_s(pool: BlockPool) -> float:
        account = Accounts().open("red")
        times = []
        for _ in range(50):
            start = time.perf_counter()
            pool.release(pool.acquire(100, account))
            times.append(time.perf_counter() - start)
        return min(times)

    assert best_s(BlockPool(1_000_001)) < 10 * best_s(BlockPool(1_001))
