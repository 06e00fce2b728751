"""The host tier's memory: when it is resident, and when it is zeroed. What every tier does: tests/conformance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo.worker.tier_store import HostTier

BYTES = 64


def slots(tier: HostTier) -> Any:
    """The bytes of every slot."""
    return tier._slots


def ones(memory: Any) -> None:
    memory[:] = 1


def test_discarded_slots_are_zeroed_where_freed_blocks_are() -> None:
    tier = HostTier(3, BYTES, erase=True)
    for slot in range(3):
        tier.put(slot, ones)
    tier.discard(1)
    assert slots(tier).any(axis=1).tolist() == [True, False, True]


def test_a_block_that_did_not_come_whole_leaves_nothing_either() -> None:
    tier = HostTier(1, BYTES, erase=True)

    def broken(memory: Any) -> None:
        memory[:9] = 1
        raise MemoryError

    with pytest.raises(MemoryError):
        tier.put(0, broken)
    assert not slots(tier).any()


def test_without_erasure_a_discard_touches_no_memory() -> None:
    tier = HostTier(1, BYTES)
    tier.put(0, ones)
    tier.discard(0)
    assert slots(tier).all()
    assert not tier.contains(0)


@pytest.mark.parametrize("slot", [-1, 3])
def test_a_slot_that_is_not_there_is_a_fault_of_the_program(slot: int) -> None:
    tier = HostTier(3, BYTES)
    with pytest.raises(IndexError, match=f"host slot {slot}: there are 3"):
        tier.put(slot, ones)
    with pytest.raises(IndexError):
        tier.get(slot, ones)
    with pytest.raises(IndexError):
        tier.discard(slot)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux's /proc")
def test_only_slots_that_were_written_take_memory() -> None:
    before, megabyte = resident_bytes(), 1 << 20
    tier = HostTier(256, megabyte, erase=True)
    tier.discard(5)
    assert not tier.get(6, ones)
    assert resident_bytes() - before < 16 * megabyte
    for slot in range(100, 132):
        tier.put(slot, ones)
    assert 16 * megabyte < resident_bytes() - before < 64 * megabyte
    assert np.count_nonzero(slots(tier)[100]) == megabyte
