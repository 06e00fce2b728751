"""ProcessHost: the engine in a process of its own, which may die without taking an answer with it."""

from __future__ import annotations

import itertools
import logging
import os
import subprocess
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, NoReturn, TypeVar, cast

from octavo.config import EngineConfig
from octavo.engine import wire
from octavo.engine.loop import Batch
from octavo.engine.pipe import Pipe
from octavo.engine.publications import Publications
from octavo.engine.questions import AnyQuestion, Question, Withdraw
from octavo.engine.resume import LiveRequest
from octavo.engine.start_up import without_idle_threads
from octavo.errors import EngineDeadError
from octavo.messages import EngineInfo, EngineRequest, EngineStats

if TYPE_CHECKING:
    from octavo.weights.sources import ModelFiles

_LOG = logging.getLogger("octavo.engine")

A = TypeVar("A")

MAX_RESTARTS = 3
RESTART_WINDOW_S = 60.0
"""More deaths than MAX_RESTARTS within this time, and the engine stays dead."""
SUSPECT_DEATHS = 3
"""A request that got no token between so many deaths in a row is given up: it may well be what kills the engine."""
_SUSPECT = f"the engine died {SUSPECT_DEATHS} times while it worked on this request"
_STOP_S = 5.0
"""How long a process may take to stop before it is killed."""


class _Child:
    """One engine process and the pipe to it."""

    def __init__(self) -> None:
        self._pipe, end = Pipe.pair()
        with end:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "octavo.engine.host_process", str(end.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[end.fileno()],
                env=without_idle_threads(os.environ),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, command: wire.Command) -> None:
        """Send without waiting. To a process that is gone nothing is sent: `receive` reports its end."""
        self._pipe.send(wire.encode(command))

    def receive(self, timeout_s: float | None) -> wire.Event | None:
        """The next event, or None after the time.

        Raises:
            EngineDeadError: If the process is gone and everything it sent has been received.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            try:
                data = self._pipe.receive()
            except EOFError:
                raise EngineDeadError(f"the engine process ended with status {self._end()}") from None
            if data is not None:
                return wire.decode_event(data)
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._pipe.wait(left_s)

    def _end(self) -> int:
        """Wait for the process, which ends; its exit status."""
        try:
            return self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def close(self, *, kill: bool) -> None:
        if kill:
            self._process.kill()
        self._end()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._pipe.close()


class ProcessHost:
    """See `Host`.

    When the process dies a new one is started and takes up every answer where it was: the front end keeps the prompt,
    the seed and all tokens received, and that is all the state an answer has.
    """

    def __init__(self) -> None:
        self._what: wire.Start | None = None
        self._begun: _Child | None = None
        """One that was not told yet what to start."""
        self._child: _Child | None = None
        """None while there is none that takes commands."""
        self._sending = threading.Lock()
        """Guards `_child`, `_live`, `_owner` and `_publications`."""
        self._receiving = threading.Lock()
        self._live: dict[int, LiveRequest] = {}
        self._owner: dict[int, int] = {}
        """The request that an id in the engine belongs to, for ids made on a resume."""
        self._new_ids = itertools.count(-1, -1)
        self._ready: deque[Batch] = deque()
        self._answers: dict[int, wire.Answered | wire.Unanswered] = {}
        self._question_numbers = itertools.count()
        self._publications = Publications()
        self._deaths_s: deque[float] = deque()
        self._stats = EngineStats()
        self._dead: str | None = None
        self._closed = False

    def begin(self) -> None:
        """Start the process before it is known what it shall run: it imports what it needs meanwhile. Once, before
        `start`."""
        self._begun = _Child()

    def start(self, config: EngineConfig, files: ModelFiles) -> EngineInfo:
        self._what = wire.Start.of(config, files)
        self._child, info = self._spawn(self._what)
        return info

    @property
    def alive(self) -> bool:
        return self._dead is None and not self._closed

    @property
    def pid(self) -> int | None:
        """The engine process, None while there is none."""
        child = self._child
        return None if child is None else child.pid

    def _spawn(self, what: wire.Start) -> tuple[_Child, EngineInfo]:
        child, self._begun = self._begun, None
        if child is None:
            child = _Child()
        try:
            child.send(what)
            event = child.receive(None)
        except BaseException:
            child.close(kill=True)
            raise
        if isinstance(event, wire.Started):
            return child, event.info
        child.close(kill=True)
        if isinstance(event, wire.Failed):
            wire.raise_failure(event)
        raise EngineDeadError("the engine process did not say that it started")

    def submit(self, request: EngineRequest) -> None:
        with self._sending:
            if not self.alive:
                raise EngineDeadError(self._dead or "the engine is closed")
            self._live[request.request_id] = LiveRequest(request)
            if self._child is not None:
                self._child.send(wire.Add(request))

    def abort(self, request_id: int, index: int | None = None) -> None:
        with self._sending:
            live = self._live.get(request_id)
            if live is None:
                return
            live.give_up(index)
            engine_ids = [request_id, *(new for new, owner in self._owner.items() if owner == request_id)]
            if self._child is not None:
                for engine_id in engine_ids:
                    self._child.send(wire.Abort(engine_id, index))
            self._forget_if_finished(request_id, live)

    def _forget_if_finished(self, request_id: int, live: LiveRequest) -> None:
        if live.finished:
            del self._live[request_id]
            for engine_id in [new for new, owner in self._owner.items() if owner == request_id]:
                del self._owner[engine_id]

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._closed:
            with self._receiving:
                if self._ready:
                    return self._ready.popleft()
                left_s = 0.5 if until_s is None else min(0.5, until_s - time.monotonic())
                self._receive(max(0.0, left_s))
                if self._ready:
                    return self._ready.popleft()
            if until_s is not None and time.monotonic() >= until_s:
                return None
        return None

    def _receive(self, timeout_s: float) -> None:
        """Take in one event, if one comes. The caller holds `_receiving`."""
        if self._dead is not None:
            raise EngineDeadError(self._dead)
        child = self._child
        if child is None:
            return
        try:
            event = child.receive(timeout_s)
        except EngineDeadError as error:
            if not self._closed:
                self._restart(error)
            return
        if isinstance(event, Batch):
            self._ready.append(self._mine(event))
        elif isinstance(event, wire.Answered | wire.Unanswered):
            self._answers[event.number] = event

    def _mine(self, batch: Batch) -> Batch:
        """The batch under the front end's ids, without what nobody waits for any more."""
        if batch.stats is not None:
            self._stats = batch.stats
        kept = []
        with self._sending:
            for delta in batch.deltas:
                request_id = self._owner.get(delta.request_id, delta.request_id)
                live = self._live.get(request_id)
                if live is None:
                    self._publications.note_repeated(delta)
                    continue
                if not live.receive(delta):
                    continue
                self._publications.note(live.request, delta)
                delta.request_id = request_id
                kept.append(delta)
                self._forget_if_finished(request_id, live)
        return Batch(kept, batch.stats)

    def _restart(self, error: EngineDeadError) -> None:
        now_s = time.monotonic()
        self._deaths_s.append(now_s)
        while now_s - self._deaths_s[0] > RESTART_WINDOW_S:
            self._deaths_s.popleft()
        with self._sending:
            child, self._child = self._child, None
        if child is not None:
            child.close(kill=True)
        if len(self._deaths_s) > MAX_RESTARTS or self._what is None:
            self._die(f"{error}, {len(self._deaths_s)} times in {RESTART_WINDOW_S:.0f} seconds")
        _LOG.warning("%s; starting a new one", error)
        try:
            child, _ = self._spawn(self._what)
        except Exception as failure:
            self._die(f"the engine could not be restarted: {failure}")
        with self._sending:
            if self._closed:  # nobody will tell this one to stop
                child.close(kill=True)
                return
            self._owner.clear()
            for request in self._publications.repeated(self._new_ids):  # first, so that the rest may find them
                child.send(wire.Add(request))
            for request_id, live in list(self._live.items()):
                live.num_deaths += 1
                if live.num_deaths >= SUSPECT_DEATHS:  # it may well be what kills them
                    self._ready.append(Batch(live.failed(_SUSPECT), None))
                    del self._live[request_id]
                    continue
                for request in live.resumed(self._new_ids):
                    if request.request_id != request_id:
                        self._owner[request.request_id] = request_id
                    child.send(wire.Add(request))
            self._child = child

    def _die(self, why: str) -> NoReturn:
        with self._sending:
            self._dead = why
            self._live.clear()
        _LOG.error("%s; the server answers no more and must be restarted", why)
        raise EngineDeadError(why)

    def stats(self) -> EngineStats:
        return self._stats

    def ask(self, question: Question[A]) -> A:
        number = next(self._question_numbers)
        try:
            while True:
                asked = self._send_question(number, question)
                # Whoever waits for batches receives for us too; else we receive for them.
                while number not in self._answers and self._child is asked and not self._closed:
                    if self._receiving.acquire(timeout=0.02):
                        try:
                            self._receive(0.02)
                        finally:
                            self._receiving.release()
                event = self._answers.pop(number, None)
                if event is None:
                    continue
                answer = wire.answer_to(question, event)
                if not isinstance(question, Withdraw):
                    return answer
                known = self._forget_published(question.name, asked)
                if known is not None:
                    return cast(A, answer or known)
        finally:
            self._answers.pop(number, None)

    def _send_question(self, number: int, question: Question[A]) -> _Child | None:
        """Returns whom it was sent to; None while there is nobody, and one has to ask again."""
        with self._sending:
            if not self.alive:
                raise EngineDeadError(self._dead or "the engine is closed")
            child = self._child
            if child is not None:
                if isinstance(question, Withdraw):  # else it might be published right after it was withdrawn
                    for request_id in self._publications.being_repeated(question.name):
                        child.send(wire.Abort(request_id, None))
                child.send(wire.Ask(number, cast(AnyQuestion, question)))
            return child

    def _forget_published(self, name: str, asked: _Child | None) -> bool | None:
        """Whether it was known that `name` is published; None, and it stays so, if the engine that has withdrawn it is
        gone: the next one may have been told to publish it again."""
        with self._sending:
            return self._publications.forget(name) if self._child is asked else None

    def close(self) -> None:
        with self._sending:
            if self._closed:
                return
            self._closed = True
            child = self._child
            if child is not None:
                child.send(wire.Stop())
        with self._receiving:  # whoever waits for a batch leaves when the process ends
            with self._sending:
                child, self._child = self._child, None
            if child is not None:
                child.close(kill=False)
            if self._begun is not None:
                self._begun.close(kill=True)
