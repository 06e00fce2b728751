"""In which order the blocks that nobody holds are used again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Protocol


class EvictionPolicy(Protocol):
    """Orders the blocks nobody holds. Every method but iteration is O(1) amortised."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[int]:
        """Every block in the order; for audits."""
        ...

    def put(self, block_id: int) -> None:
        """A block's last reference is gone."""

    def pop(self) -> int:
        """Take the block to use next. Only called when there is one."""
        ...


class LeastRecentlyUsed:
    """First released, first reused; blocks never used come last.

    Untouched memory stays untouched as long as anything else is free, so the resident size of a large pool follows
    what is really used. Construction costs nothing per block.
    """

    def __init__(self, block_ids: range) -> None:
        self._released: deque[int] = deque()
        self._untouched = block_ids

    def __len__(self) -> int:
        return len(self._released) + len(self._untouched)

    def __iter__(self) -> Iterator[int]:
        yield from self._released
        yield from self._untouched

    def put(self, block_id: int) -> None:
        self._released.append(block_id)

    def pop(self) -> int:
        if self._released:
            return self._released.popleft()
        block_id = self._untouched[0]
        self._untouched = self._untouched[1:]
        return block_id
