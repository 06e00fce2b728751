"""Taps: what they take and what the reader gets add up to the answer, in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from octavo.engine.async_engine import AsyncEngine
from octavo.engine.outputs import TextDelta
from octavo.messages import SamplingParams
from support.hosts import scripted_config
from support.paths import TINYSTORIES
from support.scripted import answer


@asynccontextmanager
async def running(executor: str = "ScriptedExecutor") -> AsyncIterator[AsyncEngine]:
    engine = await AsyncEngine.start(scripted_config(executor, model=str(TINYSTORIES), host="thread"))
    try:
        yield engine
    finally:
        await engine.close()


class Recorder:
    """Takes some of what it is offered, and notes everything in order."""

    def __init__(self, share: float) -> None:
        self.seen: list[TextDelta] = []
        self.num_taken = 0
        self.unflushed = 0
        self._share = share
        self._random = random.Random(4)

    def take(self, delta: TextDelta) -> bool:
        assert delta.finish_reason is None, "an answer's last delta is the reader's"
        if self._random.random() >= self._share:
            return False
        self.seen.append(delta)
        self.num_taken += 1
        self.unflushed += 1
        return True

    def flush(self) -> None:
        assert self.unflushed, "nothing was taken"
        self.unflushed = 0


async def read(engine: AsyncEngine, params: SamplingParams, tap: Recorder) -> None:
    async for delta in engine.stream(engine.prepare([1, 9], params), tap):
        tap.seen.append(delta)
        await asyncio.sleep(0)  # what comes meanwhile must not overtake


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_reader_gets_what_is_not_taken_and_nothing_is_out_of_order(share: float) -> None:
    async def body() -> None:
        async with running() as engine:
            taps = [Recorder(share) for _ in range(5)]
            params = SamplingParams(max_tokens=60, n=3, seed=5)
            await asyncio.gather(*(read(engine, params, tap) for tap in taps))
            for tap in taps:
                assert not tap.unflushed
                for index in range(3):
                    mine = [delta for delta in tap.seen if delta.index == index]
                    assert [i for delta in mine for i in delta.token_ids] == answer([1, 9], 5, 60, index)
                    assert [delta.finish_reason for delta in mine][-1] == "length"
            num_taken = sum(tap.num_taken for tap in taps)
            assert (num_taken == 0) == (share == 0.0)

    asyncio.run(body())


def test_a_tap_that_fails_ends_its_own_request_only() -> None:
    class Failing(Recorder):
        def take(self, delta: TextDelta) -> bool:
            raise ZeroDivisionError

    async def body() -> None:
        async with running("SlowExecutor") as engine:
            good, bad = Recorder(1.0), Failing(1.0)
            params = SamplingParams(max_tokens=20, seed=5)
            results = await asyncio.gather(
                read(engine, params, good), read(engine, params, bad), return_exceptions=True
            )
            assert results[0] is None and isinstance(results[1], ZeroDivisionError)
            assert [i for delta in good.seen for i in delta.token_ids] == answer([1, 9], 5, 20)

    asyncio.run(body())
