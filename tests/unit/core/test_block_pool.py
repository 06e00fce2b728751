from __future__ import annotations

import time

import pytest

from octavo.core.accounts import Accounts
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.prefix_index import Content
from octavo.errors import InvariantError


class Known:
    """Stands in for the index: names blocks, and notes what it is told to forget."""

    def __init__(self) -> None:
        self.forgotten: list[int] = []

    def name(self, pool: BlockPool, block_id: int) -> None:
        content = Content(b"%d" % block_id, None, (block_id,), 1, 0)
        content.blocks = [block_id]
        pool.content[block_id] = content

    def forget(self, content: Content, block_id: int) -> None:
        assert content.blocks == [block_id]
        self.forgotten.append(block_id)


def test_every_block_but_the_null_block_is_handed_out_once() -> None:
    pool, account = BlockPool(6), Accounts().open("red")
    block_ids = pool.acquire(5, account)
    assert sorted(block_ids) == [1, 2, 3, 4, 5] and NULL_BLOCK not in block_ids
    assert (pool.num_free, pool.num_held, account.num_held_blocks) == (0, 5, 5)


def test_taking_is_all_or_nothing() -> None:
    pool, account = BlockPool(4), Accounts().open("red")
    with pytest.raises(InvariantError, match="4 blocks were taken when 3 were available"):
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


def test_freed_blocks_are_used_again_before_fresh_ones() -> None:
    pool, account = BlockPool(100), Accounts().open("red")
    first, second = pool.acquire(3, account), pool.acquire(2, account)
    pool.release(second)
    pool.release(first)
    assert set(pool.acquire(5, account)) == {*first, *second}
    assert set(pool.acquire(94, account)).isdisjoint([*first, *second])
    assert pool.num_free == 0


def test_cached_blocks_make_room_last_and_the_tail_before_its_prefix() -> None:
    pool, account, index = BlockPool(8), Accounts().open("red"), Known()
    pool.forget = index.forget
    table = pool.acquire(4, account)
    for block_id in table:
        index.name(pool, block_id)
    pool.release(table)
    assert (pool.num_cached, pool.num_free, pool.num_available, pool.num_held) == (4, 3, 7, 0)
    assert (account.num_cached_blocks, account.num_held_blocks) == (4, 0)
    taken = pool.acquire(5, account)
    assert set(taken) == {5, 6, 7, table[3], table[2]}, "free ones first, then from the tail on"
    assert index.forgotten == [table[3], table[2]]
    assert (account.num_cached_blocks, account.num_evicted_blocks, pool.num_evictions) == (2, 2, 2)
    assert [pool.content[block_id] for block_id in taken] == [None] * 5


def test_a_hit_holds_a_cached_block_again_on_its_makers_account() -> None:
    pool, red, index = BlockPool(4), Accounts().open("red"), Known()
    pool.forget = index.forget
    (block_id,) = pool.acquire(1, red)
    index.name(pool, block_id)
    pool.share(block_id)
    assert pool.ref_count[block_id] == 2
    assert pool.release([block_id]) == 0 and pool.release([block_id]) == 1
    assert pool.owner[block_id] is red
    pool.share(block_id)
    assert (pool.ref_count[block_id], red.num_held_blocks, red.num_cached_blocks) == (1, 1, 0)
    with pytest.raises(InvariantError, match="shared and is free"):
        pool.share(3)


def test_dropped_content_frees_a_cached_block_and_leaves_a_held_one() -> None:
    pool, red, index = BlockPool(4), Accounts().open("red"), Known()
    pool.forget = index.forget
    held, cached, plain = pool.acquire(3, red)
    index.name(pool, held)
    index.name(pool, cached)
    pool.release([cached])
    for block_id in (held, cached, plain):
        pool.drop_content(block_id)
    assert index.forgotten == [held, cached]
    assert (pool.num_free, pool.num_cached, red.num_held_blocks, red.num_cached_blocks) == (1, 0, 2, 0)
    assert pool.owner[cached] is None and pool.owner[held] is red


def test_freed_blocks_are_listed_for_erasure_once_however_they_were_freed() -> None:
    pool, red, index = BlockPool(5, erases=True), Accounts().open("red"), Known()
    pool.forget = index.forget
    released, dropped, evicted, kept = pool.acquire(4, red)
    index.name(pool, dropped)
    index.name(pool, evicted)
    pool.release([released])
    pool.release([dropped, evicted])
    assert pool.freed == [released], "a cached block is not freed"
    pool.drop_content(dropped)
    pool.acquire(3, red)
    assert pool.take_freed() == [released, dropped, evicted] and pool.take_freed() == []
    assert pool.ref_count[kept] == 1
    plain = BlockPool(5)
    plain.release(plain.acquire(1, red))
    assert plain.take_freed() == []


def test_the_age_of_a_state_begins_when_it_is_taken() -> None:
    pool, red, index = BlockPool(3), Accounts().open("red"), Known()
    pool.forget = index.forget
    seen = []
    pool.now_s = 1.0
    (block_id,) = pool.acquire(1, red)
    index.name(pool, block_id)
    for now_s, move in (
        (2.0, lambda: pool.release([block_id])),
        (3.0, lambda: pool.share(block_id)),
        (4.0, lambda: pool.share(block_id)),
        (5.0, lambda: pool.release([block_id, block_id])),
        (6.0, lambda: pool.drop_content(block_id)),
    ):
        pool.now_s = now_s
        move()
        seen.append(pool.since_s[block_id])
    assert seen == [2.0, 3.0, 3.0, 5.0, 6.0]


def test_damaged_books_are_not_built_upon() -> None:
    pool, red = BlockPool(3), Accounts().open("red")
    (block_id,) = pool.acquire(1, red)
    pool.content[block_id] = Content(b"key", None, (1,), 1, 0)
    with pytest.raises(InvariantError, match="there is no index"):
        pool.drop_content(block_id)
    pool.cached.put(block_id, Content(b"key", None, (1,), 1, 0))
    with pytest.raises(InvariantError, match="in the eviction order without content or owner"):
        pool.acquire(2, red)


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
