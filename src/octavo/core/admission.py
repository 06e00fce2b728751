"""Who is next among those that wait."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Protocol

from octavo.core.request import Sequence


class AdmissionPolicy(Protocol):
    """Orders the waiting sequences. Every method but iteration is O(log n) or better."""

    def put(self, sequence: Sequence) -> None:
        """A sequence arrived, was preempted or swapped out and waits again, or waits no more for another's prefix."""

    def peek(self) -> Sequence:
        """The next to admit; nobody may pass it. Only called when somebody waits."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It was admitted, waits for something else, or ended while it waited."""

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone who waits, in order."""
        ...

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """In order of arrival, whatever made a sequence wait."""

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}
        self._heap: list[int] = []
        """Arrivals; those that nobody in `_waiting` has are dead."""

    def put(self, sequence: Sequence) -> None:
        self._waiting[sequence.arrival] = sequence
        heappush(self._heap, sequence.arrival)

    def peek(self) -> Sequence:
        while self._heap[0] not in self._waiting:
            heappop(self._heap)
        return self._waiting[self._heap[0]]

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[sequence.arrival]
        if not self._waiting:
            self._heap.clear()

    def __iter__(self) -> Iterator[Sequence]:
        return iter([self._waiting[arrival] for arrival in sorted(self._waiting)])

    def __len__(self) -> int:
        return len(self._waiting)
