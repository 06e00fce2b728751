"""A real `octavo serve` process for tests, and plain HTTP without a client library's help."""

from __future__ import annotations

import http.client
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.paths import TESTS, TINYSTORIES
from support.processes import cpu_seconds

TINY_MODEL = TINYSTORIES
TINY_TEMPLATE = TESTS / "support" / "plain_chat.jinja"
START_LIMIT_S = 60.0


@dataclass
class Reply:
    """A whole HTTP reply."""

    status: int
    headers: Mapping[str, str]
    raw: bytes
    took_s: float

    @property
    def body(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        """The envelope's content; fails unless it has exactly the agreed shape."""
        body = self.body
        assert list(body) == ["error"], body
        assert sorted(body["error"]) == ["code", "message", "param", "type"], body
        assert isinstance(body["error"]["message"], str) and body["error"]["message"]
        error: dict[str, Any] = body["error"]
        return error


@dataclass
class Events:
    """A server-sent event stream, split into its frames."""

    status: int
    headers: Mapping[str, str]
    frames: list[str] = field(default_factory=list)
    raw: bytes = b""

    @property
    def chunks(self) -> list[dict[str, Any]]:
        """The frames before `[DONE]`, parsed."""
        assert self.frames and self.frames[-1] == "[DONE]", self.frames[-3:]
        return [json.loads(frame) for frame in self.frames[:-1]]


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """`octavo serve` on a port of its own. Flags and environment as on a command line; `under` is a command that ends
    by running the one that is behind it."""

    def __init__(
        self,
        model: Path | str = TINY_MODEL,
        *flags: str,
        env: Mapping[str, str] | None = None,
        under: Sequence[str] = (),
        log: Path,
    ) -> None:
        self.port = free_port()
        self.log = log
        command = [*under, sys.executable, "-m", "octavo.cli.main", "serve", str(model)]
        command += ["--host", "127.0.0.1", "--port", str(self.port), *flags]
        path = os.pathsep.join(filter(None, [str(TESTS), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "default", **(env or {})}
        self.started_s = time.monotonic()
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self) -> ServerProcess:
        while time.monotonic() - self.started_s < START_LIMIT_S:
            if self.process.poll() is not None:
                break
            try:
                if self.get("/health").status == 200:
                    return self
            except OSError:
                time.sleep(0.02)
        raise AssertionError(f"the server did not start:\n{self.log.read_text()}")

    @property
    def engine_pids(self) -> list[int]:
        """Processes that the server has started."""
        return children(self.process.pid)

    @property
    def cpu_s(self) -> float:
        """Processor time that the server and its engine have used."""
        return sum(map(cpu_seconds, [self.process.pid, *self.engine_pids]))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait_exit(self, timeout_s: float = 20.0) -> int:
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """End the process, politely first."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(10)

    # --- requests ---

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        """Send JSON; `bytes` go out as they are."""
        return self.request("POST", path, body, headers)

    def request(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, timeout_s: float = 60
    ) -> Reply:
        begin = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request(method, path, *_encoded(body, headers))
            reply = connection.getresponse()
            raw = reply.read()
            return Reply(reply.status, dict(reply.headers.items()), raw, time.monotonic() - begin)
        finally:
            connection.close()

    def stream(
        self,
        path: str,
        body: dict[str, Any],
        headers: Mapping[str, str] | None = None,
        on_begin: Callable[[], object] = lambda: None,
    ) -> Events:
        """Send with `stream` set and read to the end. `on_begin` is called once the status line is here."""
        with self.open_stream(path, body, headers) as reply:
            on_begin()
            raw = reply.read()
            events = Events(reply.status, dict(reply.headers.items()), raw=raw)
        if events.status == 200:
            assert raw.endswith(b"\n\n"), raw[-200:]
            for block in raw.decode().removesuffix("\n\n").split("\n\n"):
                assert block.startswith("data: ") and "\n" not in block, block
                events.frames.append(block.removeprefix("data: "))
        return events

    @contextmanager
    def open_stream(
        self, path: str, body: dict[str, Any], headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """A reply to read piece by piece; leaving the block drops the connection."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", path, *_encoded({**body, "stream": True}, headers))
            with connection.getresponse() as reply:
                yield reply
        finally:
            connection.close()

    def raw(self, data: bytes, timeout_s: float = 10.0) -> bytes:
        """Send bytes on a socket and read what comes back until the server closes or falls silent."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as sock:
            received = b""
            try:
                sock.sendall(data)
                while piece := sock.recv(1 << 16):
                    received += piece
            except (TimeoutError, ConnectionError):
                pass
            return received

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples of a metric that carry these labels."""
        total, found = 0.0, False
        for line in self.get("/metrics").raw.decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(f'{k}="{v}"' in line for k, v in labels.items()):
                total += float(line.rpartition(" ")[2])
                found = True
        assert found, f"there is no metric {name} with {labels}"
        return total

    def wait_metric(self, name: str, value: float, timeout_s: float, **labels: str) -> float:
        """Wait until a metric has a value; the seconds that took."""
        begin = time.monotonic()
        while (now := self.metric(name, **labels)) != value:
            waited = time.monotonic() - begin
            assert waited < timeout_s, f"{name} is {now} after {waited:.2f} s, not {value}"
            time.sleep(0.01)
        return time.monotonic() - begin


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def answers_for(server: ServerProcess, body: dict[str, Any], seconds: float, share: int) -> int:
    """An `n` with which `share` such requests at once keep this machine busy for about so many seconds."""
    trial = server.post("/v1/completions", {**body, "n": 16})
    per_answer_s = trial.took_s / 16
    return max(1, min(100, math.ceil(seconds / per_answer_s / share)))


def _encoded(body: Any, headers: Mapping[str, str] | None) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, dict(headers or {})
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return data, {"Content-Type": "application/json", **(headers or {})}
