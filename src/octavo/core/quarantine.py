"""Rows and blocks that nobody owns any more but a plan in flight may still name."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple


class Retired(NamedTuple):
    """What a sequence left behind."""

    last_step_id: int
    """The last plan that may name it."""
    row: int
    block_ids: list[int]


class Quarantine:
    """First in, first out: plans are applied in the order in which they were made."""

    def __init__(self) -> None:
        self._retired: deque[Retired] = deque()
        self.num_blocks = 0

    def put(self, retired: Retired) -> None:
        self._retired.append(retired)
        self.num_blocks += len(retired.block_ids)

    def take(self, step_id: int) -> Iterator[Retired]:
        """Everything that no plan after `step_id` names, oldest first."""
        while self._retired and self._retired[0].last_step_id <= step_id:
            retired = self._retired.popleft()
            self.num_blocks -= len(retired.block_ids)
            yield retired

    def __iter__(self) -> Iterator[Retired]:
        return iter(self._retired)

    def __len__(self) -> int:
        return len(self._retired)
