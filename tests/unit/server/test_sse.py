"""Event streams: errors before and after the first byte, and the farewell when cut off."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from octavo.errors import EngineDeadError, OverloadedError
from octavo.server.lifecycle import Lifecycle
from octavo.server.sse import DONE, frame, send_events


def play(frames: AsyncGenerator[bytes, None]) -> tuple[list[Any], BaseException | None]:
    """The messages sent for some frames, and what was raised."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def main() -> BaseException | None:
        try:
            await send_events(send, frames, Lifecycle())
        except Exception as error:
            return error
        return None

    return sent, asyncio.run(main())


async def frames(*items: Any) -> AsyncGenerator[bytes, None]:
    for item in items:
        if isinstance(item, Exception):
            raise item
        yield frame(item)


def test_frames_and_the_end() -> None:
    sent, error = play(frames({"a": 1}, {"b": "\n\u2028é"}))
    assert error is None
    assert sent[0]["status"] == 200
    body = b"".join(message["body"] for message in sent[1:])
    assert body == 'data: {"a":1}\n\ndata: {"b":"\\n\u2028é"}\n\ndata: [DONE]\n\n'.encode()
    assert [message.get("more_body", False) for message in sent[1:]] == [True, True, False]


def test_an_error_before_the_first_frame_sends_nothing() -> None:
    sent, error = play(frames(OverloadedError("full")))
    assert sent == [] and isinstance(error, OverloadedError)


def test_an_error_later_is_a_frame_before_the_end() -> None:
    sent, error = play(frames({"a": 1}, EngineDeadError("gone")))
    assert error is None
    last = sent[-1]["body"]
    assert last.endswith(DONE)
    envelope = json.loads(last.removesuffix(DONE).removeprefix(b"data: "))
    assert envelope["error"]["code"] == "engine_dead"


@pytest.mark.parametrize("reader_is_stuck", [False, True])
def test_a_cut_says_why_if_the_reader_takes_it(reader_is_stuck: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.server.sse.FAREWELL_S", 0.05)
    sent: list[bytes] = []
    closed: list[bool] = []

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            while True:
                yield frame({"a": 1})
                await asyncio.sleep(0.001)
        finally:
            closed.append(True)

    async def send(message: Any) -> None:
        if reader_is_stuck and len(sent) >= 2:
            await asyncio.Event().wait()
        sent.append(message.get("body", b""))

    async def main() -> None:
        lifecycle = Lifecycle()
        task = asyncio.ensure_future(send_events(send, endless(), lifecycle))
        lifecycle._add(task)
        await asyncio.sleep(0.02)
        lifecycle.cut()
        await asyncio.wait_for(task, 1)

    asyncio.run(main())
    assert closed == [True]
    assert (b"shutting_down" in sent[-1] and sent[-1].endswith(DONE)) is not reader_is_stuck
