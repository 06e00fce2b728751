"""Who is next among those that wait."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import Any, Protocol

from octavo.core.order import Order, by_arrival, by_priority
from octavo.core.request import Sequence


class AdmissionPolicy(Protocol):
    """Orders the waiting sequences. No method but iteration looks at everyone who waits."""

    order: Order
    """By which those who run are sorted, too."""

    def put(self, sequence: Sequence) -> None:
        """A sequence arrived, was preempted or swapped out and waits again, or waits no more for another's prefix. One
        that waits already stays where it is."""

    def remove(self, sequence: Sequence) -> None:
        """It was admitted, waits for something else, or ended while it waited."""

    def candidates(self) -> Iterator[Sequence]:
        """Whom one plan may admit, in order. One that still waits when the next is asked for has found no room; who
        is asked for after it may pass it. Others may be put and removed meanwhile."""
        ...

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone who waits, in order."""
        ...

    def __len__(self) -> int: ...


class _InOrder:
    """In a fixed order, whatever made a sequence wait. Nobody passes anybody."""

    order: Order

    def __init__(self) -> None:
        self._waiting: dict[Any, Sequence] = {}
        """By their places in the order."""
        self._heap: list[Any] = []
        """Places; those that nobody in `_waiting` has are dead."""

    def put(self, sequence: Sequence) -> None:
        place = self.order(sequence)
        self._waiting[place] = sequence
        heappush(self._heap, place)

    def candidates(self) -> Iterator[Sequence]:
        while self._waiting:
            while self._heap[0] not in self._waiting:
                heappop(self._heap)
            place = self._heap[0]
            yield self._waiting[place]
            if place in self._waiting:
                return

    def remove(self, sequence: Sequence) -> None:
        del self._waiting[self.order(sequence)]
        if not self._waiting:
            self._heap.clear()

    def __iter__(self) -> Iterator[Sequence]:
        return iter([self._waiting[place] for place in sorted(self._waiting)])

    def __len__(self) -> int:
        return len(self._waiting)


class FirstComeFirstServed(_InOrder):
    """In order of arrival."""

    order = staticmethod(by_arrival)


class LowestPriorityFirst(_InOrder):
    """By the priority that requests name, lower first; among equals in order of arrival.

    Who runs is not interrupted for a newcomer, but gives way to whoever has a lower number when blocks are scarce. A
    stream of requests with low numbers lets others wait for as long as it lasts.
    """

    order: Order = staticmethod(by_priority)


class SkipAhead:
    """In order of arrival, but those for whom there is no room may be passed, each a bounded number of times.

    Who has been passed so often is passed no more, so that what leaves from then on is left for it: it waits for those
    that run, and for nobody who comes later.
    """

    order = staticmethod(by_arrival)

    LOOK_AHEAD = 16
    """Sequences tried in one plan at most; each costs a look into the prefix index."""
    MOST_PASSES = 64
    """How often one may be passed while it waits."""

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}
        self._arrivals: list[int] = []
        """Of everyone who waits, sorted."""
        self._num_passes: dict[int, int] = {}
        """By arrival, of those that were passed."""

    def put(self, sequence: Sequence) -> None:
        if sequence.arrival not in self._waiting:
            self._waiting[sequence.arrival] = sequence
            insort(self._arrivals, sequence.arrival)

    def remove(self, sequence: Sequence) -> None:
        arrival = sequence.arrival
        del self._waiting[arrival]
        del self._arrivals[bisect_left(self._arrivals, arrival)]
        self._num_passes.pop(arrival, None)

    def candidates(self) -> Iterator[Sequence]:
        stuck: list[int] = []
        for arrival in self._arrivals[: self.LOOK_AHEAD]:
            if arrival not in self._waiting:
                continue  # it left with one before it
            yield self._waiting[arrival]
            if arrival not in self._waiting:
                self._count_pass(stuck)
            elif self._num_passes.get(arrival, 0) >= self.MOST_PASSES:
                return
            else:
                stuck.append(arrival)

    def _count_pass(self, arrivals: list[int]) -> None:
        for arrival in arrivals:
            if arrival in self._waiting:
                self._num_passes[arrival] = self._num_passes.get(arrival, 0) + 1

    def __iter__(self) -> Iterator[Sequence]:
        return iter([self._waiting[arrival] for arrival in self._arrivals])

    def __len__(self) -> int:
        return len(self._waiting)


ADMISSION: dict[str, type[AdmissionPolicy]] = {
    "fcfs": FirstComeFirstServed,
    "skip": SkipAhead,
    "priority": LowestPriorityFirst,
}
