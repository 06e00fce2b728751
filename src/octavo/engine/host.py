"""Where an engine runs: in the caller's thread, in a thread of its own, or in a process of its own.

All three do the same for their caller, who submits requests and takes batches of token deltas:

    inline   `next_batch` itself runs a step; nothing happens between calls. For offline work and tests.
    thread   a thread runs steps; `next_batch` waits for what they give.
    process  the same behind a socket; a process that dies is restarted and the answers go on (process_host.py).
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Protocol, TypeVar

from octavo.config import EngineConfig
from octavo.engine.loop import Batch, EngineLoop
from octavo.engine.questions import Question
from octavo.errors import EngineDeadError, OctavoError
from octavo.messages import EngineInfo, EngineRequest, EngineStats

if TYPE_CHECKING:
    from octavo.weights.sources import ModelFiles

A = TypeVar("A")


class Host(Protocol):
    """An engine somewhere. `submit`, `abort` and `stats` never wait for a step; any thread may call any method."""

    def start(self, config: EngineConfig, files: ModelFiles) -> EngineInfo:
        """Load the model; returns when the engine is ready.

        Raises:
            ConfigError, ModelError: If it cannot run as asked.
            EngineDeadError: If it ends for another reason.
        """

    @property
    def alive(self) -> bool:
        """Whether requests are being served, or will be after a restart that is under way."""

    def submit(self, request: EngineRequest) -> None:
        """Hand in a request. Raises EngineDeadError once the engine is gone for good."""

    def abort(self, request_id: int, index: int | None = None) -> None:
        """Give up a request or one of its answers; no more deltas come for it but those already on the way."""

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        """What the next step makes known, or None after `timeout_s` seconds without news, or once closed.

        Raises:
            EngineDeadError: If the engine is gone for good; every request in it is lost.
        """

    def stats(self) -> EngineStats:
        """The engine's state as last reported: exact when it idles, at most some tens of milliseconds old otherwise."""

    def ask(self, question: Question[A]) -> A:
        """Put a question to the engine between two steps and wait for the answer; never inside the event loop.

        Raises:
            EngineDeadError: If the engine is gone for good.
            OctavoError: If the question failed.
        """

    def close(self) -> None:
        """Stop at once and free everything. Repeatable."""


def make_host(kind: str) -> Host:
    """A host by its name in `ExecutionConfig.host`."""
    if kind == "inline":
        return InlineHost()
    if kind == "thread":
        return ThreadHost()
    from octavo.engine.process_host import ProcessHost

    return ProcessHost()


class InlineHost:
    """See `Host`: whoever calls `next_batch` runs the step."""

    def __init__(self) -> None:
        self._loop: EngineLoop | None = None
        self._inbox: deque[Callable[[EngineLoop], None]] = deque()
        self._news = threading.Event()
        self._stepping = threading.Lock()
        self._stats = EngineStats()
        self._dead: str | None = None

    def start(self, config: EngineConfig, files: ModelFiles) -> EngineInfo:
        from octavo.engine.build import (
            build_engine,
            grammars_of,
        )  # which a front end with an engine elsewhere does without

        core, info, close = build_engine(config, files)
        self._loop = EngineLoop(core, close, grammars_of(core, config, files, info))
        self._stats = core.stats()
        return info

    @property
    def alive(self) -> bool:
        return self._loop is not None and self._dead is None

    def submit(self, request: EngineRequest) -> None:
        if not self.alive:
            raise EngineDeadError(self._dead or "the engine is not running")
        self._tell(lambda loop: loop.add(request))

    def abort(self, request_id: int, index: int | None = None) -> None:
        self._tell(lambda loop: loop.abort(request_id, index))

    def _tell(self, command: Callable[[EngineLoop], None]) -> None:
        self._inbox.append(command)
        self._news.set()

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._stepping:
                loop = self._loop
                if self._dead is not None:
                    raise EngineDeadError(self._dead)
                if loop is None:
                    return None
                batch = self._step(loop)
            if batch is not None:
                return batch
            left_s = None if until_s is None else until_s - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            if not loop.has_work:
                self._news.wait(left_s)

    def _step(self, loop: EngineLoop) -> Batch | None:
        self._news.clear()
        try:
            self._obey(loop)
            if not loop.has_work:
                return None
            batch = loop.step()
        except Exception as error:
            self._dead = f"the engine failed: {type(error).__name__}: {error}"
            raise EngineDeadError(self._dead) from error
        if batch.stats is not None:
            self._stats = batch.stats
        return batch if batch.deltas or batch.stats is not None else None

    def _obey(self, loop: EngineLoop) -> None:
        while self._inbox:
            self._inbox.popleft()(loop)

    def stats(self) -> EngineStats:
        if self._stepping.acquire(blocking=False):  # between steps the truth is at hand
            try:
                if self._loop is not None and self._dead is None:
                    self._obey(self._loop)
                    self._stats = self._loop.core.stats()
            finally:
                self._stepping.release()
        return self._stats

    def ask(self, question: Question[A]) -> A:
        answer: Future[A] = Future()
        self._tell(lambda loop: _answer(loop, question, answer))
        while not answer.done():
            # Whoever runs steps answers for us, between two of them; else we do it ourselves.
            if self._stepping.acquire(timeout=0.02):
                try:
                    if self._loop is None or self._dead is not None:
                        raise EngineDeadError(self._dead or "the engine is not running")
                    self._obey(self._loop)
                finally:
                    self._stepping.release()
        return answer.result()

    def close(self) -> None:
        with self._stepping:
            loop, self._loop = self._loop, None
        self._news.set()
        if loop is not None:
            loop.close()


def _answer(loop: EngineLoop, question: Question[A], answer: Future[A]) -> None:
    try:
        answer.set_result(loop.ask(question))
    except Exception as error:
        answer.set_exception(error)


class ThreadHost:
    """See `Host`: a thread runs an `InlineHost`."""

    def __init__(self) -> None:
        self._inner = InlineHost()
        self._batches: queue.SimpleQueue[Batch | OctavoError | None] = queue.SimpleQueue()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self, config: EngineConfig, files: ModelFiles) -> EngineInfo:
        info = self._inner.start(config, files)
        self._thread.start()
        return info

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                batch = self._inner.next_batch()
            except OctavoError as error:
                self._batches.put(error)
                return
            if batch is not None:
                self._batches.put(batch)

    @property
    def alive(self) -> bool:
        return self._inner.alive

    def submit(self, request: EngineRequest) -> None:
        self._inner.submit(request)

    def abort(self, request_id: int, index: int | None = None) -> None:
        self._inner.abort(request_id, index)

    def next_batch(self, timeout_s: float | None = None) -> Batch | None:
        with contextlib.suppress(queue.Empty):
            batch = self._batches.get(timeout=timeout_s)
            if isinstance(batch, OctavoError):
                self._batches.put(batch)  # the next call must learn of it too
                raise EngineDeadError(str(batch)) from batch
            return batch
        return None

    def stats(self) -> EngineStats:
        return self._inner.stats()

    def ask(self, question: Question[A]) -> A:
        return self._inner.ask(question)

    def close(self) -> None:
        self._closing.set()
        self._inner.close()
        if self._thread.is_alive():
            self._thread.join()
        self._batches.put(None)
