"""Framing of event streams, and what happens when a reader leaves or lingers."""

from __future__ import annotations

import http.client
import json
import socket
import time
from typing import Any

import pytest

from support.server_process import ServerProcess

PROMPT = "Once upon a time"
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 230, "ignore_eos": True, "temperature": 0}


def test_frames(server: ServerProcess) -> None:
    events = server.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 4})
    assert events.status == 200
    assert events.headers["content-type"].startswith("text/event-stream")
    assert events.frames[-1] == "[DONE]" and events.frames.count("[DONE]") == 1
    assert all(chunk["object"] == "text_completion" and len(chunk["choices"]) == 1 for chunk in events.chunks)
    assert all("usage" not in chunk for chunk in events.chunks)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_usage_comes_once_at_the_end(server: ServerProcess, path: str) -> None:
    body: dict[str, Any] = {"max_tokens": 5, "n": 2, "ignore_eos": True, "stream_options": {"include_usage": True}}
    body |= {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "Hi"}]}
    *parts, last = server.stream(path, body).chunks
    assert [chunk["usage"] for chunk in parts] == [None] * len(parts)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 10
    ends = [chunk["choices"][0] for chunk in parts if chunk["choices"][0]["finish_reason"] is not None]
    assert sorted(choice["index"] for choice in ends) == [0, 1]
    for index in (0, 1):
        of_index = [chunk["choices"][0] for chunk in parts if chunk["choices"][0]["index"] == index]
        assert of_index[-1]["finish_reason"] == "length"


def test_continuous_usage(server: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = server.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 6, "stream_options": options}).chunks
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == counts[-2] == 6


def test_an_error_known_in_time_is_an_http_error(server: ServerProcess) -> None:
    events = server.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 9999})
    assert events.status == 400
    assert json.loads(events.raw)["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess, stream: bool) -> None:
    body = json.dumps({**LONG, "stream": stream, "n": 16}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    steps_before = server.metric("octavo:steps_total")
    aborted_before = server.metric("octavo:request_success_total", finished_reason="abort")
    with socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(head % len(body) + body)
        begin = time.monotonic()
        while server.metric("octavo:kv_blocks", state="held") == 0:
            assert time.monotonic() - begin < 5, "the request never ran"
    server.wait_metric("octavo:kv_blocks", 0, 1.0, state="held")
    server.wait_metric("octavo:num_requests_running", 0, 1.0)
    server.wait_metric("octavo:request_success_total", aborted_before + 16, 1.0, finished_reason="abort")
    assert server.metric("octavo:steps_total") - steps_before < 200, "it ran to its end instead"


def test_a_slow_reader_delays_nobody(server: ServerProcess) -> None:
    """A reader that takes nothing is given at most what the socket holds; others go on."""
    with server.open_stream("/v1/completions", {**LONG, "n": 8, "logprobs": 20}):
        for _ in range(3):
            assert server.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 4}).status == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_only_sends_no_more_is_answered(server: ServerProcess, stream: bool) -> None:
    """Two requests at once, then the end of sending: both are answered, and the connection ends behind them."""
    body = json.dumps({"prompt": PROMPT, "max_tokens": 60, "stream": stream, "ignore_eos": True}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall((head + body) * 2)
        sock.shutdown(socket.SHUT_WR)
        received = b""
        while piece := sock.recv(1 << 16):
            received += piece
    assert received.count(b"HTTP/1.1 200 OK\r\n") == 2
    assert received.count(b"data: [DONE]" if stream else b'"finish_reason":"length"') == 2


def test_a_client_that_only_sends_no_more_is_told_that_it_is_waited_for(server: ServerProcess) -> None:
    body = json.dumps({"prompt": PROMPT, "max_tokens": 2}).encode()
    head = b"POST /v1/completions HTTP/%s\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(head % (b"1.1", len(body)) + body)
        sock.shutdown(socket.SHUT_WR)
        reply = http.client.HTTPResponse(sock)
        reply.begin()  # which reads over interim responses, as every client must
        assert reply.status == 200 and reply.headers["connection"] == "close" and json.loads(reply.read())["choices"]
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as sock:
        sock.sendall(head % (b"1.1", len(body)) + body[:-1])
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1 << 16) == b"", "half a request is none"
