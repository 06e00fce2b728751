"""What a case measures of the system: threads, memory that stays, and what readers that stall cost."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
from typing import Any

from cases.http_runner import HTTPRunner
from cases.scenarios import GOOD, wait_for
from support.processes import private_bytes, thread_names
from support.server_process import ServerProcess

Data = dict[str, Any]
POOL_THREAD = "octavo-pool"
"""The system's name of the threads that share a kernel's work with the one that calls it."""


def processes(server: ServerProcess) -> list[int]:
    return [server.process.pid, *server.engine_pids]


def threads_within_quota(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """The server may use less than two CPUs: nothing is shared out, and it says that it counts one."""
    assert runner.complete({**GOOD, "prompt": [5] * 100}).status == 200
    assert [name for pid in processes(runner.server) for name in thread_names(pid) if name == POOL_THREAD] == []
    assert f", {expected['threads']} thread\n" in runner.server.log.read_text()


def threads_at_most_cores(runner: HTTPRunner, other: HTTPRunner, given: Data, expected: Data) -> None:
    """One process computes, and no library keeps threads of its own: a server whose libraries are told to keep none
    (`other`) has as many."""
    for each in (runner, other):
        assert each.complete(GOOD).status == 200
    counts = [[thread_names(pid) for pid in processes(each.server)] for each in (runner, other)]
    pool = [sum(name == POOL_THREAD for name in names) for names in counts[0]]
    assert sorted(pool) == [0, len(os.sched_getaffinity(0)) - 1]
    assert [len(names) for names in counts[0]] == [len(names) for names in counts[1]], counts


def memory_per_request(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """Private memory of every process, swapped out or not, over many small requests that differ: fitted to a line.

    The tokenizers library remembers the first 10 000 words of less than 256 bytes that it meets, and to this vocabulary
    a text is one word: either prompts are longer, or there are enough to warm up.
    """
    pids = processes(runner.server)
    connection = http.client.HTTPConnection("127.0.0.1", runner.server.port, timeout=60)

    def ask(number: int) -> None:
        text = f"{number} times upon a time " * given["repeats"]
        body: Data = {"prompt": text, "max_tokens": 2, "user": f"user-{number}"}
        body["stream"] = number % 2 == 1
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        assert reply.status == 200, reply.read()
        reply.read()

    count, looks = given["requests"], given["looks"]
    for number in range(given["warm_up"]):
        ask(number)
    seen: list[list[int]] = []
    for look in range(looks):
        for number in range(count // looks):
            ask(given["warm_up"] + look * (count // looks) + number)
        seen.append([private_bytes(pid) for pid in pids])
    connection.close()
    for sizes in zip(*seen, strict=True):
        assert slope(list(sizes)) / (count // looks) < expected["bytes_per_request"], sizes


def slope(values: list[int]) -> float:
    """By least squares, per place."""
    middle = (len(values) - 1) / 2
    deviations = [place - middle for place in range(len(values))]
    return sum(d * v for d, v in zip(deviations, values, strict=True)) / sum(d * d for d in deviations)


def stalled_readers(runner: HTTPRunner, given: Data, expected: Data) -> None:
    """Streams whose clients read the headers and no more, while others are answered as before."""
    server = runner.server
    front_end = server.process.pid
    alone = runner.complete(GOOD)
    before = private_bytes(front_end)
    body = json.dumps({**given["fields"], "stream": True}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    stalled = []
    try:
        for _ in range(given["streams"]):
            sock = socket.socket()
            stalled.append(sock)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(30)
            sock.connect(("127.0.0.1", server.port))
            sock.sendall(head + body)
        for sock in stalled:
            assert sock.recv(32).startswith(b"HTTP/1.1 200 ")
        grown = 0
        begin = time.monotonic()
        while server.get("/load").body["server_load"]:
            assert time.monotonic() - begin < expected["dropped_within_s"], "a stream waits for its reader for ever"
            assert runner.complete(GOOD).choices == alone.choices
            grown = max(grown, private_bytes(front_end) - before)
        assert grown < given["streams"] * expected["bytes_per_stream"], grown
        for sock in stalled:
            assert b"[DONE]" not in read_rest(sock), "it was sent whole: nothing stalled"
    finally:
        for sock in stalled:
            sock.close()
    wait_for(lambda: runner.num_held_blocks() == 0 and runner.num_running() == 0, "back to empty", 5)
    assert runner.complete(GOOD).choices == alone.choices


def read_rest(sock: socket.socket) -> bytes:
    """What still comes on a connection that the other side has given up."""
    received = b""
    try:
        while piece := sock.recv(1 << 16):
            received += piece
    except ConnectionError:
        pass
    return received
