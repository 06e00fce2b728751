"""Which cached block makes room first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from octavo.core.prefix_index import Content


class EvictionPolicy(Protocol):
    """Orders the blocks that nobody holds and somebody may still hit. Every method but iteration is O(log n)."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        """Every block in the order; for audits."""
        ...

    def put(self, block_id: int, content: Content) -> None:
        """A block's last reference is gone. Of one sequence the tail comes first, its prefix last."""

    def remove(self, block_id: int) -> None:
        """It was hit, or its content was dropped."""

    def pop(self) -> int:
        """Take the block to evict. Only called when there is one."""
        ...


class LeastRecentlyUsed:
    """First released, first evicted."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[int]:
        return iter(self._order)

    def put(self, block_id: int, content: Content) -> None:
        self._order[block_id] = None

    def remove(self, block_id: int) -> None:
        del self._order[block_id]

    def pop(self) -> int:
        return self._order.popitem(last=False)[0]


class CheapestToLose:
    """GreedyDual (Young 1994; with frequency: Cherkasova 1998): recent, often hit and costly blocks stay.

    A block is worth the clock at its release, plus what computing it again would cost times how often it was hit. The
    clock is the worth of the last block evicted, so what is not used ages. All blocks are of one size; the cost of one
    grows with the tokens that its attention would read: `1 + depth / LINEAR_TOKENS`, in units of a block at depth 0.
    """

    LINEAR_TOKENS = 4096
    """Context at which attention costs about as much as everything else of a small model's token."""

    def __init__(self) -> None:
        self._worth: dict[int, tuple[float, int]] = {}
        """Of the blocks in the order: (worth, serial number)."""
        self._heap: list[tuple[float, int, int]] = []
        """(worth, serial number, block); entries that `_worth` does not confirm are dead."""
        self._clock = 0.0
        self._num_puts = 0

    def __len__(self) -> int:
        return len(self._worth)

    def __iter__(self) -> Iterator[int]:
        return iter(self._worth)

    def put(self, block_id: int, content: Content) -> None:
        cost = 1 + content.depth / self.LINEAR_TOKENS
        worth = self._clock + cost * (1 + content.num_hits)
        # Of equal worth the tail, which is released first, goes first.
        self._num_puts += 1
        self._worth[block_id] = (worth, self._num_puts)
        heappush(self._heap, (worth, self._num_puts, block_id))
        if len(self._heap) > 64 + 2 * len(self._worth):
            self._heap = sorted((worth, number, block) for block, (worth, number) in self._worth.items())

    def remove(self, block_id: int) -> None:
        del self._worth[block_id]

    def pop(self) -> int:
        while True:
            worth, number, block_id = heappop(self._heap)
            if self._worth.get(block_id) == (worth, number):
                self._clock = worth
                del self._worth[block_id]
                return block_id


EVICTION: dict[str, type[EvictionPolicy]] = {"lru": LeastRecentlyUsed, "cost": CheapestToLose}
