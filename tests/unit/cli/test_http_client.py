"""The client reads what real servers write, and says what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from octavo.cli.http_client import Endpoint, HTTPError, first_model, stream
from octavo.errors import ConfigError
from unit.cli.sse_server import SSEServer, completion

T = TypeVar("T")
BODY = {"prompt": "one two", "max_tokens": 3}


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


async def collect(at: Endpoint) -> list[bytes]:
    return [data async for data in stream(at, "/v1/completions", BODY)]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000", Endpoint("127.0.0.1", 8000)),
        ("http://host/v1/", Endpoint("host", 80)),
        ("https://host/api/v1", Endpoint("host", 443, "/api", True)),
        ("http://[::1]:9", Endpoint("::1", 9)),
    ],
)
def test_urls(url: str, expected: Endpoint) -> None:
    assert Endpoint.parse(url) == expected


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "http://", "http://host:port", ""])
def test_urls_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="a URL such as"):
        Endpoint.parse(url)


@pytest.mark.parametrize("chunked", [True, False])
def test_events_arrive_whole_however_the_body_is_framed(chunked: bool) -> None:
    async def work() -> list[bytes]:
        async with SSEServer(completion, chunked=chunked).listening() as url:
            return await collect(Endpoint.parse(url))

    events = run(work())
    assert len(events) == 4 and b"usage" in events[-1]


def test_the_key_is_sent_and_the_model_found() -> None:
    server = SSEServer(completion)

    async def work() -> str:
        async with server.listening() as url:
            return await first_model(Endpoint.parse(url, api_key="k"))

    assert run(work()) == "tiny"
    assert "Authorization: Bearer k\r\n" in server.heads[0]


def test_an_error_body_becomes_its_message() -> None:
    async def work() -> None:
        async with SSEServer(completion, status=400).listening() as url:
            await collect(Endpoint.parse(url))

    with pytest.raises(HTTPError, match="HTTP 400: temperature = 9: must be from 0 to 2"):
        run(work())


def test_a_stream_without_an_end_is_an_error() -> None:
    async def work() -> None:
        async with SSEServer(lambda body: completion(body)[:-1]).listening() as url:
            await collect(Endpoint.parse(url))

    with pytest.raises(HTTPError, match=r"before \[DONE\]"):
        run(work())


def test_nobody_listens() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(OSError):
        run(collect(Endpoint("127.0.0.1", port)))


def test_closing_the_iterator_hangs_up() -> None:
    server = SSEServer(lambda body: completion(body | {"max_tokens": 100_000}), delay_s=0.001)

    async def work() -> int:
        async with server.listening() as url:
            async with contextlib.aclosing(stream(Endpoint.parse(url), "/v1/completions", BODY)) as events:
                await anext(events)
            while server.in_flight:
                await asyncio.sleep(0.01)
            return server.most_in_flight

    assert run(work()) == 1
