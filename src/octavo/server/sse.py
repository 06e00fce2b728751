"""Server-sent events.

A stream is `data: {json}` frames, each ended by an empty line, and `data: [DONE]`. Nothing is sent before the first
frame exists, so what goes wrong until then is an ordinary HTTP error. Later the status line is gone, and an error is
a frame that holds the envelope.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from starlette.types import Send

from octavo.errors import OctavoError, ShuttingDownError
from octavo.server.lifecycle import Lifecycle
from octavo.server.openai.errors import answer_to

DONE = b"data: [DONE]\n\n"

FAREWELL_S = 1.0
"""How long a reader that is cut off may take to accept the last frame."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

json_bytes = msgspec.json.Encoder().encode


def frame(value: Any) -> bytes:
    """One event."""
    return b"data: " + json_bytes(value) + b"\n\n"


def named_frame(name: str, value: Any) -> bytes:
    """One event with a name."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json_bytes(value))


class Closing(msgspec.Struct, frozen=True):
    """How an API ends its streams."""

    done: bytes
    """Sent after the last frame."""
    failed: Callable[[BaseException], bytes]
    """Sent in place of what an error left unsaid."""


async def send_events(
    send: Send, frames: AsyncGenerator[bytes, None], lifecycle: Lifecycle, closing: Closing | None = None
) -> None:
    """Send `frames` as they come, then what ends a stream, `[DONE]` by default. Cancelling this closes `frames`.

    Raises:
        Exception: What `frames` raised before its first frame; nothing has been sent then.
    """
    closing = closing or _OPENAI
    async with aclosing(frames):
        first = await anext(frames, b"")
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            await _send_body(send, first)
            async for piece in frames:
                await _send_body(send, piece)
            last = closing.done
        except asyncio.CancelledError:
            last = closing.failed(_why_cut(lifecycle))
        except Exception as error:
            last = closing.failed(error)
    with suppress(TimeoutError):
        await asyncio.wait_for(send({"type": "http.response.body", "body": last}), _patience(lifecycle))


def _why_cut(lifecycle: Lifecycle) -> OctavoError:
    """What the client of a stream that is being cancelled is told; raises CancelledError where it has left."""
    if lifecycle.is_late():
        return lifecycle.deadline_error()
    if lifecycle.cut_off:
        return ShuttingDownError("the server shut down before the answer was complete")
    raise asyncio.CancelledError


def frame_of_error(error: BaseException) -> bytes:
    """The envelope as an event."""
    return b"data: " + answer_to(error).body() + b"\n\n"


_OPENAI = Closing(DONE, lambda error: frame_of_error(error) + DONE)


async def _send_body(send: Send, piece: bytes) -> None:
    await send({"type": "http.response.body", "body": piece, "more_body": True})


def _patience(lifecycle: Lifecycle) -> float | None:
    return FAREWELL_S if lifecycle.cut_off or lifecycle.is_late() else None
