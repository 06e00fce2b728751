"""`octavo chat` against a server: turns through a pipe, commands, Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from octavo.cli.main import main
from unit.cli.sse_server import SSEServer


def echo(body: dict[str, Any]) -> list[str]:
    """Answers with the number of messages and the last one, word by word."""
    words = [str(len(body["messages"])), *(" " + word for word in body["messages"][-1]["content"].split())]
    return [json.dumps({"choices": [{"delta": {"content": word}}]}) for word in words] + ["[DONE]"]


@contextlib.contextmanager
def running(server: SSEServer) -> Iterator[str]:
    """The server in a thread of its own."""
    ready: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with server.listening() as url:
            ready.append(url)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    started.wait()
    try:
        yield ready[0]
    finally:
        stop.set()
        thread.join(20)


def chat(text: str, monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["chat", *words])


def test_a_pipe_gives_turns_with_history(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    server = SSEServer(echo)
    with running(server) as url:
        assert chat("hello you\n\nand again\n/reset\nnew\n/exit\nnever", monkeypatch, "--url", url) == 0
    assert capsys.readouterr().out == "1 hello you\n3 and again\n(forgotten)\n1 new\n"
    body = server.bodies[1]
    assert body["model"] == "tiny" and body["stream"] is True and body["max_tokens"] == 1024
    assert body["messages"][1] == {"role": "assistant", "content": "1 hello you"}


def test_sampling_and_system_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SSEServer(echo)
    with running(server) as url:
        words = ["--url", url, "--system", "Be brief.", "--temperature", "0", "--stop", "a", "--stop", "b", "name"]
        assert chat("hi\n", monkeypatch, *words) == 0
    body = server.bodies[0]
    assert body["model"] == "name" and body["temperature"] == 0 and body["stop"] == ["a", "b"]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert "GET" not in server.heads[0], "a name given is not looked up"


def test_a_refused_turn_is_left_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with running(SSEServer(echo, status=400)) as url:
        assert chat("hi\n", monkeypatch, "--url", url) == 1
    assert "temperature = 9" in capsys.readouterr().err


def test_no_server_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat("hi\n", monkeypatch, "--url", "http://127.0.0.1:9") == 1
    assert capsys.readouterr().err.startswith("octavo chat: error: ")


@pytest.fixture
def sigint_is_not_ignored() -> Iterator[None]:
    """A test run in the background of a shell inherits an ignored SIGINT, and hands it on to its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def chat_in_a_terminal(url: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and our end of its terminal."""
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "octavo.cli.main", "chat", "--url", url]
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end) as process:
        os.close(end)
        try:
            yield process, terminal
        finally:
            process.kill()
            os.close(terminal)


@pytest.mark.usefixtures("sigint_is_not_ignored")
def test_ctrl_c_stops_the_answer_and_not_the_program() -> None:
    """The first answer never ends by itself, Ctrl-C stops it, the next turn is answered."""

    def answer(body: dict[str, Any]) -> list[str]:
        if len(body["messages"]) == 1:
            return [json.dumps({"choices": [{"delta": {"content": "on and "}}]})] * 100_000
        return [json.dumps({"choices": [{"delta": {"content": "done"}}]}), "[DONE]"]

    server = SSEServer(answer, delay_s=0.005)
    with running(server) as url, chat_in_a_terminal(url) as (process, terminal):
        os.write(terminal, b"go\n")
        _read_until(terminal, "on and on and ")
        process.send_signal(signal.SIGINT)
        _read_until(terminal, "(stopped)")
        os.write(terminal, b"again\n")
        _read_until(terminal, "done")
        os.write(terminal, b"/exit\n")
        assert process.wait(20) == 0
    assert server.bodies[1]["messages"][1]["content"].startswith("on and "), "what was said stays in the history"


def _read_until(terminal: int, text: str, timeout_s: float = 20.0) -> None:
    seen, deadline = "", time.monotonic() + timeout_s
    while text not in seen:
        assert time.monotonic() < deadline, seen[-500:]
        seen += os.read(terminal, 4096).decode()
