"""What every tier promises: a block comes back byte for byte, or not at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.tiers import ALL_TIERS, BYTES, NUM_KEYS, Tier


@pytest.fixture(params=ALL_TIERS, ids=lambda tier: tier.name)
def tier(request: pytest.FixtureRequest) -> Tier:
    chosen: Tier = request.param
    return chosen


def block(content: int) -> bytes:
    return np.random.default_rng(content).bytes(BYTES)


def put(store: Any, key: Any, content: int) -> None:
    def fill(memory: Any) -> None:
        assert (memory.shape, memory.dtype) == ((BYTES,), np.uint8)
        memory[:] = np.frombuffer(block(content), np.uint8)

    store.put(key, fill)


def get(store: Any, key: Any) -> bytes | None:
    taken: list[bytes] = []
    found = store.get(key, lambda memory: taken.append(memory.tobytes()))
    assert found is bool(taken), "bytes were handed out of a block that is not there, or none of one that is"
    return taken[0] if found else None


def test_a_new_tier_is_empty(tier: Tier) -> None:
    store = tier.open()
    for i in range(NUM_KEYS):
        assert not store.contains(tier.key(i))
        assert get(store, tier.key(i)) is None


def test_blocks_come_back_as_often_as_they_are_asked_for(tier: Tier) -> None:
    store = tier.open()
    for i in range(NUM_KEYS):
        put(store, tier.key(i), i)
    for i in (*range(NUM_KEYS), *range(NUM_KEYS)):
        assert get(store, tier.key(i)) == block(i)


def test_a_block_whose_bytes_did_not_come_is_not_there(tier: Tier) -> None:
    """Nor is the one that it was to replace."""
    store = tier.open()
    put(store, tier.key(0), 1)
    put(store, tier.key(1), 2)

    def broken(memory: Any) -> None:
        memory[: BYTES // 2] = 7
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        store.put(tier.key(0), broken)
    assert not store.contains(tier.key(0))
    assert get(store, tier.key(0)) is None
    assert get(store, tier.key(1)) == block(2)
    put(store, tier.key(0), 3)
    assert get(store, tier.key(0)) == block(3)


def test_whoever_fails_to_take_a_block_may_ask_again(tier: Tier) -> None:
    store = tier.open()
    put(store, tier.key(0), 1)

    def broken(memory: Any) -> None:
        raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        store.get(tier.key(0), broken)
    assert get(store, tier.key(0)) == block(1)


def test_discarding_what_is_not_there_changes_nothing(tier: Tier) -> None:
    store = tier.open()
    put(store, tier.key(1), 1)
    store.discard(tier.key(0))
    assert not store.contains(tier.key(0))
    assert get(store, tier.key(1)) == block(1)


OPERATIONS = st.tuples(st.sampled_from(["put", "get", "discard"]), st.integers(0, NUM_KEYS - 1), st.integers(0, 50))


@pytest.mark.parametrize("tier", ALL_TIERS, ids=lambda tier: tier.name)
@given(operations=st.lists(OPERATIONS, max_size=30))
def test_a_tier_is_a_dictionary(tier: Tier, operations: list[tuple[str, int, int]]) -> None:
    store, plain = tier.open(), dict[int, int]()
    for what, i, content in operations:
        if what == "put":
            put(store, tier.key(i), content)
            plain[i] = content
        elif what == "discard":
            store.discard(tier.key(i))
            plain.pop(i, None)
        else:
            assert get(store, tier.key(i)) == (block(plain[i]) if i in plain else None)
        assert [store.contains(tier.key(k)) for k in range(NUM_KEYS)] == [k in plain for k in range(NUM_KEYS)]
