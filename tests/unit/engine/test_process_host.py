"""What only a process can do: die, and go on as if nothing had been."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from octavo.engine import wire
from octavo.engine.host import Host
from octavo.engine.host_process import _Server
from octavo.engine.process_host import MAX_RESTARTS, SUSPECT_DEATHS, ProcessHost
from octavo.engine.questions import Audit, GetKVBlocks, GetKVStats, GetPublished, Withdraw
from octavo.errors import EngineDeadError, OctavoError
from octavo.messages import PUBLIC_TENANT
from support.hosts import collect, first_tokens, request, tokens, wait_idle
from support.paths import TESTS
from support.processes import is_running, wait_gone
from support.scripted import POISON, answer

Start = Callable[..., Host]


def started(start: Start, executor: str = "ScriptedExecutor") -> ProcessHost:
    host = start("process", executor)
    assert isinstance(host, ProcessHost) and host.pid is not None
    return host


def kill(host: ProcessHost) -> None:
    assert host.pid is not None
    os.kill(host.pid, signal.SIGKILL)


def test_a_killed_engine_goes_on_with_every_answer(start: Start) -> None:
    """Twice, in the middle: the clients see a pause, and no token twice or never."""
    host = started(start, "SlowExecutor")
    prompts = {i: [1, 60 + i] for i in range(1, 5)}
    for i, prompt in prompts.items():
        host.submit(request(i, prompt, max_tokens=60, logprobs=1, n=1 + (i == 4)))
    wanted = {(i, 0) for i in prompts} | {(4, 1)}
    got: dict[tuple[int, int], list[int]] = {key: [] for key in wanted}
    pids: set[int | None] = set()
    while len(pids) < 2:
        for delta in first_tokens(host) + first_tokens(host):
            got[delta.request_id, delta.index] += delta.token_ids
        if host.pid not in pids:
            pids.add(host.pid)
            kill(host)
    for key, deltas in collect(host, wanted).items():
        got[key] += tokens(deltas)
    pids.add(host.pid)
    assert len(pids) == 3, "it did not die twice"
    for i, index in wanted:
        assert got[i, index] == answer(prompts[i], 100 + i, 60, index)
    wait_idle(host)
    assert host.ask(Audit()) == []


def test_a_crash_in_native_code_goes_on_too(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    host = started(start, "DyingExecutor")
    host.submit(request(1, [1, 9], max_tokens=40))
    assert tokens(collect(host, {(1, 0)})[1, 0]) == answer([1, 9], 101, 40)
    assert "starting a new one" in caplog.text


def test_aborts_and_submits_during_a_restart_are_kept(start: Start) -> None:
    host = started(start, "SlowExecutor")
    host.submit(request(1, [1, 2], max_tokens=200))
    host.submit(request(2, [1, 3], max_tokens=10))
    first = first_tokens(host)
    restarting = threading.Thread(target=kill, args=(host,))
    restarting.start()
    restarting.join()
    host.abort(1)
    host.submit(request(3, [1, 4], max_tokens=10))
    got = collect(host, {(2, 0), (3, 0)})
    assert tokens([d for d in first if d.request_id == 2] + got[2, 0]) == answer([1, 3], 102, 10)
    assert tokens(got[3, 0]) == answer([1, 4], 103, 10)
    assert (1, 0) not in got
    wait_idle(host)


def test_an_engine_that_dies_again_and_again_stays_dead(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    host = started(start)
    for _ in range(MAX_RESTARTS):
        old = host.pid
        kill(host)
        while host.pid in (old, None):
            host.next_batch(0.1)
        assert host.alive
    kill(host)
    host.submit(request(1, [1, 2]))
    with pytest.raises(EngineDeadError, match=rf"{MAX_RESTARTS + 1} times"):
        collect(host, {(1, 0)})
    assert not host.alive and host.pid is None
    (said,) = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert f"{MAX_RESTARTS + 1} times" in said and "must be restarted" in said


def test_a_request_that_kills_every_engine_is_given_up(start: Start) -> None:
    """It ends with an error after a few deaths; the engine lives on and answers the next."""
    host = started(start, "PoisonedExecutor")
    host.submit(request(1, [POISON, 2]))
    (last,) = collect(host, {(1, 0)})[1, 0]
    assert last.finish_reason == "error" and str(SUSPECT_DEATHS) in (last.error or "")
    host.submit(request(2, [1, 2], max_tokens=5))
    assert tokens(collect(host, {(2, 0)})[2, 0]) == answer([1, 2], 102, 5)


def test_closing_during_a_restart_does_not_wait(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine that was being started is ended with the rest."""
    host = started(start)
    spawn, spawned = host._spawn, threading.Event()

    def spawn_slowly(what: wire.Start) -> object:
        child = spawn(what)
        spawned.set()
        time.sleep(0.3)  # close() comes now
        return child

    monkeypatch.setattr(host, "_spawn", spawn_slowly)

    def read() -> None:
        while host.alive:
            host.next_batch(0.5)

    reader = threading.Thread(target=read)
    kill(host)
    reader.start()
    assert spawned.wait(10)
    before_s = time.monotonic()
    host.close()
    reader.join(10)
    assert time.monotonic() - before_s < 4.0, "closing waited for a process that nobody told to stop"


def test_questions_are_asked_again_of_the_next_engine(start: Start) -> None:
    host = started(start)
    pid = host.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # so that it does not answer before it dies
    answers: list[int] = []
    threads = [threading.Thread(target=lambda: answers.append(host.ask(GetKVStats()).num_blocks)) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    assert not answers
    kill(host)
    for thread in threads:
        thread.join(20)
    assert answers == [255] * 3 and host.pid not in (pid, None)
    assert host._answers == {}


def test_a_question_that_fails_leaves_the_engine_alone() -> None:
    def fails(why: Exception) -> wire.Answered | wire.Unanswered:
        class Loop:
            def ask(self, question: object) -> object:
                raise why

        return _Server(Loop(), None)._answer(7, GetKVStats())  # type: ignore[arg-type]

    assert fails(OctavoError("no such thing")) == wire.Unanswered(7, "no such thing")
    assert fails(KeyError("secret")) == wire.Unanswered(7, "KeyError"), "the words of an unexpected error stay inside"
    with pytest.raises(OctavoError, match="KeyError"):
        wire.answer_to(GetKVStats(), wire.Unanswered(7, "KeyError"))


def names(host: ProcessHost) -> list[tuple[str, int]]:
    return [(prefix.name, prefix.num_tokens) for prefix in host.ask(GetPublished())]


def publish(host: ProcessHost, request_id: int, name: str, prompt: list[int]) -> None:
    asked = msgspec.structs.replace(request(request_id, prompt, max_tokens=0), publish=name, tenant=PUBLIC_TENANT)
    host.submit(asked)
    assert collect(host, {(request_id, 0)})[request_id, 0][-1].finish_reason == "length"


def wait_for_names(host: ProcessHost, wanted: list[tuple[str, int]]) -> None:
    until_s = time.monotonic() + 10
    while (found := names(host)) != wanted:
        assert time.monotonic() < until_s, found
        host.next_batch(0.02)


def test_what_was_published_is_published_again(start: Start) -> None:
    host = started(start)
    publish(host, 1, "one", list(range(3, 23)))
    publish(host, 2, "two", list(range(3, 30)))
    publish(host, 3, "gone", list(range(3, 40)))
    assert host.ask(Withdraw("gone")) and not host.ask(Withdraw("gone"))
    for _ in range(2):
        kill(host)
        wait_for_names(host, [("one", 16), ("two", 24)])
    host.submit(request(4, [*range(3, 23), 50], max_tokens=4))
    assert tokens(collect(host, {(4, 0)})[4, 0]) == answer([*range(3, 23), 50], 104, 4)
    assert host.ask(Withdraw("one"))
    kill(host)
    wait_for_names(host, [("two", 24)])
    assert host.ask(Audit()) == []


def test_what_is_withdrawn_during_a_restart_stays_away(start: Start) -> None:
    host = started(start)
    publish(host, 1, "one", list(range(3, 23)))
    kill(host)
    assert host.ask(Withdraw("one")), "known, whether or not the new engine has it yet"
    wait_idle(host, 0)
    assert names(host) == []
    kill(host)
    assert names(host) == []


def test_what_an_engine_withdrew_just_before_it_died_stays_away(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    host = started(start)
    publish(host, 1, "one", list(range(3, 23)))
    receive, first_pid = host._receive, host.pid

    def die_after_the_answer(timeout_s: float) -> None:
        receive(timeout_s)
        if host._answers and host.pid == first_pid:
            kill(host)
            while host.pid in (first_pid, None) or host._publications.being_repeated("one"):
                receive(0.1)

    monkeypatch.setattr(host, "_receive", die_after_the_answer)
    assert host.ask(Withdraw("one"))
    assert host.pid != first_pid and names(host) == [] and not host.ask(Withdraw("one"))


def test_an_unexpected_load_error_is_told(start: Start) -> None:
    with pytest.raises(EngineDeadError, match="ZeroDivisionError"):
        start("process", "BrokenExecutor")


def test_nobody_else_can_reach_the_socket_and_nothing_is_left(start: Start, tmp_path: Path) -> None:
    """It has no name that could be opened, and no descriptor outlives the host."""
    before = set(Path("/proc/self/fd").iterdir())
    host = started(start)
    pid = host.pid
    assert pid is not None
    opened = " ".join(str(fd.readlink()) for fd in Path(f"/proc/{pid}/fd").iterdir())
    (inode,) = re.findall(r"socket:\[(\d+)\]", opened)
    (found,) = [row for row in Path("/proc/net/unix").read_text().splitlines() if row.split()[6] == inode]
    assert len(found.split()) == 7  # an eighth column would be its path
    host.close()
    assert set(Path("/proc/self/fd").iterdir()) <= before
    assert not is_running(pid)


def test_signals_to_the_group_do_not_stop_the_engine(start: Start) -> None:
    """The parent drains first; Ctrl-C in a terminal reaches the engine too."""
    host = started(start, "SlowExecutor")
    host.submit(request(1, [1, 2], max_tokens=20))
    first = first_tokens(host)
    for number in (signal.SIGINT, signal.SIGTERM):
        assert host.pid is not None
        os.kill(host.pid, number)
    pid = host.pid
    assert tokens(first + collect(host, {(1, 0)})[1, 0]) == answer([1, 2], 101, 20)
    assert host.pid == pid


@pytest.mark.parametrize(
    "junk", [b"", b"\x00", b"\x80\x04c__builtin__\nprint\n.", msgspec.msgpack.encode(["start", b"x"])]
)
def test_junk_is_dropped(start: Start, junk: bytes) -> None:
    host = started(start)
    child = host._child
    assert child is not None
    child._pipe.send(junk)
    host.submit(request(1, [1, 2], max_tokens=3))
    assert tokens(collect(host, {(1, 0)})[1, 0]) == answer([1, 2], 101, 3)


def test_the_engine_dies_with_its_parent(tmp_path: Path) -> None:
    """Even when the parent is killed and the engine is in the middle of a step."""
    script = """
import sys
from support.hosts import FILES, first_tokens, request, scripted_config
from octavo.engine.host import make_host
host = make_host("process")
host.start(scripted_config("SlowExecutor"), FILES)
host.submit(request(1, [1, 2], max_tokens=200))
first_tokens(host)
print(host.pid, flush=True)
sys.stdin.read()
"""
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TESTS), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert parent.stdout is not None and parent.stdin is not None
    pid = int(parent.stdout.readline())
    assert is_running(pid)
    parent.kill()
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert wait_gone(pid)


def test_messages_survive_the_wire() -> None:
    sent = request(7, [1, 2], n=2, logit_bias={5: -1.5}, stop=["a"], stop_token_ids=[9], logprobs=3, seed=-4)
    for command in (
        wire.Add(sent),
        wire.Abort(7, None),
        wire.Abort(7, 1),
        wire.Ask(3, Audit()),
        wire.Ask(4, GetKVBlocks(1, 9)),
        wire.Ask(5, Withdraw("x")),
        wire.Stop(),
    ):
        assert wire.decode_command(wire.encode(command)) == command


def test_a_paused_step_does_not_block_the_front_end(start: Start) -> None:
    """A stopped process takes requests into its socket; nobody waits but for tokens."""
    host = started(start)
    assert host.pid is not None
    os.kill(host.pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        for i in range(1, 200):
            host.submit(request(i, [1, i], max_tokens=1))
        assert time.monotonic() - began_s < 2
    finally:
        os.kill(host.pid, signal.SIGCONT)
    collect(host, {(i, 0) for i in range(1, 200)})
