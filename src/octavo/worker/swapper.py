"""Moves blocks between the KV memory and a tier, and survives every failure of the tier."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from octavo.backends.protocol import KVMemory
from octavo.worker.tier_store import TierStore

T = TypeVar("T")

log = logging.getLogger("octavo.worker")


class Swapper:
    """Swaps whole blocks. A slot or block that a call names as failed is to be thought of as lost."""

    def __init__(self, kv: KVMemory, tier: TierStore[int]) -> None:
        self._kv = kv
        self._tier = tier

    def discard(self, slots: Sequence[int]) -> None:
        """Forget slots. What their tier cannot reach is as good as gone: nobody asks for it again."""
        _failed("discarded", slots, self._discard)

    def swap_out(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Put blocks into slots, (block, slot). Returns the slots that did not take theirs."""
        return [slot for _, slot in _failed("swapped out", pairs, self._put)]

    def swap_in(self, pairs: Sequence[tuple[int, int]]) -> list[int]:
        """Restore blocks from slots, (slot, block). Returns the blocks that were not restored."""
        return [block for _, block in _failed("swapped in", pairs, self._get)]

    def _discard(self, slot: int) -> bool:
        self._tier.discard(slot)
        return True

    def _put(self, pair: tuple[int, int]) -> bool:
        block, slot = pair
        self._tier.put(slot, lambda memory: self._kv.swap_out(block, memory))
        return True

    def _get(self, pair: tuple[int, int]) -> bool:
        slot, block = pair
        return self._tier.get(slot, lambda memory: self._kv.swap_in(memory, block))


def _failed(done: str, items: Sequence[T], move: Callable[[T], bool]) -> list[T]:
    """The items that `move` refuses, or on which the tier fails; anything but a tier's failures is raised."""
    failed, why = [], "missing or damaged"
    for item in items:
        try:
            good = move(item)
        except (MemoryError, OSError) as error:
            good, why = False, repr(error)
        if not good:
            failed.append(item)
    if failed:
        log.warning("%d of %d blocks could not be %s: %s", len(failed), len(items), done, why)
    return failed
