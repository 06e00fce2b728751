"""Comments in quiet event streams."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import ConfigError, OverloadedError
from octavo.server.keep_alive import COMMENT, TimedLine, frames_to, kept_alive
from octavo.server.line import LINE, Line

INTERVAL_S = 0.05


def timed_line(**state: Any) -> TimedLine:
    cycle: Any = SimpleNamespace(
        response_started=True,
        response_complete=False,
        chunked_encoding=True,
        flow=SimpleNamespace(write_paused=False),
        disconnected=False,
        transport=SimpleNamespace(write=lambda data: None),
    )
    vars(cycle).update(state)
    return TimedLine(Line(cycle))


async def pieces_of(*steps: float | bytes | Exception) -> AsyncGenerator[bytes, None]:
    """Waits seconds, yields bytes, raises errors."""
    for step in steps:
        if isinstance(step, bytes):
            yield step
        elif isinstance(step, Exception):
            raise step
        else:
            await asyncio.sleep(step)


async def collected(frames: AsyncGenerator[bytes, None]) -> list[bytes]:
    return [piece async for piece in frames]


def test_a_quiet_stream_gets_comments_before_and_between_its_frames() -> None:
    async def body() -> list[bytes]:
        go_on = asyncio.Event()

        async def frames() -> AsyncGenerator[bytes, None]:
            for piece in (b"one", b"two"):
                await go_on.wait()
                go_on.clear()
                yield piece

        seen: list[bytes] = []
        async for piece in kept_alive(frames(), None, INTERVAL_S):
            seen.append(piece)
            if seen[-2:] == [COMMENT] * 2:
                go_on.set()
        return [piece for i, piece in enumerate(seen) if piece != COMMENT or seen[i - 2 : i] != [COMMENT] * 2]

    assert asyncio.run(body()) == [COMMENT, COMMENT, b"one", COMMENT, COMMENT, b"two"]


def test_a_busy_stream_gets_none() -> None:
    seen = asyncio.run(collected(kept_alive(pieces_of(*[0.001, b"x"] * 40), None, 60.0)))
    assert seen == [b"x"] * 40


def test_what_goes_over_the_line_counts() -> None:
    async def body() -> None:
        line = timed_line()
        begin_s = time.monotonic()
        line.write(b"token")
        assert line.written_s >= begin_s
        frames = kept_alive(pieces_of(b"begin", 60.0), line, INTERVAL_S)
        assert await anext(frames) == b"begin"
        line.written_s = time.monotonic() + 4 * INTERVAL_S  # as if it went on being written to
        assert await anext(frames) == COMMENT
        assert time.monotonic() >= line.written_s + INTERVAL_S
        await frames.aclose()

    asyncio.run(body())


def test_a_slow_reader_gets_none() -> None:
    line = timed_line(flow=SimpleNamespace(write_paused=True))
    seen = asyncio.run(collected(kept_alive(pieces_of(b"begin", 3 * INTERVAL_S, b"end"), line, INTERVAL_S)))
    assert seen == [b"begin", b"end"]


def test_errors_come_through_and_closing_ends_the_work() -> None:
    with pytest.raises(OverloadedError):
        asyncio.run(collected(kept_alive(pieces_of(OverloadedError("full")), None, INTERVAL_S)))
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def cancelled() -> None:
        task = asyncio.ensure_future(collected(kept_alive(endless(), None, INTERVAL_S)))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert closed == [True]

    asyncio.run(cancelled())


def test_without_an_interval_the_stream_is_as_it_is() -> None:
    frames, line = pieces_of(b"one"), timed_line()
    given: list[Any] = []
    scope: Any = {"extensions": {LINE: {"line": line}}}
    context: Any = SimpleNamespace(http=HTTPConfig())
    assert frames_to(context, scope, lambda line: given.append(line) or frames) is frames
    assert given == [line]
    with pytest.raises(ConfigError, match="sse_keep_alive_interval"):
        HTTPConfig(sse_keep_alive_interval=-1)
