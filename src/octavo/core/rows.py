"""Rows of the block tables: which are free, which a worker must hear of, and which a plan in flight still names."""

from __future__ import annotations

from octavo.core.block_pool import BlockPool
from octavo.core.quarantine import Quarantine, Retired


class Rows:
    """Hands out rows, and takes them back with the blocks they named.

    What a sequence leaves while a plan in flight may name it stays in quarantine until that plan was applied.
    """

    def __init__(self, count: int, pool: BlockPool) -> None:
        self.count = count
        self.free = list(range(count - 1, -1, -1))
        self.released: list[int] = []
        """Free rows that the next plan must name as released."""
        self.quarantine = Quarantine()
        self.last_planned = 0
        self.last_applied = 0
        self.num_reserved = 0
        """Free rows that are promised to beams which will fork."""
        self._pool = pool

    @property
    def num_available(self) -> int:
        return len(self.free) - self.num_reserved

    def take(self) -> int:
        return self.free.pop()

    def retire(self, row: int, block_ids: list[int]) -> None:
        """Nobody owns a row and its references to blocks any more."""
        if self.last_planned > self.last_applied:
            self.retire_after(self.last_planned, row, block_ids)
        else:
            self.give_back(row, block_ids)

    def retire_after(self, step_id: int, row: int, block_ids: list[int]) -> None:
        """The same, when a plan, this one perhaps not yet submitted, names them."""
        self.quarantine.put(Retired(step_id, row, block_ids))

    def give_back(self, row: int, block_ids: list[int]) -> None:
        """The same, when no plan in flight names them."""
        self._pool.release(block_ids)
        self.free.append(row)
        self.released.append(row)

    def forget(self, row: int, block_ids: list[int]) -> None:
        """The same, when the worker was never told of the row."""
        self._pool.release(block_ids)
        self.free.append(row)

    def applied(self, step_id: int) -> None:
        """A plan is done with."""
        self.last_applied = step_id
        for retired in self.quarantine.take(step_id):
            self.give_back(retired.row, retired.block_ids)

    def take_released(self) -> list[int]:
        released, self.released = self.released, []
        return released
