"""Which blocks a sequence holds: reserve at admission, bind chunk by chunk, return what falls out of a window."""

from __future__ import annotations

from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv_spec import KVSpec
from octavo.core.request import Sequence

TableGrowth = list[tuple[int, int, int, int]]
"""(group, row, column, block) entries, as in StepPlan."""


class KVCacheManager:
    """Binds blocks to sequences, all-or-nothing.

    Admission *promises* the blocks that a sequence needs until its prefill is done, by counter; they are bound when a
    chunk needs them. Promised blocks are free but not available to others, so a prefill never fails midway and
    admission cannot thrash.

    In a group with a window, a chunk that computes tokens `start .. end - 1` reads from `start - window + 1` on. The
    columns below that are returned when the sequence next needs a block, so such a group keeps at most one block more
    than the window and the chunk need.

    Args:
        spec: The model's groups and block size.
        pool: The blocks.
        max_chunk: Most tokens of one sequence in one plan.
        depth: Plans in flight at most. The plan before the one being made may still read its own window, so blocks
            leave a window `depth - 1` plans late.
    """

    def __init__(self, spec: KVSpec, pool: BlockPool, *, max_chunk: int, depth: int) -> None:
        self.spec = spec
        self.pool = pool
        self.block_size = spec.block_size
        self.num_promised_blocks = 0
        self._max_unread = depth * max_chunk
        self._overlaps = depth > 1
        self._windows = [(g, group.window) for g, group in enumerate(spec.groups) if group.window is not None]

    @property
    def num_available_blocks(self) -> int:
        """Blocks that are neither held nor promised."""
        return self.pool.num_free - self.num_promised_blocks

    def peak_blocks(self, num_tokens: int) -> int:
        """Most blocks a sequence holds at once while its first `num_tokens` tokens are computed, over all groups."""
        return self.spec.peak_blocks(num_tokens, self._max_unread)

    def admit(self, sequence: Sequence, end: int, growth: TableGrowth) -> bool:
        """Promise the prefill's blocks, bind those of the first `end` tokens. False, nothing changed, if not free."""
        reserve = self.peak_blocks(sequence.num_tokens)
        if reserve > self.num_available_blocks:
            return False
        sequence.num_reserved_blocks = reserve
        self._promise(sequence, reserve)
        return self.grow(sequence, end, growth)

    def shortage(self, sequence: Sequence, end: int) -> int:
        """Blocks missing before `grow` can succeed; not above 0 if it can."""
        num_new = self._num_new_columns(sequence, end) * self.spec.num_groups
        num_dead = sum(last - first for _, first, last in self._dead_columns(sequence))
        return num_new - num_dead - sequence.num_promised_blocks - self.num_available_blocks

    def grow(self, sequence: Sequence, end: int, growth: TableGrowth) -> bool:
        """Bind blocks until the first `end` tokens have slots; return those that fell out of a window.

        Changed table entries are appended to `growth`. False, nothing changed, if the blocks are not free.
        """
        if self.shortage(sequence, end) > 0:
            return False
        self._leave_windows(sequence, growth)
        num_new = self._num_new_columns(sequence, end)
        for group, table in enumerate(sequence.block_tables):
            first = len(table)
            block_ids = self.pool.acquire(num_new, sequence.account)
            table += block_ids
            growth += [(group, sequence.row, first + i, block_id) for i, block_id in enumerate(block_ids)]
        self._count_faults(sequence, num_new)
        sequence.num_slots += num_new * self.block_size
        prefill_is_bound = sequence.num_slots >= sequence.num_tokens
        self._promise(sequence, 0 if prefill_is_bound else sequence.num_reserved_blocks - sequence.num_held_blocks)
        return True

    def detach(self, sequence: Sequence) -> list[int]:
        """Take every block and promise from a sequence. The blocks stay held until `pool.release`."""
        self._promise(sequence, 0)
        block_ids = [
            block_id
            for table, first in zip(sequence.block_tables, sequence.first_columns, strict=True)
            for block_id in table[first:]
        ]
        sequence.block_tables = [[] for _ in sequence.block_tables]
        sequence.first_columns = [0] * len(sequence.first_columns)
        sequence.num_slots = 0
        return block_ids

    def _num_new_columns(self, sequence: Sequence, end: int) -> int:
        return self.spec.blocks_per_tokens(end - sequence.num_slots)

    def _dead_columns(self, sequence: Sequence) -> list[tuple[int, int, int]]:
        """(group, first, last + 1) of the columns that no plan in flight and no later one reads."""
        start = sequence.last_start if self._overlaps else sequence.num_computed_tokens
        dead = []
        for group, window in self._windows:
            first = sequence.first_columns[group]
            end = (start - window + 1) // self.block_size
            if end > first:
                dead.append((group, first, end))
        return dead

    def _leave_windows(self, sequence: Sequence, growth: TableGrowth) -> None:
        for group, first, end in self._dead_columns(sequence):
            table = sequence.block_tables[group]
            self.pool.release(table[first:end])
            for column in range(first, end):
                table[column] = NULL_BLOCK
                growth.append((group, sequence.row, column, NULL_BLOCK))
            sequence.first_columns[group] = end

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        change = num_blocks - sequence.num_promised_blocks
        sequence.num_promised_blocks = num_blocks
        sequence.account.num_promised_blocks += change
        self.num_promised_blocks += change

    def _count_faults(self, sequence: Sequence, num_new: int) -> None:
        lost = sequence.num_lost_tokens - sequence.num_slots
        num_recomputed = min(num_new, self.spec.blocks_per_tokens(lost)) if lost > 0 else 0
        sequence.account.num_recompute_faults += num_recomputed * self.spec.num_groups
        sequence.account.num_allocation_faults += (num_new - num_recomputed) * self.spec.num_groups
