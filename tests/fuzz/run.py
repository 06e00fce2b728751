"""A fuzz run: requests to a real server, and whether it bore them.

    python -m fuzz.run --requests 20000 --seed N [--optimise]

For each reply: no unplanned 5xx, the error envelope and nothing of the server in it, 4xx in time. After all: the same
process, blocks back where they were, a sound audit, and a canary that answers as before.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import http.client
import json
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fuzz.request import Request
from fuzz.schema import drawn
from fuzz.sockets import raw_requests
from fuzz.values import matrix, mutated
from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess

KEY = "sk-fuzz"
ADMIN = "sk-admin"
LIMIT_S = 0.25
CANARY = {"prompt": "Once upon a time", "max_tokens": 24, "temperature": 0}
CANARY_EVERY = 100
PLANNED = {"overloaded", "too_many_connections", "deadline_exceeded", "unsupported_transfer_encoding"}
"""Codes of a 5xx: of a server under load, and of the 501 for a Transfer-Encoding that it does not know."""
LEAK = re.compile(rb"Traceback|site-packages|0x[0-9a-f]{8,}|/octavo/|object at |File \"")
FLAGS = ("--num-blocks", "600", "--api-key", KEY, "--admin-api-key", ADMIN, "--max-n", "16", "--max-prompts", "32")
FLAGS += ("--read-timeout", "2", "--chat-template", str(TINY_TEMPLATE), "--served-model-name", "tiny")


@dataclass
class Findings:
    """What a run saw."""

    statuses: collections.Counter[int] = field(default_factory=collections.Counter)
    refusals_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def blame(self, why: str, request: Request, reply: bytes = b"") -> None:
        self.problems.append(f"{why}\n    {request}\n    {reply[:300]!r}")

    @property
    def p99_s(self) -> float:
        times = sorted(self.refusals_s)
        return times[int(len(times) * 0.99)] if times else 0.0

    def __str__(self) -> str:
        counts = ", ".join(f"{status}: {count}" for status, count in sorted(self.statuses.items()))
        return f"{sum(self.statuses.values())} requests ({counts}); p99 of a 4xx {self.p99_s * 1000:.0f} ms"


def requests_of(document: dict[str, Any], rng: random.Random, count: int) -> Iterator[Request]:
    """A mix of all kinds, in random order."""
    made = raw_requests(rng, count * 15 // 100, KEY)
    made += drawn(document, rng, count * 25 // 100)
    made += mutated(document, rng, count * 20 // 100)
    made += matrix(document, rng, count - len(made))
    made += mutated(document, rng, count - len(made))
    rng.shuffle(made)
    return iter(made)


def run(server: ServerProcess, rng: random.Random, count: int, num_threads: int = 2) -> Findings:
    """Send `count` requests and look at what comes back."""
    found = Findings()
    document = server.get("/openapi.json", {"Authorization": f"Bearer {KEY}"}).body
    document["paths"].pop("/openapi.json", None)
    source, lock = requests_of(document, rng, count), threading.Lock()
    expected, pid = canary(server), server.engine_pids
    number = iter(range(1, count * 2))

    def work() -> None:
        with contextlib.closing(Client(server.port)) as client:
            drive(client)

    def drive(client: Client) -> None:
        while True:
            with lock:
                request, at = next(source, None), next(number)
            if request is None:
                return
            client.send(request, found)
            if at % CANARY_EVERY == 0 and canary(server) != expected:
                found.blame("the canary's answer changed after", request)

    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    look_after(server, found, expected, pid)
    return found


def canary(server: ServerProcess) -> Any:
    reply = server.post("/v1/completions", CANARY, {"Authorization": f"Bearer {KEY}"})
    return reply.body.get("choices")


def look_after(server: ServerProcess, found: Findings, expected: Any, pids: list[int]) -> None:
    """What must be as before."""
    nothing = Request(what="afterwards")
    if server.process.poll() is not None:
        found.blame(f"the server ended: {server.log.read_text()[-2000:]}", nothing)
        return
    admin = {"Authorization": f"Bearer {ADMIN}"}
    for prefix in server.get("/v1/kv/published", admin).body["data"]:
        server.request("DELETE", f"/v1/kv/published/{prefix['name']}", None, admin)
    deadline = time.monotonic() + 10
    while (stats := server.get("/v1/kv/stats", admin).body)["num_held_blocks"] and time.monotonic() < deadline:
        time.sleep(0.05)
    if stats["num_held_blocks"] or stats["num_promised_blocks"]:
        found.blame(f"{stats['num_held_blocks']} blocks are still held", nothing)
    if not (audit := server.get("/v1/kv/audit", admin).body)["sound"]:
        found.blame(f"the audit finds {audit['broken']}", nothing)
    if server.engine_pids != pids:
        found.blame("the engine's process was restarted", nothing)
    if canary(server) != expected:
        found.blame("the canary's answer changed", nothing)
    log = server.log.read_text()
    if "Traceback" in log or " ERROR " in log:
        lines = [line for line in log.splitlines() if " ERROR " in line or "Error" in line]
        found.blame(f"the log holds errors: {lines[:5]}", nothing)


class Client:
    """One connection, made anew when the server closes it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connection: http.client.HTTPConnection | None = None

    def send(self, request: Request, found: Findings) -> None:
        try:
            if request.raw is not None:
                self._send_raw(request, found)
            else:
                self._send(request, found)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            found.blame(f"no reply: {type(error).__name__}: {error}", request)

    def _send(self, request: Request, found: Findings, again: bool = True) -> None:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        key = ADMIN if request.path.startswith(("/v1/kv/", "/reset")) else KEY
        headers = {**request.headers, "Authorization": f"Bearer {key}"}
        begin = time.monotonic()
        try:
            self._connection.request(request.method, request.path, request.body, headers)
            reply = self._connection.getresponse()
        except (http.client.InvalidURL, UnicodeError):
            return  # not a request that this client can spell; raw sockets are for those
        except (ConnectionError, http.client.RemoteDisconnected):
            self.close()
            if not again:
                raise
            return self._send(request, found, again=False)
        raw = reply.read()
        if reply.will_close:
            self.close()
        check(reply.status, raw, time.monotonic() - begin, request, found, reply.headers.get("content-type", ""))

    def _send_raw(self, request: Request, found: Findings) -> None:
        assert request.raw is not None
        with socket.create_connection(("127.0.0.1", self._port), timeout=5) as sock:
            sock.settimeout(0.05)
            data = request.raw[: request.closes_after]
            received = b""
            try:
                sock.sendall(data)
                if request.closes_after is None:
                    while piece := sock.recv(1 << 16):
                        received += piece
            except (TimeoutError, ConnectionError):
                pass
        if not received:
            found.statuses[0] += 1
            return
        check_raw(received, request, found)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def check(status: int, raw: bytes, took_s: float, request: Request, found: Findings, kind: str) -> None:
    """One reply."""
    found.statuses[status] += 1
    if LEAK.search(raw) and not LEAK.search(request.body or b"") and status >= 400:
        found.blame("the reply tells of the server's insides", request, raw)
    if status < 400:
        if b"internal_error" in raw or b"generation_failed" in raw:
            found.blame("an error of ours in a stream", request, raw[-300:])
        return
    if status < 500:
        found.refusals_s.append(took_s)
    if request.method == "HEAD":
        return
    try:
        error = json.loads(raw)["error"]
        sound = isinstance(error["message"], str) and 0 < len(error["message"]) < 2000 and "json" in kind
    except (ValueError, KeyError, TypeError):
        error, sound = {}, False
    if not sound:
        found.blame(f"a {status} without the envelope", request, raw)
    if status >= 500 and error.get("code") not in PLANNED:
        found.blame(f"an unplanned {status}", request, raw)


def check_raw(received: bytes, request: Request, found: Findings) -> None:
    """What came back for bytes that may be no request. It may be cut: nobody waits for the rest of an answer."""
    if not re.match(rb"HTTP/1\.[01] [1-5]\d\d ", received):
        found.blame("not a reply to bad bytes", request, received)
        return
    status = int(received[9:12])
    found.statuses[status] += 1
    if status >= 500 and not any(f'"code":"{code}"'.encode() in received for code in PLANNED):
        found.blame(f"an unplanned {status} for bad bytes", request, received)
    if LEAK.search(received):
        found.blame("the reply tells of the server's insides", request, received)


def main() -> int:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--optimise", action="store_true", help="run the server without assertions, as `python -O`")
    args = parser.parse_args()
    number = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    print(f"seed {number}{', without assertions' if args.optimise else ''}", flush=True)
    env = {"PYTHONOPTIMIZE": "1"} if args.optimise else {}
    with tempfile.TemporaryDirectory() as folder:
        flags = (*FLAGS, "--files-dir", folder)
        server = ServerProcess(TINY_MODEL, *flags, env=env, log=Path(folder) / "log").wait_ready()
        try:
            found = run(server, random.Random(number), args.requests)
        finally:
            server.stop()
    print(found)
    for problem in found.problems[:20]:
        print(problem)
    if found.p99_s > LIMIT_S:
        print(f"p99 of a 4xx is above {LIMIT_S * 1000:.0f} ms")
    return 1 if found.problems or found.p99_s > LIMIT_S else 0


if __name__ == "__main__":
    sys.exit(main())
