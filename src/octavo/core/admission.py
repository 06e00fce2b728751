"""Who is next among those that wait."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol

from octavo.core.request import Sequence, SequenceStatus


class AdmissionPolicy(Protocol):
    """Orders the waiting sequences. Every method but iteration is O(log n) or better."""

    def put(self, sequence: Sequence) -> None:
        """A sequence arrived, or was preempted and waits again; its status tells which."""

    def peek(self) -> Sequence:
        """The next to admit; nobody may pass it. Only called when somebody waits."""
        ...

    def remove(self, sequence: Sequence) -> None:
        """It was admitted, or ended while it waited."""

    def __iter__(self) -> Iterator[Sequence]:
        """Everyone who waits, in order."""
        ...

    def __len__(self) -> int: ...


class FirstComeFirstServed:
    """In order of arrival.

    A preempted sequence goes to the head: admission and preemption (latest arrival first) both keep everyone who
    runs ahead of everyone who waits, so the head is its place by arrival.
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[int, Sequence] = OrderedDict()

    def put(self, sequence: Sequence) -> None:
        self._queue[sequence.arrival] = sequence
        if sequence.status is SequenceStatus.PREEMPTED:
            self._queue.move_to_end(sequence.arrival, last=False)

    def peek(self) -> Sequence:
        return next(iter(self._queue.values()))

    def remove(self, sequence: Sequence) -> None:
        del self._queue[sequence.arrival]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._queue.values())

    def __len__(self) -> int:
        return len(self._queue)
