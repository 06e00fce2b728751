"""Slots of the host tier, from the core's side: which hold a swapped block, and for whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from octavo.core.accounts import Account
from octavo.errors import InvariantError


class HostSlots:
    """Reference-counted slots of one block each. The bytes are the worker's (`worker/tier_store.py`)."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.ref_count: dict[int, int] = {}
        """Of the slots in use."""
        self.discards: list[int] = []
        """Given back since the last plan; the next one tells the worker."""
        self._owner: dict[int, Account] = {}
        self._free: list[int] = []
        self._untouched = 0

    @property
    def num_free(self) -> int:
        return len(self._free) + self.count - self._untouched

    def acquire(self, references: list[int], account: Account) -> list[int]:
        """Take one slot per entry, with that many references.

        Raises:
            InvariantError: If fewer are free; callers ask first.
        """
        if len(references) > self.num_free:
            raise InvariantError([f"{len(references)} host slots were taken when {self.num_free} were free"])
        slots = []
        for count in references:
            if self._free:
                slot = self._free.pop()
            else:
                slot, self._untouched = self._untouched, self._untouched + 1
            self.ref_count[slot] = count
            self._owner[slot] = account
            slots.append(slot)
        account.num_host_blocks += len(slots)
        return slots

    def release(self, slots: list[int]) -> None:
        """Drop one reference from each slot.

        Raises:
            InvariantError: If one of them is not in use.
        """
        for slot in slots:
            count = self.ref_count.get(slot, 0)
            if count == 0:
                raise InvariantError([f"host slot {slot} was released and nobody used it"])
            if count > 1:
                self.ref_count[slot] = count - 1
                continue
            del self.ref_count[slot]
            self._owner.pop(slot).num_host_blocks -= 1
            self.discards.append(slot)
            self._free.append(slot)

    def owners(self) -> Iterable[Account]:
        """Of each slot in use; for audits."""
        return self._owner.values()

    def rebuild(self, names: Counter[int], payers: Mapping[int, Account]) -> None:
        """Make counts and free slots follow from who names which slot; for repairs.

        Args:
            names: Slot to the number of its names.
            payers: Slot to the account of one who names it.
        """
        self.discards += [slot for slot in self.ref_count if slot not in names]
        self.ref_count = dict(names)
        self._owner = {slot: self._owner.get(slot, payers[slot]) for slot in names}
        self._untouched = max([self._untouched, *(slot + 1 for slot in names)])
        self._free = [slot for slot in range(self._untouched) if slot not in names]

    def take_discards(self) -> list[int]:
        discards, self.discards = self.discards, []
        return discards
