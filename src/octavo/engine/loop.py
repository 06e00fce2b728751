"""EngineLoop: the core with the clock and the manners it lacks. Every host runs one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from octavo.engine.questions import Question
from octavo.errors import ContextLengthError, OctavoError, RequestError
from octavo.messages import (
    FINISH_ERROR,
    REFUSED_LENGTH,
    REFUSED_REQUEST,
    EngineRequest,
    EngineStats,
    TokenDelta,
)

if TYPE_CHECKING:
    from octavo.core.engine_core import EngineCore

A = TypeVar("A")

STATS_INTERVAL_S = 0.05
"""A busy engine reports its state this often; an engine that becomes idle reports it once more."""


class Batch(msgspec.Struct, tag="batch", array_like=True):
    """What one step made known, about all requests together."""

    deltas: list[TokenDelta]
    stats: EngineStats | None = None


class EngineLoop:
    """Runs one EngineCore. Not safe for several threads."""

    def __init__(self, core: EngineCore, close: Callable[[], None]) -> None:
        self.core = core
        self._close = close
        self._refused: list[TokenDelta] = []
        self._changed = True
        self._reported_s = 0.0
        self._began_s = time.monotonic()
        """The core's time zero, so that a block nobody ever used is as old as the engine, not as the machine."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do or tell something."""
        return self.core.has_work or bool(self._refused) or self._changed

    def add(self, request: EngineRequest) -> None:
        """Take a request in. One that the core refuses is answered by a delta, like every other failure."""
        self._changed = True
        try:
            self.core.add(request)
        except OctavoError as error:
            last = request.first_index + request.sampling.n
            refusal = _refusal(error)
            self._refused += [
                TokenDelta(request.request_id, index, [], FINISH_ERROR, error=str(error), refusal=refusal)
                for index in range(request.first_index, last)
            ]

    def abort(self, request_id: int, index: int | None) -> None:
        """Drop a request, or one of its answers. Unknown ids are those that have ended by themselves."""
        self._changed = True
        self.core.abort(request_id, index)

    def ask(self, question: Question[A]) -> A:
        """Put a question to the core. Raises whatever the core raises; the loop can go on."""
        self._changed = True
        self.core.tell_time(time.monotonic() - self._began_s)
        return question.put_to(self.core)

    def step(self) -> Batch:
        """Advance by one step."""
        now_s = time.monotonic()
        refused, self._refused = self._refused, []
        batch = Batch(refused + self.core.step(now_s - self._began_s))
        idle = not self.core.has_work
        if idle or now_s - self._reported_s >= STATS_INTERVAL_S:
            batch.stats = self.core.stats()
            self._reported_s = now_s
            self._changed = False
        return batch

    def close(self) -> None:
        self._close()


def _refusal(error: OctavoError) -> str | None:
    if isinstance(error, ContextLengthError):
        return REFUSED_LENGTH
    return REFUSED_REQUEST if isinstance(error, RequestError) else None
