"""Lines: pieces of a body that are written past ASGI, and when they must not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from octavo.engine.outputs import TextDelta
from octavo.messages import TokenLogprobs
from octavo.server.line import Line, line_of, offer_line
from octavo.server.openai.event_tap import EventTap, event_frames


class Transport:
    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        pass


def make_cycle() -> Any:
    return RequestResponseCycle(
        scope={"type": "http", "method": "POST"},  # type: ignore[typeddict-item]
        transport=Transport(),  # type: ignore[arg-type]
        flow=SimpleNamespace(write_paused=False),  # type: ignore[arg-type]
        logger=None,  # type: ignore[arg-type]
        access_logger=None,  # type: ignore[arg-type]
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


def test_pieces_stand_between_those_that_are_sent() -> None:
    async def body() -> None:
        cycle = make_cycle()
        line = Line(cycle)
        assert not line.open, "no headers yet"
        await cycle.send({"type": "http.response.start", "status": 200, "headers": []})
        await cycle.send({"type": "http.response.body", "body": b"one", "more_body": True})
        assert line.open
        line.write(b"two and three")
        await cycle.send({"type": "http.response.body", "body": b"4", "more_body": False})
        assert not line.open, "the body is complete"
        _, _, sent = cycle.transport.written.partition(b"\r\n\r\n")
        assert sent == b"3\r\none\r\nd\r\ntwo and three\r\n1\r\n4\r\n0\r\n\r\n"

    asyncio.run(body())


@pytest.mark.parametrize("what", ["slow", "gone", "sized"])
def test_a_line_is_closed_to_clients_that_are_slow_or_gone_and_to_sized_bodies(what: str) -> None:
    async def body() -> None:
        cycle = make_cycle()
        headers = [(b"content-length", b"9")] if what == "sized" else []
        await cycle.send({"type": "http.response.start", "status": 200, "headers": headers})
        if what == "slow":
            cycle.flow.write_paused = True
        elif what == "gone":
            cycle.disconnected = True
        assert not Line(cycle).open

    asyncio.run(body())


def test_other_servers_have_none() -> None:
    assert line_of({"type": "http"}) is None
    assert line_of({"type": "http", "extensions": {}}) is None
    cycle = make_cycle()
    offer_line(cycle)
    assert isinstance(line_of(cycle.scope), Line)


def test_a_tap_counts_and_writes_the_choices_of_a_step_at_once() -> None:
    notes: list[Any] = []
    line: Any = SimpleNamespace(open=True, write=notes.append)
    generation: Any = SimpleNamespace(note=lambda *counted: notes.append(counted[:2]))
    tap = EventTap(generation, line, lambda index, delta: b"%d:%b;" % (index, delta.text.encode()))
    for index, text in enumerate("ab"):
        assert tap.take(TextDelta(index=index, text=text, token_ids=[1]))
    tap.flush()
    line.open = False
    assert not tap.take(TextDelta(index=0, text="c", token_ids=[1]))
    assert notes == [(0, 0), (0, 1), b"0:a;1:b;"]


def test_a_step_without_text_writes_nothing() -> None:
    notes: list[bytes] = []
    tap = EventTap(
        SimpleNamespace(note=lambda *counted: None),  # type: ignore[arg-type]
        SimpleNamespace(open=True, write=notes.append),  # type: ignore[arg-type]
        lambda index, delta: b"",
    )
    assert tap.take(TextDelta(index=0, text="", token_ids=[1]))
    tap.flush()
    assert notes == []


def test_a_delta_whose_frames_wait_to_be_read_keeps_no_logprobs() -> None:
    logprobs = [TokenLogprobs(7, -1.0, 1, [])]
    passed = [TextDelta(index=0, text=text, token_ids=[7], logprobs=logprobs) for text in ("", "a")]
    seen: list[Any] = []

    async def deltas(tap: Any) -> AsyncGenerator[tuple[int, TextDelta], None]:
        for delta in passed:
            yield 0, delta

    def frames_of(choice: int, delta: TextDelta) -> bytes:
        seen.append(delta.logprobs)
        return delta.text.encode()

    async def body() -> None:
        generation: Any = SimpleNamespace(stream_interval=1, deltas=deltas)
        async for frames in event_frames(generation, None, frames_of):
            assert frames == b"a" and passed[1].logprobs is None
        assert seen == [logprobs, logprobs]
        assert passed[0].logprobs == logprobs, "nothing was written: it may be part of what comes next"

    asyncio.run(body())
