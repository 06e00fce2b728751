"""Signals: drain, cut, and the ways a server can fail to start."""

from __future__ import annotations

import json
import signal
import socket
import threading
import time
from typing import Any

from support.server_process import Events, Reply, ServerProcess, answers_for

LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 240, "ignore_eos": True}


class Streams:
    """Streams of long answers, all begun, that are read to their end in threads of their own."""

    def __init__(self, server: ServerProcess, count: int, seconds: float) -> None:
        self.n = answers_for(server, LONG, seconds, count)
        self.results: list[Events] = []
        body = {**LONG, "n": self.n}
        begun = threading.Semaphore(0)
        self._threads = [
            threading.Thread(
                target=lambda: self.results.append(server.stream("/v1/completions", body, on_begin=begun.release))
            )
            for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()
        for _ in range(count):
            assert begun.acquire(timeout=20), "the streams never all began"

    def join(self) -> list[Events]:
        for thread in self._threads:
            thread.join()
        return self.results


def test_sigterm_drains(start_server: Any) -> None:
    """Five streams end as they would have; what comes later is told to go elsewhere; the exit code is 0."""
    server = start_server("--num-blocks", "400")
    streams = Streams(server, 5, seconds=1.5)
    server.signal(signal.SIGTERM)
    late: list[Reply] = []
    while not late or late[-1].status == 200:
        late.append(server.post("/v1/completions", {"prompt": "x", "max_tokens": 1}))
    health = server.get("/health")
    for events in streams.join():
        assert events.status == 200
        ends = [c["choices"][0]["finish_reason"] for c in events.chunks if c["choices"][0]["finish_reason"]]
        assert ends == ["length"] * streams.n
    assert late[-1].status == 503 and late[-1].error["code"] == "shutting_down"
    assert int(late[-1].headers["retry-after"]) >= 1
    assert health.status == 503
    assert server.wait_exit() == 0, server.log.read_text()


def assert_cut(streams: Streams) -> None:
    """Streams that had not ended by themselves say why they end early."""
    num_cut = 0
    for events in streams.join():
        assert events.frames[-1] == "[DONE]"
        last = json.loads(events.frames[-2])
        if "error" in last:
            assert last["error"]["code"] == "shutting_down"
            num_cut += 1
        else:
            assert last["choices"][0]["finish_reason"] == "length"
    assert num_cut > 0


def test_a_drain_that_takes_too_long_is_cut(start_server: Any) -> None:
    server = start_server("--num-blocks", "2000", "--shutdown-timeout", "0.1")
    streams = Streams(server, 3, seconds=3)
    server.signal(signal.SIGTERM)
    assert_cut(streams)
    assert server.wait_exit() == 0


def test_a_second_sigterm_forces(start_server: Any) -> None:
    server = start_server("--num-blocks", "2000", "--shutdown-timeout", "600")
    streams = Streams(server, 2, seconds=3)
    server.signal(signal.SIGTERM)
    time.sleep(0.1)
    assert server.process.poll() is None
    server.signal(signal.SIGTERM)
    assert_cut(streams)
    assert server.wait_exit(8) == 128 + signal.SIGTERM


def test_an_idle_server_stops_at_once(start_server: Any) -> None:
    server = start_server("--num-blocks", "40")
    begin = time.monotonic()
    server.signal(signal.SIGINT)
    assert server.wait_exit() == 0
    assert time.monotonic() - begin < 5


def test_a_taken_port_is_an_error(start_server: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = start_server("--port", str(port), ready=False)
        assert server.wait_exit() == 2
    log = server.log.read_text()
    assert f"port = {port}" in log and "Traceback" not in log


def test_a_missing_model_is_an_error(start_server: Any, tmp_path: Any) -> None:
    server = start_server(model=tmp_path / "nothing.gguf", ready=False)
    assert server.wait_exit() == 2
    log = server.log.read_text()
    assert "nothing.gguf" in log and "Traceback" not in log
