"""What every eviction policy must do, run on each there is; then what each of them prefers."""

from __future__ import annotations

import random

import pytest

from octavo.core.eviction import EVICTION, CheapestToLose, EvictionPolicy, LeastRecentlyUsed
from octavo.core.prefix_index import Content


def content(depth: int = 0, num_hits: int = 0) -> Content:
    made = Content(b"", None, (), 1, depth)
    made.num_hits = num_hits
    return made


@pytest.fixture(params=EVICTION.values(), ids=EVICTION.keys())
def order(request: pytest.FixtureRequest) -> EvictionPolicy:
    policy: EvictionPolicy = request.param()
    return policy


def test_each_block_comes_out_once(order: EvictionPolicy) -> None:
    for block_id in range(1, 9):
        order.put(block_id, content(depth=block_id * 16))
    order.remove(3)
    assert len(order) == 7 and set(order) == {1, 2, 4, 5, 6, 7, 8}
    assert {order.pop() for _ in range(7)} == {1, 2, 4, 5, 6, 7, 8}
    assert len(order) == 0 and list(order) == []


def test_a_block_that_was_hit_and_released_again_stands_once(order: EvictionPolicy) -> None:
    for _ in range(3):
        order.put(1, content())
        order.put(2, content())
        order.remove(1)
        order.put(1, content())
        assert sorted(order) == [1, 2]
        assert {order.pop(), order.pop()} == {1, 2}


def test_of_equal_blocks_the_first_released_goes_first(order: EvictionPolicy) -> None:
    """A table is released from its tail, so the tail makes room before the prefix."""
    for block_id in (4, 3, 2, 1):
        order.put(block_id, content())
    assert [order.pop() for _ in range(4)] == [4, 3, 2, 1]


def test_any_interleaving_agrees_with_a_set(order: EvictionPolicy) -> None:
    rng, there = random.Random(5), set[int]()
    for _ in range(3000):
        block_id = rng.randrange(40)
        if block_id not in there:
            order.put(block_id, content(rng.randrange(9000), rng.randrange(4)))
            there.add(block_id)
        elif rng.random() < 0.6:
            order.remove(block_id)
            there.remove(block_id)
        else:
            there.remove(order.pop())
        assert len(order) == len(there)
    assert set(order) == there


def test_least_recently_used_goes_by_release_alone() -> None:
    order = LeastRecentlyUsed()
    order.put(1, content(num_hits=9))
    order.put(2, content())
    assert order.pop() == 1


def test_costly_and_often_hit_blocks_stay() -> None:
    order = CheapestToLose()
    order.put(1, content(depth=0, num_hits=3))
    order.put(2, content(depth=CheapestToLose.LINEAR_TOKENS))
    order.put(3, content(depth=0))
    assert [order.pop() for _ in range(3)] == [3, 2, 1]


def test_what_is_not_hit_any_more_ages() -> None:
    order = CheapestToLose()
    order.put(1, content(num_hits=3))
    for block_id in range(2, 7):
        order.put(block_id, content())
        assert order.pop() == (block_id if block_id < 5 else 1 if block_id == 5 else 5)


def test_dead_entries_do_not_pile_up() -> None:
    order = CheapestToLose()
    for _ in range(1000):
        order.put(1, content())
        order.remove(1)
    assert len(order._heap) < 100
