"""Chunks are adjacent, aligned, split and merged as a buddy allocator does, and accounted for as any block."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from octavo.core.accounts import Account, Accounts
from octavo.core.buddy_pool import BuddyPool, power_of_two
from octavo.errors import InvariantError


@pytest.fixture
def red() -> Account:
    return Accounts().open("red")


def free_sizes(pool: BuddyPool) -> dict[int, int]:
    """Chunk size to the number of free chunks."""
    return {1 << order: len(chunks) for order, chunks in enumerate(pool._chunks) if chunks}


@pytest.mark.parametrize(("num", "power"), [(0, 1), (1, 1), (2, 2), (3, 4), (25, 32), (32, 32), (33, 64)])
def test_powers_of_two(num: int, power: int) -> None:
    assert power_of_two(num) == power


@pytest.mark.parametrize(
    ("num_blocks", "sizes"),
    # 983 blocks of 16 are the 15.7 K slots of OPT-13B: seven contexts of 2048, and a tail of 87.
    [(8, {8: 1}), (16, {8: 2}), (6, {4: 1, 2: 1}), (23, {8: 2, 4: 1, 2: 1, 1: 1})],
)
def test_the_arena_is_cut_into_largest_chunks_and_a_tail(num_blocks: int, sizes: dict[int, int]) -> None:
    pool = BuddyPool(1 + num_blocks, 8)
    assert free_sizes(pool) == sizes
    assert sorted(pool.free_blocks()) == list(range(1, num_blocks + 1)) and list(pool.damage()) == []
    assert pool.most_chunks(8) == sizes.get(8, 0) and pool.most_chunks(1) == num_blocks


def test_the_paper_s_pool_holds_seven_contexts() -> None:
    pool = BuddyPool(1 + 983, 128)
    assert pool.most_chunks(128) == 7 and free_sizes(pool) == {128: 7, 64: 1, 16: 1, 4: 1, 2: 1, 1: 1}


def test_the_smallest_chunk_that_fits_is_halved(red: Account) -> None:
    pool = BuddyPool(1 + 12, 8)  # a chunk of 8, a chunk of 4
    assert pool.acquire(2, red) == [9, 10], "the chunk of 4 was there"
    assert free_sizes(pool) == {8: 1, 2: 1}
    assert pool.acquire(4, red) == [1, 2, 3, 4]
    assert free_sizes(pool) == {4: 1, 2: 1}


def test_free_buddies_are_one_again(red: Account) -> None:
    pool = BuddyPool(1 + 8, 8)
    chunks = [pool.acquire(2, red) for _ in range(4)]
    pool.release(chunks[1])
    pool.release(chunks[2])
    assert free_sizes(pool) == {2: 2}, "neighbours that are no buddies stay apart"
    assert not pool.has_room(4)
    pool.release(chunks[0])
    assert free_sizes(pool) == {4: 1, 2: 1} and pool.has_room(4)
    pool.release(chunks[3])
    assert free_sizes(pool) == {8: 1}


def test_the_chunk_freed_last_is_taken_first(red: Account) -> None:
    pool = BuddyPool(1 + 16, 4)
    chunks = [pool.acquire(4, red) for _ in range(4)]
    assert [chunk[0] for chunk in chunks] == [1, 5, 9, 13]
    for i in (2, 0, 3):
        pool.release(chunks[i])
    assert [pool.acquire(4, red)[0] for _ in range(3)] == [13, 1, 9]


def test_room_counts_chunks_of_a_size_and_larger_ones(red: Account) -> None:
    pool = BuddyPool(1 + 12, 8)
    assert pool.has_room(4, 3) and not pool.has_room(4, 4)
    assert pool.has_room(8) and not pool.has_room(8, 2)
    pool.acquire(1, red)
    assert pool.has_room(4, 2) and not pool.has_room(4, 3)


def test_only_powers_of_two_that_are_free_are_taken(red: Account) -> None:
    pool = BuddyPool(1 + 8, 8)
    for count in (0, 3, -1):
        with pytest.raises(InvariantError, match="no power of two"):
            pool.acquire(count, red)
    pool.acquire(1, red)
    with pytest.raises(InvariantError, match="a chunk of 8 blocks was taken and none is free"):
        pool.acquire(8, red)
    assert (pool.num_free, pool.num_held, red.num_held_blocks) == (7, 1, 1)


@pytest.mark.parametrize("erases", [False, True])
def test_a_chunk_may_come_back_in_pieces_and_has_its_owner_till_then(red: Account, erases: bool) -> None:
    pool, blue = BuddyPool(1 + 8, 8, erases=erases), Accounts().open("blue")
    chunk, other = pool.acquire(4, red), pool.acquire(4, blue)
    pool.share(chunk[1])
    assert pool.release(chunk) == 3 and (red.num_held_blocks, blue.num_held_blocks) == (1, 4)
    assert free_sizes(pool) == {2: 1, 1: 1}
    assert pool.release(chunk[1:2]) == 1 and free_sizes(pool) == {4: 1}
    assert pool.release(other) == 4 and free_sizes(pool) == {8: 1}
    assert (red.num_held_blocks, blue.num_held_blocks) == (0, 0) and pool.owner[1:] == [None] * 8
    assert sorted(pool.take_freed()) == (sorted([*chunk, *other]) if erases else [])


def test_a_chunk_freed_twice_between_two_plans_is_erased_once(red: Account) -> None:
    pool = BuddyPool(1 + 4, 4, erases=True)
    for size in (4, 2):
        pool.release(pool.acquire(size, red))
    assert sorted(pool.take_freed()) == [1, 2, 3, 4] and pool.take_freed() == []


def test_a_free_chunk_cannot_be_released(red: Account) -> None:
    pool = BuddyPool(1 + 4, 4)
    chunk = pool.acquire(4, red)
    pool.release(chunk)
    with pytest.raises(InvariantError, match="nobody held it"):
        pool.release(chunk)


def test_any_history_keeps_every_block_in_one_place(red: Account) -> None:
    rng = random.Random(3)
    for num_blocks in (1, 7, 32, 45, 100):
        pool = BuddyPool(1 + num_blocks, 16)
        held: list[list[int]] = []
        for _ in range(400):
            size = 1 << rng.randrange(5)
            if rng.random() < 0.55 and pool.has_room(size):
                chunk = pool.acquire(size, red)
                assert chunk == list(range(chunk[0], chunk[0] + size)) and (chunk[0] - 1) % size == 0
                held.append(chunk)
            elif held:
                pool.release(held.pop(rng.randrange(len(held))))
            places = Counter(pool.free_blocks())
            places.update(block for chunk in held for block in chunk)
            assert places == Counter(range(1, num_blocks + 1)) and list(pool.damage()) == []
            assert pool.num_held == red.num_held_blocks == sum(map(len, held))
        for chunk in held:
            pool.release(chunk)
        assert free_sizes(pool) == free_sizes(BuddyPool(1 + num_blocks, 16)), "an empty pool is as it was"


def test_a_repair_makes_the_chunks_from_what_is_named(red: Account) -> None:
    pool = BuddyPool(1 + 16, 8)
    chunk, _ = pool.acquire(4, red), pool.acquire(8, red)  # and 4 are free
    pool._chunks[2].clear()
    assert any("count as free" in sentence for sentence in pool.damage())
    pool.rebuild(Counter(chunk), lambda _: red)
    assert list(pool.damage()) == [] and sorted([*pool.free_blocks(), *chunk]) == list(range(1, 17))
    assert free_sizes(pool) == {8: 1, 4: 1}


def test_an_audit_sees_buddies_apart(red: Account) -> None:
    pool = BuddyPool(1 + 8, 8)
    pool._chunks[3].clear()
    pool._chunks[2].update({0: None, 4: None})
    assert any("beside its free buddy" in sentence for sentence in pool.damage())
    pool._chunks[2].clear()
    pool._chunks[2].update({2: None, 6: None})
    assert any("out of line" in sentence for sentence in pool.damage())
