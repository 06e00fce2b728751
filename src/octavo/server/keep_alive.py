"""Comments in event streams that have nothing to say for a while, so that nobody between takes them for dead.

There is one timer for each stream, and none without --sse-keep-alive-interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress

from starlette.types import Scope

from octavo.server.context import ServerContext
from octavo.server.line import Line, line_of

COMMENT = b": keep-alive\n\n"
"""Readers of event streams skip it."""

Frames = AsyncGenerator[bytes, None]


class TimedLine(Line):
    """A line that knows when it was last written to."""

    __slots__ = ("written_s",)

    def __init__(self, line: Line) -> None:
        super().__init__(line._cycle)
        self.written_s = 0.0

    def write(self, piece: bytes) -> None:
        super().write(piece)
        self.written_s = time.monotonic()


def frames_to(context: ServerContext, scope: Scope, frames_over: Callable[[Line | None], Frames]) -> Frames:
    """The frames of the answer to a request, with comments where the server shall send them.

    Args:
        frames_over: Makes the frames; those that go over the line are not among them.
    """
    line, interval_s = line_of(scope), context.http.sse_keep_alive_interval
    if not interval_s:
        return frames_over(line)
    timed = None if line is None else TimedLine(line)
    return kept_alive(frames_over(timed), timed, interval_s)


async def kept_alive(frames: Frames, line: TimedLine | None, interval_s: float) -> Frames:
    """`frames`, and a comment whenever there was neither one of them nor one over `line` for `interval_s` seconds.

    A client that is slow to read has something to read, and gets none.
    """
    said_s, begun = time.monotonic(), False
    async with aclosing(frames):
        coming = asyncio.ensure_future(anext(frames, None))
        try:
            while True:
                last_s = said_s if line is None else max(said_s, line.written_s)
                left_s = last_s + interval_s - time.monotonic()
                if left_s > 0:
                    await asyncio.wait((coming,), timeout=left_s)
                if coming.done():
                    piece = coming.result()
                    if piece is None:
                        return
                    yield piece
                    coming = asyncio.ensure_future(anext(frames, None))
                elif left_s > 0:
                    continue  # the line may have been written to meanwhile
                elif not begun or line is None or line.open:
                    yield COMMENT
                begun, said_s = True, time.monotonic()
        finally:
            coming.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await coming
