"""Disconnects, drain and cut-off, without a socket."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from octavo.errors import ShuttingDownError
from octavo.server.body import ClientDisconnectedError
from octavo.server.lifecycle import Lifecycle
from octavo.server.openai.errors import HTTPProblem
from octavo.server.sse import DONE, frame, send_events


class Client:
    """A `receive` that reports a disconnect once `leave` is called."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def forever(log: list[str]) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        log.append("stopped")


def test_the_result_comes_through() -> None:
    async def main() -> int:
        async def work() -> int:
            return 7

        lifecycle = Lifecycle()
        result = await lifecycle.run(work(), Client().receive)
        assert lifecycle.num_running == 0
        return result

    assert asyncio.run(main()) == 7


def test_an_error_comes_through() -> None:
    async def main() -> None:
        async def work() -> None:
            raise KeyError("boom")

        with pytest.raises(KeyError):
            await Lifecycle().run(work(), Client().receive)

    asyncio.run(main())


def test_work_stops_when_the_client_leaves() -> None:
    async def main() -> list[str]:
        lifecycle, client, log = Lifecycle(), Client(), []
        running = asyncio.ensure_future(lifecycle.run(forever(log), client.receive))
        await asyncio.sleep(0)
        assert lifecycle.num_running == 1
        client.gone.set()
        with pytest.raises(ClientDisconnectedError):
            await running
        assert await lifecycle.wait_idle(0)
        return log

    assert asyncio.run(main()) == ["stopped"]


def test_a_cut_ends_what_runs_and_closes_the_door() -> None:
    async def main() -> list[str]:
        lifecycle, log = Lifecycle(), []
        running = asyncio.ensure_future(lifecycle.run(forever(log), Client().receive))
        await asyncio.sleep(0)
        assert not await lifecycle.wait_idle(0.01)
        lifecycle.cut()
        with pytest.raises(ShuttingDownError):
            await running
        with pytest.raises(ShuttingDownError):
            lifecycle.check_open()
        return log

    assert asyncio.run(main()) == ["stopped"]


def test_work_that_takes_too_long_is_cut_off() -> None:
    async def main() -> list[str]:
        lifecycle, log = Lifecycle(0.01), []  # type: tuple[Lifecycle, list[str]]
        with pytest.raises(HTTPProblem, match=r"longer than 0.01 s \(--request-timeout\)") as caught:
            await lifecycle.run(forever(log), Client().receive)
        assert caught.value.reply.status == 504 and lifecycle.num_running == 0
        return log

    assert asyncio.run(main()) == ["stopped"]


def test_a_stream_that_takes_too_long_ends_with_an_error_frame() -> None:
    async def main() -> bytes:
        lifecycle, sent = Lifecycle(0.01), []  # type: tuple[Lifecycle, list[Any]]

        async def frames() -> AsyncGenerator[bytes, None]:
            yield frame({"a": 1})
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        await lifecycle.run(send_events(send, frames(), lifecycle), Client().receive)
        return b"".join(message.get("body", b"") for message in sent)

    body = asyncio.run(main())
    assert b'"code":"deadline_exceeded"' in body and body.endswith(DONE)
