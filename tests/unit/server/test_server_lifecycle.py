"""Disconnects, drain and cut-off, without a socket."""

import asyncio
from typing import Any

import pytest

from octavo.errors import ShuttingDownError
from octavo.server.body import ClientDisconnectedError
from octavo.server.lifecycle import Lifecycle


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
