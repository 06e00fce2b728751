"""Where blocks are kept that left the KV memory: the protocol of every tier, and host memory."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
Key = TypeVar("Key", contravariant=True)


class TierStore(Protocol[Key]):
    """Blocks by key. The host tier's keys are its slots; what outlives them is keyed by content.

    A store never makes a block up: what it cannot give back byte for byte is missing. Whoever uses it can always
    compute a block again, so a failure costs time, and must change nothing under any other key.
    """

    def put(self, key: Key, fill: Callable[[ByteArray], None]) -> None:
        """Keep one block under `key`, in place of what was there. `fill` writes its bytes into the array it is given.

        Raises:
            MemoryError, OSError: If the block could not be kept. Nothing is under the key then; the same holds for
                whatever `fill` raises.
        """

    def get(self, key: Key, take: Callable[[ByteArray], None]) -> bool:
        """Give a block's bytes to `take`, and keep them. False, without calling it, when they are missing or damaged.

        Raises:
            MemoryError, OSError: If they could not be read.
        """

    def contains(self, key: Key) -> bool:
        """Whether a block was put there and not discarded. It may still turn out to be damaged."""

    def discard(self, key: Key) -> None:
        """Forget the block under `key`, if there is one."""


class HostTier:
    """Slots of one block each in one mapping, of which only the pages that were written take memory.

    Memory is trusted here as it is in the KV memory itself: blocks carry no checksum.

    Args:
        erase: Zero a slot when it is discarded.

    Raises:
        OSError: If the address space cannot be had.
    """

    def __init__(self, num_slots: int, bytes_per_slot: int, *, erase: bool = False) -> None:
        self._erase = erase
        self._filled: set[int] = set()
        size = num_slots * bytes_per_slot
        memory = np.zeros(0, np.uint8)
        if size:
            mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            memory = np.frombuffer(mapping, np.uint8)
        self._slots: ByteArray = memory.reshape(num_slots, bytes_per_slot)

    def put(self, key: int, fill: Callable[[ByteArray], None]) -> None:
        slot = self._slot(key)
        self._filled.discard(key)
        try:
            fill(slot)
        except BaseException:
            self._wipe(slot)
            raise
        self._filled.add(key)

    def get(self, key: int, take: Callable[[ByteArray], None]) -> bool:
        slot = self._slot(key)
        if key not in self._filled:
            return False
        take(slot)
        return True

    def contains(self, key: int) -> bool:
        return key in self._filled

    def discard(self, key: int) -> None:
        slot = self._slot(key)
        if key in self._filled:
            self._filled.remove(key)
            self._wipe(slot)

    def _slot(self, key: int) -> ByteArray:
        if not 0 <= key < len(self._slots):
            raise IndexError(f"host slot {key}: there are {len(self._slots)}")
        slot: ByteArray = self._slots[key]
        return slot

    def _wipe(self, slot: ByteArray) -> None:
        if self._erase:
            slot[:] = 0
