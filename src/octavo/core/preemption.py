"""Who gives way when a running sequence needs a block and none is left."""

from __future__ import annotations

from typing import Protocol

from octavo.core.request import Sequence


class PreemptionPolicy(Protocol):
    def choose(self, candidates: list[Sequence]) -> Sequence:
        """The sequence to preempt.

        Args:
            candidates: In order of admission, the one that needs a block first, then every running sequence that the
                plan in the making does not hold.
        """
        ...


class LatestArrival:
    """The latest to arrive gives way, so the oldest always advances and nobody starves."""

    def choose(self, candidates: list[Sequence]) -> Sequence:
        return max(candidates, key=lambda sequence: sequence.arrival)
