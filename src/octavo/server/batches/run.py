"""Runs lines through the routes, as many at once as the engine takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from starlette.types import ASGIApp

from octavo.errors import OverloadedError, RequestError
from octavo.server.batches.lines import BatchLine, LineResult, answered, custom_id_of, parse_line, refused
from octavo.server.inner import call
from octavo.server.openai.errors import HTTPProblem

K = TypeVar("K")
R = TypeVar("R")


async def run_raw(routes: Mapping[str, ASGIApp], raw: bytes) -> LineResult:
    """Answer one line of a file; what is no request is answered with what is wrong.

    Raises:
        ShuttingDownError, EngineDeadError: If nothing is served any more.
    """
    try:
        line = parse_line(raw, tuple(routes))
    except (RequestError, HTTPProblem) as error:
        return refused(custom_id_of(raw), error)
    return await run_line(routes, line)


async def run_line(routes: Mapping[str, ASGIApp], line: BatchLine, scope: Mapping[str, Any] = {}) -> LineResult:
    """Answer one line. While there is no room for it, it waits.

    Raises:
        ShuttingDownError, EngineDeadError: If nothing is served any more.
    """
    while True:
        try:
            return answered(line, await call(routes[line.url], line.url, line.body, scope))
        except OverloadedError as error:
            await asyncio.sleep(error.retry_after_s)


async def as_they_end(work: Iterable[tuple[K, Coroutine[Any, Any, R]]], most: int) -> AsyncGenerator[tuple[K, R], None]:
    """Await coroutines, at most so many at once, and yield each with its key when it has ended.

    `work` is taken from as places come free. Closing this, or one that fails, cancels the rest.
    """
    waiting = iter(work)
    running: dict[asyncio.Task[R], K] = {}

    def fill() -> None:
        while len(running) < most and (item := next(waiting, None)) is not None:
            running[asyncio.ensure_future(item[1])] = item[0]

    try:
        fill()
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            ended = [(running.pop(task), task) for task in done]
            for key, task in ended:
                yield key, task.result()
            fill()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
