"""EngineLoop: the core with the clock and the manners it lacks. Every host runs one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from octavo.engine.grammar_desk import GrammarDesk
from octavo.engine.questions import Question
from octavo.errors import ContextLengthError, OctavoError, RequestError
from octavo.messages import (
    FINISH_ERROR,
    REFUSED_GRAMMAR,
    REFUSED_LENGTH,
    REFUSED_REQUEST,
    EngineRequest,
    EngineStats,
    TokenDelta,
)

if TYPE_CHECKING:
    from octavo.core.engine_core import EngineCore
    from octavo.core.step import Grammars

A = TypeVar("A")

STATS_INTERVAL_S = 0.05
"""A busy engine reports its state this often; an engine that becomes idle reports it once more."""


GRAMMAR_WAIT_S = 0.005
"""How long an engine that has nothing to do but wait for a grammar stays deaf to commands."""


class Batch(msgspec.Struct, tag="batch", array_like=True):
    """What one step made known, about all requests together."""

    deltas: list[TokenDelta]
    stats: EngineStats | None = None


class EngineLoop:
    """Runs one EngineCore. Not safe for several threads."""

    def __init__(self, core: EngineCore, close: Callable[[], None], grammars: Grammars | None = None) -> None:
        self.core = core
        self._desk = GrammarDesk(grammars)
        self._close = close
        self._refused: list[TokenDelta] = []
        self._changed = True
        self._reported_s = 0.0
        self._began_s = time.monotonic()
        """The core's time zero, so that a block nobody ever used is as old as the engine, not as the machine."""

    @property
    def has_work(self) -> bool:
        """Whether `step` would do or tell something."""
        return self.core.has_work or bool(self._refused) or self._changed or self._desk.has_waiting

    def add(self, request: EngineRequest) -> None:
        """Take a request in. One that the core refuses is answered by a delta, like every other failure."""
        self._changed = True
        try:
            if request.grammar is None:
                self.core.add(request)
            else:
                self._desk.take(request, request.grammar)
        except OctavoError as error:
            self._refuse(request, _refusal(error), str(error))

    def _refuse(self, request: EngineRequest, refusal: str | None, why: str) -> None:
        last = request.first_index + request.sampling.n
        self._refused += [
            TokenDelta(request.request_id, index, [], FINISH_ERROR, error=why, refusal=refusal)
            for index in range(request.first_index, last)
        ]

    def abort(self, request_id: int, index: int | None) -> None:
        """Drop a request, or one of its answers. Unknown ids are those that have ended by themselves."""
        self._changed = True
        if self._desk.has_waiting:
            self._desk.abort(request_id, index)
        self.core.abort(request_id, index)

    def ask(self, question: Question[A]) -> A:
        """Put a question to the core. Raises whatever the core raises; the loop can go on."""
        self._changed = True
        self.core.tell_time(time.monotonic() - self._began_s)
        return question.put_to(self.core)

    def step(self) -> Batch:
        """Advance by one step."""
        now_s = time.monotonic()
        if self._desk.has_waiting:
            self._take_compiled()
        refused, self._refused = self._refused, []
        batch = Batch(refused + self.core.step(now_s - self._began_s))
        if self._desk.has_grammars:
            self._desk.forget_ended(self.core.scheduler.requests)
        idle = not self.core.has_work
        if idle or now_s - self._reported_s >= STATS_INTERVAL_S:
            batch.stats = self.core.stats()
            self._reported_s = now_s
            self._changed = False
        return batch

    def _take_compiled(self) -> None:
        """Queue the requests whose grammars are compiled. With nothing else to do, wait a little for one."""
        if not self.core.has_work and not self._refused:
            self._desk.wait(GRAMMAR_WAIT_S)
        for ready in self._desk.ready():
            try:
                if ready.error is not None:
                    self._refuse(ready.request, REFUSED_GRAMMAR, str(ready.error))
                    continue
                self.core.add(ready.request)
            except OctavoError as error:
                self._refuse(ready.request, _refusal(error), str(error))
                continue
            for index in ready.aborted:
                self.core.abort(ready.request.request_id, index)

    def close(self) -> None:
        self._close()


def _refusal(error: OctavoError) -> str | None:
    if isinstance(error, ContextLengthError):
        return REFUSED_LENGTH
    return REFUSED_REQUEST if isinstance(error, RequestError) else None
