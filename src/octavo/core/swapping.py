"""Preemption by swap: a request's running sequences leave together, and come back together.

    running --swap out--> on the host --swap in--> arriving --applied--> running
                             |   put failed            |   get failed
                             +-----> computed again <--+

Nothing depends on a transfer before the plan that makes it was applied: the device blocks stay held until the worker
has read them, and a sequence that comes back computes only when its blocks are known to be there.
"""

from __future__ import annotations

from collections import Counter

from octavo.core.block_pool import NULL_BLOCK
from octavo.core.host_slots import HostSlots
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from octavo.core.rows import Rows
from octavo.core.step import StepPlan, StepResult

NO_SLOT = -1
"""Stands in host tables where a block fell out of the window."""


class Gang:
    """Sequences of one request that were swapped out together."""

    __slots__ = ("is_out", "sequences")

    def __init__(self, sequences: list[Sequence]) -> None:
        self.sequences = sequences
        self.is_out = False
        """Whether the plan that swaps it out was applied."""


class Swapping:
    """Moves gangs between the pool and the host tier."""

    def __init__(self, kv: KVCacheManager, rows: Rows, slots: HostSlots) -> None:
        self.slots = slots
        self.arriving: dict[Sequence, int] = {}
        """Sequences with rows and blocks that wait for their bytes, and the plan that brings them."""
        self._kv = kv
        self._rows = rows
        self._gang_of: dict[Sequence, Gang] = {}
        self._leaving: dict[int, list[Gang]] = {}
        """By the plan that swaps them out."""

    def __len__(self) -> int:
        """Sequences on the host, or on the way."""
        return len(self._gang_of)

    def gang_of(self, sequence: Sequence) -> Gang:
        return self._gang_of[sequence]

    # ---- out

    @staticmethod
    def num_blocks(sequences: list[Sequence]) -> int:
        """Distinct blocks that sequences hold."""
        return len(_references(sequences))

    def has_room(self, sequences: list[Sequence]) -> bool:
        """Whether the host has a slot for each of their blocks."""
        return self.num_blocks(sequences) <= self.slots.num_free

    def swap_out(self, sequences: list[Sequence], plan: StepPlan) -> None:
        """Let running sequences leave for the host, which has room."""
        references = _references(sequences)
        account = sequences[0].account
        slots = self.slots.acquire(list(references.values()), account)
        slot_of = dict(zip(references, slots, strict=True))
        plan.swap_out += slot_of.items()
        gang = Gang(sequences)
        for sequence in sequences:
            sequence.host_tables = [
                [NO_SLOT if block_id == NULL_BLOCK else slot_of[block_id] for block_id in table]
                for table in sequence.block_tables
            ]
            row, sequence.row = sequence.row, NO_ROW
            contents = [] if sequence.lineage is None else sequence.lineage.contents
            self._rows.retire_after(plan.step_id, row, self._kv.detach(sequence))
            if sequence.lineage is not None:
                sequence.lineage.contents = contents
            sequence.move_to(SequenceStatus.SWAPPED)
            self._gang_of[sequence] = gang
        self._leaving.setdefault(plan.step_id, []).append(gang)

    # ---- back

    def needs(self, gang: Gang) -> int:
        """Blocks to bring a gang back and to compute all that is known of it: a prompt may be half done."""
        spec = self._kv.spec
        slots = {slot for s in gang.sequences for table in s.host_tables for slot in table}
        num_missing = sum(max(0, spec.blocks_per_tokens(s.num_tokens) - len(s.host_tables[0])) for s in gang.sequences)
        return len(slots - {NO_SLOT}) + num_missing * spec.num_groups

    def swap_in(self, gang: Gang, plan: StepPlan) -> None:
        """Bind rows and blocks to a gang and have its bytes brought. The caller has checked that there is room."""
        account = gang.sequences[0].account
        block_of: dict[int, int] = {NO_SLOT: NULL_BLOCK}
        for sequence in gang.sequences:
            sequence.row = self._rows.take()
            for group, slots in enumerate(sequence.host_tables):
                table: list[int] = []
                for column, slot in enumerate(slots):
                    if slot in block_of:
                        block_id = block_of[slot]
                        if block_id != NULL_BLOCK:
                            self._kv.pool.share(block_id)
                    else:
                        (block_id,) = self._kv.pool.acquire(1, account)
                        block_of[slot] = block_id
                        plan.swap_in.append((slot, block_id))
                    table.append(block_id)
                    plan.table_growth.append((group, sequence.row, column, block_id))
                sequence.block_tables[group] = table
                sequence.first_columns[group] = slots.count(NO_SLOT)
            # The last block may have come back for several of them: the next write asks.
            sequence.num_slots = sequence.num_computed_tokens
            sequence.last_start = sequence.num_computed_tokens
            sequence.move_to(SequenceStatus.RUNNING)
            self.arriving[sequence] = plan.step_id
            del self._gang_of[sequence]
        account.num_swap_faults += len(block_of) - 1

    # ---- what became of it

    def applied(self, plan: StepPlan, result: StepResult) -> tuple[list[Sequence], list[Sequence]]:
        """A plan was executed.

        Returns:
            The sequences that have arrived and may run, and those whose blocks are lost: their rows, blocks and slots
            are given back, and they have nothing left that is computed.
        """
        lost: list[Sequence] = []
        failed_slots = set(result.failed_swap_out)
        for gang in self._leaving.pop(plan.step_id, ()):
            gang.is_out = True
            if failed_slots:
                lost += [s for s in gang.sequences if _names(s.host_tables, failed_slots)]
        for sequence in lost:
            self.forget(sequence)
        arrived = [s for s, step_id in self.arriving.items() if step_id == plan.step_id]
        failed_blocks = set(result.failed_swap_in)
        for sequence in list(arrived):
            self._forget_slots(sequence)
            del self.arriving[sequence]
            if failed_blocks and _names(sequence.block_tables, failed_blocks):
                arrived.remove(sequence)
                row, sequence.row = sequence.row, NO_ROW
                self._rows.retire(row, self._kv.detach(sequence))
                lost.append(sequence)
        for sequence in lost:
            _compute_again(sequence)
        for sequence in arrived:
            self._kv.adopt(sequence)
        return arrived, lost

    def lose(self, sequence: Sequence) -> list[Sequence]:
        """Give up a swapped gang's bytes; returns its sequences, which have nothing left that is computed."""
        sequences = list(self._gang_of[sequence].sequences)
        for member in sequences:
            self.forget(member)
            _compute_again(member)
        return sequences

    def forget(self, sequence: Sequence) -> None:
        """A sequence on the host ends, or cannot come back: its slots are given back."""
        gang = self._gang_of.pop(sequence)
        gang.sequences.remove(sequence)
        self._forget_slots(sequence)

    def forget_arriving(self, sequence: Sequence) -> None:
        """A sequence on its way ends; its row and blocks are the caller's to retire."""
        del self.arriving[sequence]
        self._forget_slots(sequence)

    def _forget_slots(self, sequence: Sequence) -> None:
        tables, sequence.host_tables = sequence.host_tables, []
        self.slots.release([slot for table in tables for slot in table if slot != NO_SLOT])


def _compute_again(sequence: Sequence) -> None:
    sequence.forget_blocks()
    if sequence.lineage is not None:
        sequence.lineage.forget_contents()
    sequence.move_to(SequenceStatus.PREEMPTED)


def _references(sequences: list[Sequence]) -> Counter[int]:
    """Blocks that sequences name, with the number of names."""
    references: Counter[int] = Counter()
    for sequence in sequences:
        references.update(sequence.block_ids())
    return references


def _names(tables: list[list[int]], wanted: set[int]) -> bool:
    return any(not wanted.isdisjoint(table) for table in tables)
