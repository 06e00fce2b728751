"""One suite for every host."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from octavo.engine.host import Host
from octavo.engine.process_host import ProcessHost
from octavo.engine.questions import Audit, GetKVBlocks, GetKVStats, GetPublished, ResetPrefixCache, Withdraw
from octavo.errors import ConfigError, EngineDeadError, ModelFileError
from support.hosts import collect, first_tokens, request, tokens, wait_idle
from support.processes import cpu_seconds
from support.scripted import answer

Start = Callable[..., Host]

pytestmark = pytest.mark.parametrize("kind", ["inline", "thread", "process"])


@pytest.mark.parametrize("depth", [1, 2])
def test_answers_come_complete_and_in_order(start: Start, kind: str, depth: int) -> None:
    host = start(kind, depth=depth)
    prompts = {i: [1, 50 + i, *range(100, 100 + 3 * i)] for i in range(1, 13)}
    for i, prompt in prompts.items():
        host.submit(request(i, prompt, max_tokens=5 * i))
    got = collect(host, {(i, 0) for i in prompts})
    for i, prompt in prompts.items():
        assert tokens(got[i, 0]) == answer(prompt, 100 + i, 5 * i)
        assert got[i, 0][-1].finish_reason == "length"
    total = sum(5 * i for i in prompts)
    wait_idle(host, total)
    assert host.stats().num_generated_tokens == total
    assert host.stats().num_held_blocks == 0
    assert host.ask(Audit()) == []


def test_n_answers_differ_and_each_is_whole(start: Start, kind: str) -> None:
    host = start(kind)
    host.submit(request(1, [1, 9], n=3, max_tokens=8))
    got = collect(host, {(1, i) for i in range(3)})
    assert [tokens(got[1, i]) for i in range(3)] == [answer([1, 9], 101, 8, i) for i in range(3)]


def test_logprobs_and_stop_tokens_arrive(start: Start, kind: str) -> None:
    host = start(kind)
    expected = answer([1, 9], 101, 20)
    stop = expected[6]
    host.submit(request(1, [1, 9], max_tokens=20, logprobs=2, prompt_logprobs=1, stop_token_ids=[stop]))
    deltas = collect(host, {(1, 0)})[1, 0]
    cut = expected.index(stop) + 1
    assert tokens(deltas) == expected[:cut]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    logprobs = [entry for delta in deltas for entry in delta.logprobs or []]
    assert [entry.token_id for entry in logprobs] == expected[:cut] and len(logprobs[0].top) == 2
    of_prompt = [entry for delta in deltas for entry in delta.prompt_logprobs or []]
    assert of_prompt[0] is None and of_prompt[1] is not None and of_prompt[1].token_id == 9


def test_abort_frees_everything(start: Start, kind: str) -> None:
    host = start(kind, "SlowExecutor")
    host.submit(request(1, [1, 2], max_tokens=200))
    host.submit(request(2, [1, 3], max_tokens=20))
    first_tokens(host)
    host.abort(1)
    host.abort(1)
    host.abort(999)
    late = collect(host, {(2, 0)}).get((1, 0), [])
    assert len(late) <= 2, "what was under way at most"
    wait_idle(host)
    assert host.stats().num_held_blocks == 0
    assert host.ask(Audit()) == []


def test_abort_of_one_answer_leaves_the_others(start: Start, kind: str) -> None:
    host = start(kind, "SlowExecutor")
    host.submit(request(1, [1, 2], n=2, max_tokens=30))
    early = [delta for delta in first_tokens(host) if delta.index == 1]
    host.abort(1, 0)
    got = collect(host, {(1, 1)})
    assert tokens(early + got[1, 1]) == answer([1, 2], 101, 30, 1)
    assert len(tokens(got.get((1, 0), []))) <= 2
    wait_idle(host)


def test_an_idle_host_waits_without_work(start: Start, kind: str) -> None:
    host = start(kind)
    while host.next_batch(0.1) is not None:
        pass
    cpu_s, wall_s = time.process_time(), time.monotonic()
    assert host.next_batch(0.5) is None
    assert time.monotonic() - wall_s >= 0.45
    assert time.process_time() - cpu_s < 0.2
    if isinstance(host, ProcessHost):
        assert host.pid is not None
        before_s = cpu_seconds(host.pid)
        time.sleep(0.3)
        assert cpu_seconds(host.pid) - before_s <= 0.05


def test_questions_are_answered_idle_and_busy(start: Start, kind: str) -> None:
    host = start(kind, "SlowExecutor")
    assert host.ask(Audit()) == [] and host.ask(Audit(repair=True)) == []
    assert host.ask(GetKVStats()).num_free_blocks == 255
    host.submit(request(1, [1, *range(20)], max_tokens=100))
    first_tokens(host)
    held = 0
    for _ in range(10):
        stats = host.ask(GetKVStats())
        parts = (stats.num_held_blocks, stats.num_pinned_blocks, stats.num_cached_blocks, stats.num_free_blocks)
        assert sum(parts) == stats.num_blocks == 255
        held = max(held, stats.num_held_blocks)
        host.next_batch(0.0)
    assert held >= 3
    blocks = host.ask(GetKVBlocks(1, 255))
    assert [block.block_id for block in blocks] == list(range(1, 256))
    assert [block.block_id for block in host.ask(GetKVBlocks(250, 100))] == list(range(250, 256))
    assert host.ask(GetPublished()) == [] and not host.ask(Withdraw("nothing"))
    assert host.ask(ResetPrefixCache("nobody")) == 0
    host.abort(1)
    wait_idle(host)


def test_a_closed_host_answers_no_questions(start: Start, kind: str) -> None:
    host = start(kind)
    host.close()
    with pytest.raises(EngineDeadError):
        host.ask(GetKVStats())


def test_a_request_that_the_core_refuses_is_answered(start: Start, kind: str) -> None:
    host = start(kind, num_blocks=4)
    host.submit(request(1, [5] * 100, max_tokens=5))
    host.submit(request(2, [1, 2], max_tokens=3))
    got = collect(host, {(1, 0), (2, 0)})
    assert got[1, 0][-1].finish_reason == "error" and got[1, 0][-1].error
    assert got[1, 0][-1].refusal == "length", "so that the client is told that it is its own request"
    assert tokens(got[2, 0]) == answer([1, 2], 102, 3)


@pytest.mark.parametrize(
    ("executor", "error", "says"),
    [
        ("BadConfigExecutor", ConfigError, "max_model_len = 7: must be at least 8"),
        ("BadFileExecutor", ModelFileError, r"model\.gguf: header: is cut off"),
        ("NoSuchExecutor", ConfigError, "executor"),
    ],
)
def test_load_errors_keep_their_type(start: Start, kind: str, executor: str, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        start(kind, executor)


def test_a_step_that_always_fails_ends_the_engine(start: Start, kind: str) -> None:
    host = start(kind, "RaisingExecutor")
    host.submit(request(1, [1, 2]))
    if kind == "process":  # which first blames the request: it gives it up, and starts once more
        assert collect(host, {(1, 0)})[1, 0][-1].finish_reason == "error"
        host.submit(request(2, [1, 2]))
    with pytest.raises(EngineDeadError):
        collect(host, {(1, 0), (2, 0)})
    assert not host.alive
    with pytest.raises(EngineDeadError):
        host.submit(request(3, [1, 2]))
    with pytest.raises(EngineDeadError):
        host.next_batch(0.1)


def test_close_is_prompt_repeatable_and_final(start: Start, kind: str) -> None:
    host = start(kind, "SlowExecutor")
    host.submit(request(1, [1, 2], max_tokens=200))
    host.next_batch(1.0)
    started_s = time.monotonic()
    host.close()
    host.close()
    assert time.monotonic() - started_s < 3
    assert not host.alive
    with pytest.raises(EngineDeadError):
        host.submit(request(2, [1, 2]))


def test_close_wakes_a_waiting_reader(start: Start, kind: str) -> None:
    host = start(kind)
    while host.next_batch(0.1) is not None:
        pass
    got: list[Any] = ["nothing"]
    reader = threading.Thread(target=lambda: got.__setitem__(0, host.next_batch()))
    reader.start()
    time.sleep(0.1)
    host.close()
    reader.join(3)
    assert not reader.is_alive() and got == [None]


def test_requests_come_from_any_thread(start: Start, kind: str) -> None:
    host = start(kind)

    def submit(first: int) -> None:
        for i in range(first, first + 10):
            host.submit(request(i, [1, i], max_tokens=4))

    threads = [threading.Thread(target=submit, args=(100 * k,)) for k in range(1, 5)]
    for thread in threads:
        thread.start()
    got = collect(host, {(100 * k + i, 0) for k in range(1, 5) for i in range(10)})
    for thread in threads:
        thread.join()
    assert all(tokens(deltas) == answer([1, i], 100 + i, 4) for (i, _), deltas in got.items())
