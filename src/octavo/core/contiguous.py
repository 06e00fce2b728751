"""The paper's Orca baselines: a sequence's KV lies in one piece, reserved whole when it is admitted (section 6.1).

Orca's allocator was not published with it; the paper re-implements it on vLLM's own engine and kernels in three forms,
which differ in how much of the answer they reserve. So do these, on Octavo's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.core.beam_group import BeamGroup
from octavo.core.block_pool import NULL_BLOCK
from octavo.core.buddy_pool import BuddyPool, power_of_two
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.kv_spec import KVSpec
from octavo.core.prefix_index import Match
from octavo.core.request import Sequence
from octavo.core.step import StepPlan

Reservation = Callable[[int, int, int], int]
"""(prompt tokens, most answer tokens, longest context) to the slots that a sequence reserves, in tokens."""


def exact(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Oracle): what the answer will take, known beforehand. A server knows `max_tokens`, so this is an oracle
    where answers run to their `max_tokens`, and reserves too much where they stop before."""
    return min(num_prompt + max_tokens, max_model_len)


def next_power(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Pow2): the answer over-reserved by at most 2, to the next power of two (25 to 32, 32 to 32)."""
    return min(num_prompt + power_of_two(max_tokens), max_model_len)


def whole_context(num_prompt: int, max_tokens: int, max_model_len: int) -> int:
    """Orca (Max), and FasterTransformer: the longest sequence there may be."""
    return max_model_len


class _Fork(NamedTuple):
    """A beam that the worker has not heard of, and what fills its chunk."""

    child: Sequence
    copies: list[tuple[int, int]]


class ContiguousKVManager(KVCacheManager):
    """Gives a sequence at its admission one chunk for all it may ever need, and takes it back at its end.

    So growth never fails and nobody is preempted. Nothing is shared: every answer of a request computes the prompt,
    and a forked beam gets a chunk of its own with a copy of each block its parent has filled. A beam search takes the
    chunks of all its beams when it is admitted: once it runs, it never waits for memory.

    Args:
        spec: One group without a window.
        pool: Its largest chunk holds `max_model_len` tokens.
        reservation: How much a sequence reserves.
        max_model_len: Longest prompt plus answer, in tokens.
        max_chunk, depth: As in `KVCacheManager`.
    """

    pool: BuddyPool
    shares = False

    def __init__(
        self,
        spec: KVSpec,
        pool: BuddyPool,
        reservation: Reservation,
        *,
        max_model_len: int,
        max_chunk: int,
        depth: int,
    ) -> None:
        super().__init__(spec, pool, max_chunk=max_chunk, depth=depth)
        self._reservation = reservation
        self._max_model_len = max_model_len
        self._forks: list[_Fork] = []
        self._spares: dict[BeamGroup, list[list[int]]] = {}
        """Of each search, the chunks of beams to come."""

    # ---- sizes

    def reserved_tokens(self, num_prompt: int, max_tokens: int) -> int:
        """Slots that a sequence asks for; its chunk has as many or more."""
        return self._reservation(num_prompt, max_tokens, self._max_model_len)

    def chunk_blocks(self, num_prompt: int, max_tokens: int) -> int:
        """Blocks of a sequence's chunk."""
        return power_of_two(self.spec.blocks_per_tokens(self.reserved_tokens(num_prompt, max_tokens)))

    def _chunk_of(self, sequence: Sequence) -> int:
        return self.chunk_blocks(sequence.source.num_prompt_tokens, sequence.source.max_tokens)

    def needed_blocks(self, num_prompt: int, max_tokens: int, width: int | None = None) -> int:
        return (width or 1) * self.chunk_blocks(num_prompt, max_tokens)

    def usable_blocks(self, num_prompt: int, max_tokens: int) -> int:
        size = self.chunk_blocks(num_prompt, max_tokens)
        return self.pool.most_chunks(size) * size

    def num_columns(self, sequence: Sequence) -> int:
        return self._chunk_of(sequence)

    # ---- admission and growth

    def admit(self, sequence: Sequence, match: Match, budget: int, plan: StepPlan, *, spare: int = 0) -> int:
        """See `KVCacheManager.admit`. Nobody has siblings to be born here, so nothing needs to be spared."""
        size = self._chunk_of(sequence)
        if not self.pool.has_room(size, 1 if sequence.beams is None else sequence.beams.width):
            return 0
        chunk = self._bind(sequence)
        sequence.account.num_allocation_faults += size
        plan.table_growth += self._entries(sequence, chunk)
        return min(sequence.num_tokens - sequence.num_computed_tokens, budget)

    def _bind(self, sequence: Sequence) -> list[int]:
        """Give a sequence a chunk: a spare one of its search's, or one from the pool."""
        spares = None if sequence.beams is None else self._spares.get(sequence.beams)
        chunk = spares.pop() if spares else self.pool.acquire(self._chunk_of(sequence), sequence.account)
        sequence.block_tables = [chunk]
        sequence.num_slots = len(chunk) * self.block_size
        return chunk

    def _entries(self, sequence: Sequence, chunk: list[int]) -> list[tuple[int, int, int, int]]:
        """What a worker must know of a chunk: the rounding of its size is never written to."""
        source, row = sequence.source, sequence.row
        num_slots = self.reserved_tokens(source.num_prompt_tokens, source.max_tokens)
        return [(0, row, c, chunk[c]) for c in range(self.spec.blocks_per_tokens(num_slots))]

    def shortage(self, sequence: Sequence, end: int) -> int:
        return -self.num_available_blocks

    def grow(self, sequence: Sequence, end: int, plan: StepPlan) -> bool:
        """Its chunk has room for all there may be. Asked only after a repair, which trusts no slot."""
        sequence.num_slots = len(sequence.block_tables[0]) * self.block_size
        return True

    # ---- beams

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give a beam a chunk of its own, and have the next plan copy every block that its parent has filled."""
        num_computed = parent.num_computed_tokens
        chunk = self._bind(child)
        child.num_computed_tokens = child.last_start = num_computed
        num_filled = self.spec.blocks_per_tokens(num_computed)
        copies = list(zip(parent.block_tables[0][:num_filled], chunk[:num_filled], strict=True))
        child.account.num_copy_faults += num_filled
        self._forks.append(_Fork(child, copies))

    def reserve(self, group: BeamGroup, count: int) -> None:
        """Hold so many chunks for a search. A turn drops beams before it forks, and gets here after: whatever it lacks
        was freed by it."""
        spares = self._spares.pop(group, [])
        while len(spares) > count:
            self.pool.release(spares.pop())
        while len(spares) < count:
            leader = group.beams[0]
            spares.append(self.pool.acquire(self._chunk_of(leader), leader.account))
        if spares:
            self._spares[group] = spares

    def spare_blocks(self) -> Iterator[list[int]]:
        return (chunk for spares in self._spares.values() for chunk in spares)

    # ---- return

    def detach(self, sequence: Sequence) -> list[int]:
        if self._forks:  # it may end before the worker has heard of it
            self._forks = [fork for fork in self._forks if fork.child is not sequence]
        return super().detach(sequence)

    def end_plan(self, plan: StepPlan) -> None:
        for child, copies in self._forks:
            # A twin's row begins with its parent's entries.
            plan.table_growth += self._entries(child, child.block_tables[0])
            plan.copies += copies
        self._forks.clear()
        super().end_plan(plan)

    # ---- audit

    def layout_damage(self, sequence: Sequence) -> Iterator[str]:
        """A chunk is adjacent blocks in order, begins where its size says, and has no null block in it."""
        for table in filter(None, sequence.block_tables):
            first, size = table[0], len(table)
            in_line = size == power_of_two(size) and (first - 1) % size == 0 and first != NULL_BLOCK
            if table != list(range(first, first + size)) or not in_line:
                yield f"sequence {sequence.index} of request {sequence.request_id} has no chunk but blocks {table}"
