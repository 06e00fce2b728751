"""What the server is doing as a whole: serving, draining, or cutting off."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from starlette.types import Receive

from octavo.errors import ShuttingDownError
from octavo.server.body import ClientDisconnectedError
from octavo.server.openai.errors import HTTPProblem, problem

T = TypeVar("T")

LAST_FRAME_S = 2.0
"""How long a request that is cut off at its deadline may take to tell its client."""


class Lifecycle:
    """Counts the requests under way, refuses new ones while draining, and can cut off what is left.

    Args:
        request_timeout_s: How long a request may take; None for ever.
    """

    def __init__(self, request_timeout_s: float | None = None) -> None:
        self._request_timeout_s = request_timeout_s
        self._late: set[asyncio.Task[Any]] = set()
        self.draining = False
        self.cut_off = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_running(self) -> int:
        return len(self._tasks)

    def check_open(self) -> None:
        """Raises ShuttingDownError while draining."""
        if self.draining:
            raise ShuttingDownError("the server is shutting down and takes no new requests")

    async def run(self, work: Coroutine[Any, Any, T], receive: Receive) -> T:
        """Do `work` for as long as the client stays connected and the server is not cut off.

        `work` is cancelled the moment the client leaves, whether or not its answer has begun, so that nothing is
        computed for nobody.

        Raises:
            HTTPProblem: 504 when the time for a request is over.
            ClientDisconnectedError: The client left.
            ShuttingDownError: The drain ran out of time, or was cut short by a second signal.
        """
        task = asyncio.ensure_future(work)
        watcher = asyncio.ensure_future(_client_left(receive))
        self._add(task)
        try:
            limit = self._request_timeout_s
            done, _ = await asyncio.wait((task, watcher), timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                await self._cut_late(task)
            if not task.done():
                raise ClientDisconnectedError
            if task.cancelled() and task in self._late:
                raise self.deadline_error()
            if task.cancelled():
                raise ShuttingDownError("the server shut down before the answer was complete")
            return task.result()
        finally:
            for unfinished in (task, watcher):
                unfinished.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await unfinished
            self._discard(task)

    def is_late(self) -> bool:
        """Whether the calling task is being cancelled because its request has taken too long."""
        return asyncio.current_task() in self._late

    def deadline_error(self) -> HTTPProblem:
        """What the client of a late request is told."""
        message = f"the answer took longer than {self._request_timeout_s:g} s (--request-timeout)"
        return problem(504, message, "deadline_exceeded", type="timeout_error")

    async def _cut_late(self, task: asyncio.Task[Any]) -> None:
        self._late.add(task)
        task.cancel()
        await asyncio.wait((task,), timeout=LAST_FRAME_S)

    async def wait_idle(self, timeout_s: float) -> bool:
        """Wait until no request is under way; False if the time was not enough."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        return self._idle.is_set()

    def cut(self) -> None:
        """Cancel every request under way; each still tells its client why."""
        self.draining = self.cut_off = True
        for task in list(self._tasks):
            task.cancel()

    def _add(self, task: asyncio.Task[Any]) -> None:
        self._tasks.add(task)
        self._idle.clear()

    def _discard(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        self._late.discard(task)
        if not self._tasks:
            self._idle.set()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
