"""One tenant's requests are counted, and known to whatever they start."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from octavo.server.key_file import Caller
from octavo.server.openai.errors import HTTPProblem
from octavo.server.tenants import Traffic, current_tenant

ALICE, BOB = Caller("alice"), Caller("bob", 1)


def test_a_tenant_may_have_so_many() -> None:
    traffic = Traffic(2)
    with contextlib.ExitStack() as running:
        for caller in (ALICE, ALICE, BOB):
            running.enter_context(traffic.request(caller, counts=True))
        for caller, limit in ((ALICE, "--max-tenant-requests"), (BOB, "max_requests in the key file")):
            with (
                pytest.raises(HTTPProblem, match=limit) as caught,
                traffic.request(caller, counts=True),
            ):
                pass
            assert caught.value.reply.status == 429
            assert dict(caught.value.reply.headers)["retry-after"] == "1"
            with traffic.request(caller, counts=False):
                pass
    with traffic.request(BOB, counts=True):
        pass
    assert traffic._counts == {}


def test_without_a_limit_there_is_none() -> None:
    traffic = Traffic(None)
    with contextlib.ExitStack() as running:
        for _ in range(50):
            running.enter_context(traffic.request(ALICE, counts=True))


def test_the_tenant_is_known_in_tasks_and_threads() -> None:
    async def handle(caller: Caller) -> list[str]:
        with Traffic(None).request(caller, counts=True):
            await asyncio.sleep(0)
            return [current_tenant(), await asyncio.to_thread(current_tenant), await asyncio.ensure_future(inner())]

    async def inner() -> str:
        return current_tenant()

    async def main() -> list[list[str]]:
        return await asyncio.gather(*(asyncio.ensure_future(handle(caller)) for caller in (ALICE, BOB, Caller())))

    assert asyncio.run(main()) == [["alice"] * 3, ["bob"] * 3, ["default"] * 3]
