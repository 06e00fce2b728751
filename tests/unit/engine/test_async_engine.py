"""AsyncEngine: streams, disconnects, failures, draining."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import pytest

from octavo.engine.async_engine import MOST_UNDELIVERED, AsyncEngine
from octavo.engine.outputs import TextDelta
from octavo.engine.process_host import ProcessHost
from octavo.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    ModelError,
    ModelFileError,
    OctavoError,
    OverloadedError,
    RequestError,
    ShuttingDownError,
)
from octavo.messages import SamplingParams, TokenLogprobs
from support.hosts import scripted_config
from support.paths import TESTS, TINYSTORIES
from support.scripted import answer

Body = Callable[[AsyncEngine], Awaitable[None]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs a coroutine with an engine."""
    monkeypatch.setenv("PYTHONPATH", str(TESTS))

    def with_engine(body: Body, executor: str = "ScriptedExecutor", **settings: Any) -> None:
        async def main() -> None:
            config = scripted_config(executor, **{"model": str(TINYSTORIES), "host": "thread", **settings})
            engine = await AsyncEngine.start(config)
            try:
                await body(engine)
            finally:
                await engine.close()

        asyncio.run(main())

    return with_engine


def expected_text(engine: AsyncEngine, prompt: list[int], seed: int, count: int, index: int = 0) -> str:
    return engine.tokenizer.decode(answer(prompt, seed, count, index))


async def collect(stream: AsyncIterator[TextDelta]) -> list[TextDelta]:
    return [delta async for delta in stream]


async def until(condition: Callable[[], Coroutine[Any, Any, bool]], timeout_s: float = 10) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("host", ["inline", "thread", "process"])
def test_streams_give_the_whole_text(run: Callable[..., None], host: str) -> None:
    async def body(engine: AsyncEngine) -> None:
        prompts = [[1, 70 + i] for i in range(20)]
        prepared = [engine.prepare(p, SamplingParams(max_tokens=30, seed=5)) for p in prompts]
        for prompt, deltas in zip(
            prompts, await asyncio.gather(*(collect(engine.stream(p)) for p in prepared)), strict=True
        ):
            assert "".join(delta.text for delta in deltas) == expected_text(engine, prompt, 5, 30)
            assert [i for delta in deltas for i in delta.token_ids] == answer(prompt, 5, 30)
            assert [delta.finish_reason for delta in deltas][-1] == "length"
            assert all(delta.finish_reason is None for delta in deltas[:-1])
        assert await engine.audit() == []

    run(body, host=host)


def test_generate_yields_what_grows(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        seen = []
        async for output in engine.generate([1, 9], SamplingParams(max_tokens=9, n=2, seed=3, logprobs=1), "mine"):
            seen.append((output.request_id, *(len(o.token_ids) for o in output.outputs), output.finished))
            last = output
        assert seen == sorted(seen) and seen[-1] == ("mine", 9, 9, True)
        for i, one in enumerate(last.outputs):
            assert one.text == expected_text(engine, [1, 9], 3, 9, i)
            assert one.cumulative_logprob == -9.0 and one.logprobs is not None and len(one.logprobs) == 9
        assert last.prompt_token_ids == [1, 9] and last.prompt is None

    run(body)


def test_a_stop_string_ends_one_answer_and_frees_it(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        texts = [expected_text(engine, [1, 9], 3, 200, i) for i in range(2)]
        stop = texts[0][5:8]
        assert stop not in texts[1], "another seed is needed"
        params = SamplingParams(max_tokens=200, n=2, seed=3, stop=stop)
        deltas = await collect(engine.stream(engine.prepare([1, 9], params)))
        first, second = ([delta for delta in deltas if delta.index == i] for i in range(2))
        assert "".join(delta.text for delta in first) == texts[0][: texts[0].find(stop)]
        assert (first[-1].finish_reason, first[-1].stop_reason) == ("stop", stop)
        assert "".join(delta.text for delta in second) == texts[1]

        async def idle() -> bool:
            stats = await engine.stats()
            return not stats.num_running and stats.num_held_blocks == 0

        await until(idle)

    run(body, "SlowExecutor")


@pytest.mark.parametrize("host", ["thread", "process"])
@pytest.mark.parametrize("how", ["close", "cancel", "break"])
def test_leaving_a_stream_frees_its_blocks(run: Callable[..., None], how: str, host: str) -> None:
    async def body(engine: AsyncEngine) -> None:
        async def read() -> None:
            stream = engine.stream(engine.prepare([1, 9], SamplingParams(max_tokens=250)))
            async for _ in stream:
                if how == "close":
                    await stream.aclose()
                elif how == "break":
                    break

        task = asyncio.create_task(read())
        if how == "cancel":

            async def running() -> bool:
                return (await engine.stats()).num_running == 1

            await until(running)
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)

        async def idle() -> bool:
            stats = await engine.stats()
            return stats.num_generated_tokens > 0 and not stats.num_running and not stats.num_held_blocks

        await until(idle)
        assert (await engine.stats()).num_generated_tokens < 200, "it ran to its end instead"

    run(body, "SlowExecutor", host=host)


def test_a_slow_reader_gets_one_joined_delta(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        stream = engine.stream(engine.prepare([1, 9], SamplingParams(max_tokens=100, seed=3, logprobs=0)))
        first = await anext(stream)

        async def idle() -> bool:
            return not (await engine.stats()).num_running

        await until(idle)
        await asyncio.sleep(0.1)
        rest = await collect(stream)
        assert len(rest) == 1
        assert first.text + rest[0].text == expected_text(engine, [1, 9], 3, 100)
        assert len(rest[0].logprobs or []) == len(rest[0].token_ids) and rest[0].finish_reason == "length"

    run(body)


def test_what_the_event_loop_has_no_time_for_waits_with_the_engine(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = most = 0
    post, deliver = AsyncEngine._post, AsyncEngine._deliver

    def counted_post(engine: AsyncEngine, function: Any, argument: Any) -> None:
        nonlocal waiting, most
        waiting += function == engine._deliver
        most = max(most, waiting)
        post(engine, function, argument)

    def counted_deliver(engine: AsyncEngine, batch: Any) -> None:
        nonlocal waiting
        waiting -= 1
        deliver(engine, batch)

    monkeypatch.setattr(AsyncEngine, "_post", counted_post)
    monkeypatch.setattr(AsyncEngine, "_deliver", counted_deliver)

    async def body(engine: AsyncEngine) -> None:
        stream = engine.stream(engine.prepare([1, 9], SamplingParams(max_tokens=100, seed=3)))
        first = await anext(stream)
        time.sleep(0.5)  # as a front end that is too slow
        assert most <= MOST_UNDELIVERED + 1
        rest = "".join([delta.text async for delta in stream])
        assert first.text + rest == expected_text(engine, [1, 9], 3, 100)

    run(body)
    assert most >= MOST_UNDELIVERED, "nothing ever waited"


def test_of_answers_that_wait_one_is_unpacked_at_a_time(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=100, seed=3, logprobs=0, n=3)
        stream = engine.stream(engine.prepare([1, 9], params))
        seen = [await anext(stream)]

        async def idle() -> bool:
            return not (await engine.stats()).num_running

        await until(idle)
        await asyncio.sleep(0.1)
        gc.collect()
        before = sum(isinstance(thing, TokenLogprobs) for thing in gc.get_objects())
        async for delta in stream:
            unpacked = sum(isinstance(thing, TokenLogprobs) for thing in gc.get_objects()) - before
            assert unpacked <= len(delta.logprobs or [])
            seen.append(delta)
            delta.logprobs = None
        assert sorted(delta.index for delta in seen if delta.finish_reason) == [0, 1, 2]
        for index in range(3):
            text = "".join(delta.text for delta in seen if delta.index == index)
            assert text == expected_text(engine, [1, 9], 3, 100, index)

    run(body)


def test_the_engine_process_is_killed_in_the_middle_of_streams(run: Callable[..., None]) -> None:
    """Readers see a pause; text and tokens are those of an engine that lived."""

    async def body(engine: AsyncEngine) -> None:
        prompts = [[1, 80 + i] for i in range(6)]
        streams = [engine.stream(engine.prepare(p, SamplingParams(max_tokens=80, seed=2, n=2))) for p in prompts]
        firsts = [await anext(stream) for stream in streams]
        host = engine._host
        assert isinstance(host, ProcessHost) and host.pid is not None
        os.kill(host.pid, signal.SIGKILL)
        rests = await asyncio.gather(*map(collect, streams))
        for prompt, first, rest in zip(prompts, firsts, rests, strict=True):
            for index in range(2):
                deltas = [delta for delta in [first, *rest] if delta.index == index]
                assert [i for delta in deltas for i in delta.token_ids] == answer(prompt, 2, 80, index)
                assert "".join(delta.text for delta in deltas) == expected_text(engine, prompt, 2, 80, index)
        engine.check_health()
        assert await engine.audit() == []

    run(body, "SlowExecutor", host="process")


def test_an_engine_that_fails_for_good_tells_everybody(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        streams = [collect(engine.stream(engine.prepare([1, i], SamplingParams()))) for i in range(3, 6)]
        results = await asyncio.gather(*streams, return_exceptions=True)
        assert all(isinstance(result, EngineDeadError) for result in results)
        with pytest.raises(EngineDeadError):
            engine.check_health()
        with pytest.raises(EngineDeadError):
            await collect(engine.stream(engine.prepare([1], SamplingParams())))

    run(body, "RaisingExecutor")


def test_a_bad_request_fails_alone(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        good = asyncio.create_task(collect(engine.stream(engine.prepare([1, 5], SamplingParams(max_tokens=40)))))
        for prompt, params, error in [
            ("", SamplingParams(), RequestError),
            ([512], SamplingParams(), RequestError),
            ([1] * 300, SamplingParams(), ContextLengthError),
            ([1], SamplingParams(logprobs=21), RequestError),
        ]:
            with pytest.raises(error):
                engine.prepare(prompt, params)
        assert (await good)[-1].finish_reason == "length"
        with pytest.raises(RequestError, match="no chat template"):
            engine.render_chat([{"role": "user", "content": "hi"}])

    run(body)


def test_a_full_queue_refuses_and_then_recovers(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        params = SamplingParams(max_tokens=20)
        tasks = [asyncio.create_task(collect(engine.stream(engine.prepare([1, i], params)))) for i in range(4)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError):
            engine.prepare([1], params)
        await asyncio.gather(*tasks)
        assert len(await collect(engine.stream(engine.prepare([1], params)))) >= 1

    run(body, "SlowExecutor", max_num_seqs=2, max_waiting=2)


def test_draining_lets_streams_end_and_takes_no_more(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine.stream(engine.prepare([1], SamplingParams(max_tokens=20)))))
        await asyncio.sleep(0.02)
        await engine.drain(10)
        assert task.done() or (await asyncio.wait_for(task, 1))
        assert task.result()[-1].finish_reason == "length"
        with pytest.raises(ShuttingDownError):
            engine.prepare([1], SamplingParams())

    run(body, "SlowExecutor")


def test_draining_gives_up_after_its_time_and_close_ends_the_rest(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        task = asyncio.create_task(collect(engine.stream(engine.prepare([1], SamplingParams(max_tokens=250)))))
        await asyncio.sleep(0.05)
        await engine.drain(0.05)
        assert not task.done()
        await engine.close()
        with pytest.raises(EngineDeadError):
            await asyncio.wait_for(task, 2)

    run(body, "SlowExecutor")


@pytest.mark.parametrize(
    ("executor", "settings", "error"),
    [
        ("BadConfigExecutor", {}, ConfigError),
        ("BadFileExecutor", {"host": "process"}, ModelFileError),
        ("BrokenExecutor", {"host": "process"}, EngineDeadError),
        ("ScriptedExecutor", {"model": "./no-such-model"}, ModelError),
        ("ScriptedExecutor", {"tokenizer": "/nowhere/tokenizer.json"}, ModelFileError),
        ("ScriptedExecutor", {"chat_template": "/nowhere/template.jinja", "host": "process"}, ModelFileError),
    ],
)
def test_start_fails_with_the_reason(
    run: Callable[..., None], executor: str, settings: dict[str, Any], error: type[OctavoError]
) -> None:
    async def body(engine: AsyncEngine) -> None:
        raise AssertionError("it started")

    with pytest.raises(error):
        run(body, executor, **settings)


def test_memory_can_be_asked_for_and_changed(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        prompt = list(range(3, 40))
        async for output in engine.generate(prompt, SamplingParams(max_tokens=3, seed=1), cache_salt="mine"):
            assert output.num_cached_tokens == 0
        stats = await engine.kv_stats()
        assert stats.num_blocks == 255 and stats.num_cached_blocks > 0
        assert [block.block_id for block in await engine.kv_blocks(250)] == list(range(250, 256))
        assert await engine.reset_prefix_cache("nobody") == 0
        assert await engine.reset_prefix_cache() == stats.num_cached_blocks
        prefix = await engine.publish("one", prompt)
        assert await engine.published() == [prefix]
        with pytest.raises(RequestError):
            await engine.publish("one", prompt)
        assert await engine.withdraw("one") and not await engine.withdraw("one")
        assert await engine.audit(repair=True) == []

    run(body)


@pytest.mark.timeout(20)
def test_any_number_of_prefixes_may_be_published(run: Callable[..., None]) -> None:
    async def body(engine: AsyncEngine) -> None:
        for number in range(MOST_UNDELIVERED + 2):
            await engine.publish("one", [3 + number] * 40)
            assert await engine.withdraw("one")

    run(body)


def test_an_engine_that_does_not_answer_costs_one_thread(
    run: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.engine.async_engine.ANSWER_LIMIT_S", 0.2)

    async def body(engine: AsyncEngine) -> None:
        host = engine._host
        assert isinstance(host, ProcessHost) and host.pid is not None
        os.kill(host.pid, signal.SIGSTOP)
        before = threading.active_count()
        asked = await asyncio.gather(*(engine.kv_stats() for _ in range(20)), return_exceptions=True)
        assert all(isinstance(answer, OverloadedError) for answer in asked)
        assert threading.active_count() <= before + 1
        os.kill(host.pid, signal.SIGCONT)
        monkeypatch.setattr("octavo.engine.async_engine.ANSWER_LIMIT_S", 10.0)
        assert (await engine.kv_stats()).num_blocks == 255

    run(body, host="process")
