"""When what became known is told: at once, or when a whole batch has ended."""

from __future__ import annotations

from typing import Protocol

from octavo.core.request_level import WholeBatches
from octavo.messages import TokenDelta


class Delivery(Protocol):
    """Stands between a step's result and whoever asked."""

    @property
    def has_answers(self) -> bool:
        """Whether something may be told now, though no step brings it."""
        ...

    def pass_on(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        """Take what a step found, and return what may be told now."""
        ...

    def forget(self, request_id: int, index: int | None) -> None:
        """Nobody waits any more for a request's answers, or for one of them."""


class AtOnce:
    has_answers = False

    def pass_on(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        return deltas

    def forget(self, request_id: int, index: int | None) -> None:
        """Nothing is kept."""


class WithTheBatch:
    """Request-level batching answers nobody before everybody: answers are held until their batch is over."""

    def __init__(self, batches: WholeBatches) -> None:
        self._batches = batches
        self._held: list[TokenDelta] = []

    @property
    def has_answers(self) -> bool:
        return bool(self._held) and self._batches.is_over

    def pass_on(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        self._held += deltas
        if not self._batches.is_over:
            return []
        held, self._held = self._held, []
        return held

    def forget(self, request_id: int, index: int | None) -> None:
        self._held = [d for d in self._held if d.request_id != request_id or index not in (None, d.index)]
