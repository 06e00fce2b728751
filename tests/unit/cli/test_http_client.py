"""The client reads what real servers write, and says what went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from octavo.cli import http_client
from octavo.cli.http_client import Endpoint, HTTPError, Recording, first_model, get, record, stream
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


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EVENTS = [b'{"a": "\xc3\xa9"}', b'{"b": "data: [DONE]"}', b'{"c": [1]}']
TEXT = b"".join(b"data: %s\n\n" % data for data in EVENTS) + b"data: [DONE]\n\n"


def chunks(text: bytes, size: int, line: bytes = b"\r\n", extension: bytes = b"") -> bytes:
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    return b"".join(b"%X%s%s%s%s" % (len(part), extension, line, part, line) for part in [*parts, b""])


def one_chunk(text: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(text), text)


FRAMES = [one_chunk(b"data: %s\n\n" % data) for data in [*EVENTS, b"[DONE]"]]

REPLIES = {
    "chunk per event": CHUNKED + b"".join(FRAMES) + b"0\r\n\r\n",
    "one chunk": CHUNKED + chunks(TEXT, len(TEXT)),
    "chunks within events": CHUNKED + chunks(TEXT, 5),
    "chunks of a byte": CHUNKED + chunks(TEXT, 1),
    "extensions": CHUNKED + chunks(TEXT, 20, extension=b' ; name="a b"'),
    "trailers": CHUNKED + chunks(TEXT, 20)[:-2] + b"Expires: never\r\n\r\n",
    "bare line feeds": CHUNKED.replace(b"\r", b"") + chunks(TEXT, 20, line=b"\n"),
    "events with CRLF": CHUNKED + chunks(TEXT.replace(b"\n", b"\r\n"), 16),
    "comments and names": CHUNKED + chunks(b": hello\n\nid: 1\n" + TEXT.replace(b"\n\ndata: ", b"\n\ndata:"), 30),
    "an event after the end": CHUNKED + one_chunk(TEXT + b"data: {}\n\n") + b"0\r\n\r\n",
    "content-length": OK + b"content-LENGTH: %d\r\n\r\n" % len(TEXT) + TEXT,
    "until the connection closes": OK + b"X-A: \r\n\r\n" + TEXT,
}  # fmt: skip
"""Ways to send the same events."""

SPLITS: dict[str, Callable[[bytes], list[bytes]]] = {
    "all at once": lambda raw: [raw],
    "byte by byte": lambda raw: [raw[i : i + 1] for i in range(len(raw))],
    "by sevens": lambda raw: [raw[i : i + 7] for i in range(0, len(raw), 7)],
    "before each line feed": lambda raw: re.findall(rb"\n?[^\n]+|\n", raw),
}


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@asynccontextmanager
async def serving(serve: Serve, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[Endpoint]:
    """A server for as long as the context lasts and connections are open."""
    in_flight = 0

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal in_flight
        in_flight += 1
        with contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        in_flight -= 1

    server = await asyncio.start_server(one, host, 0, ssl=tls)
    async with server:
        yield Endpoint(host, server.sockets[0].getsockname()[1], tls=tls is not None)
        while in_flight:
            await asyncio.sleep(0.001)


def raw_server(pieces: list[bytes], *, pause_s: float = 0.0, stays: bool = False, **how: Any) -> Any:
    """Answers every request with these pieces, each in a segment of its own, and `stays` connected or does not."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)
        while stays and await reader.read(1000):
            pass

    return serving(serve, **how)


async def recorded(at: Endpoint) -> Recording:
    return await record(at, "/v1/completions", BODY)


async def collect_recorded(at: Endpoint) -> list[bytes]:
    return [data for _, data in (await recorded(at)).events]


BOTH = pytest.mark.parametrize("ask", [collect, collect_recorded], ids=["stream", "record"])


async def ask_raw(ask: Callable[[Endpoint], Coroutine[Any, Any, T]], pieces: list[bytes], **how: Any) -> T:
    async with raw_server(pieces, **how) as at:
        return await ask(at)


@BOTH
@pytest.mark.parametrize("split", list(SPLITS))
@pytest.mark.parametrize("reply", list(REPLIES))
def test_events_survive_every_framing_and_split(ask: Any, reply: str, split: str) -> None:
    assert run(ask_raw(ask, SPLITS[split](REPLIES[reply]))) == EVENTS


@BOTH
@pytest.mark.parametrize("reply", [name for name in REPLIES if name != "until the connection closes"])
def test_the_end_shows_though_the_connection_stays(ask: Any, reply: str) -> None:
    assert run(ask_raw(ask, [REPLIES[reply]], stays=True)) == EVENTS


@pytest.mark.parametrize("reply", list(REPLIES))
def test_pieces_of_a_reply_may_meet_in_one_read(reply: str) -> None:
    """Without a socket: every cut into two."""
    raw = REPLIES[reply]
    start = raw.index(b"\n\r\n" if b"\r" in raw else b"\n\n") + (3 if b"\r" in raw else 2)
    fields = [line.partition(b":") for line in raw[:start].lower().splitlines()]
    headers = {name.decode(): value.strip().decode() for name, _, value in fields}
    for cut in range(len(raw) - start + 1):
        body, events = http_client._Body(headers), http_client._Events()
        parts = raw[start : start + cut], raw[start + cut :]
        assert [data for part in parts for data in events.feed(body.feed(part))] == EVENTS, cut
        assert events.done and (body.ended or not body.framed)


@BOTH
@pytest.mark.parametrize(
    ("raw", "why"),
    [
        (REPLIES["one chunk"][:-30], r"before \[DONE\]"),
        (REPLIES["chunk per event"].replace(b"data: [DONE]", b": no more  "), r"before \[DONE\]"),
        (OK + b"Content-Length: 0\r\n\r\n", r"before \[DONE\]"),
        (OK + b"Content-Length: 10\r\n\r\n" + TEXT, r"before \[DONE\]"),
        (OK + b"\r\n" + TEXT[:-3], r"before \[DONE\]"),
        (CHUNKED + b"zz\r\nabc", "chunks are broken: .*zz"),
        (CHUNKED + b"-5\r\nabc", "chunks are broken"),
        (CHUNKED + b"2\r\nabcdef\r\n", "chunks are broken: .*cdef"),
        (CHUNKED + b"5;" + b"x" * 9000, "chunks are broken"),
        (OK + b"Content-Length: -1\r\n\r\n" + TEXT, "length of the reply is '-1'"),
        (OK + b"X: " + b"y" * 70_000 + b"\r\n\r\n" + TEXT, "head of the reply is longer"),
        (OK + b"X: " + b"y" * 70_000, "head of the reply is longer"),
        (OK + b"X: y\r\n", "closed the connection or does not speak HTTP"),
        (b"HTTP/1.1 OK\r\n\r\n", "does not speak HTTP"),
        (b"", "closed the connection"),
    ],
)
def test_what_is_wrong_with_a_reply_is_said(ask: Any, raw: bytes, why: str) -> None:
    with pytest.raises(HTTPError, match=why) as caught:
        run(ask_raw(ask, [raw]))
    assert caught.value.status == 0


@BOTH
def test_what_does_not_speak_http_is_not_waited_for(ask: Any) -> None:
    with pytest.raises(HTTPError, match="does not speak HTTP"):
        run(ask_raw(ask, [b"SSH-2.0-", b"OpenSSH_9\r\n"], stays=True))


def test_a_line_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_client, "_MAX_LINE_BYTES", 1000)
    with pytest.raises(HTTPError, match="longer than 1000 bytes"):
        run(ask_raw(collect_recorded, [OK + b"\r\ndata: " + b"x" * 2000], stays=True))


@BOTH
def test_the_servers_message_is_told_even_of_a_reply_cut_short(ask: Any) -> None:
    error = b'{"error": {"message": "too many"}}'
    for length in (len(error), 99):
        head = b"HTTP/1.1 429 Too Many\r\nContent-Length: %d\r\n\r\n" % length
        with pytest.raises(HTTPError, match="HTTP 429: too many"):
            run(ask_raw(ask, [head, error]))


def test_a_body_cut_short_is_an_error() -> None:
    async def ask(at: Endpoint) -> bytes:
        return await get(at, "/v1/models")

    assert run(ask_raw(ask, [OK + b"\r\n", b"a", b"b"])) == b"ab"
    for head in (OK + b"Content-Length: 3\r\n\r\nab", CHUNKED + b"3\r\nab", CHUNKED + b"2\r\nab\r\n"):
        with pytest.raises(HTTPError, match="within its reply"):
            run(ask_raw(ask, [head]))


@BOTH
def test_a_reset_within_a_stream_is_an_error(ask: Any) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(REPLIES["chunk per event"][:-40])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.transport.abort()

    async def work() -> None:
        async with serving(serve) as at:
            await ask(at)

    with pytest.raises((OSError, HTTPError)):
        run(work())


@pytest.mark.parametrize("framing", ["chunked", "sized", "open"])
def test_times_are_those_of_the_bytes_that_complete_an_event(framing: str) -> None:
    """Every event in two segments, 20 ms between segments; the last segment holds two events and the end."""
    frames = [b"data: {%d}\n\n" % i for i in range(5)]
    pieces = [part for frame in frames[:4] for part in (frame[:6], frame[6:])] + [frames[4] + TEXT]
    size = sum(map(len, pieces))
    heads = {"chunked": CHUNKED, "sized": OK + b"Content-Length: %d\r\n\r\n" % size, "open": OK + b"\r\n"}
    if framing == "chunked":
        pieces = [one_chunk(piece) for piece in pieces]

    async def work() -> tuple[float, Recording]:
        start = time.perf_counter()
        return start, await ask_raw(recorded, [heads[framing], *pieces], pause_s=0.02, stays=True)

    start, found = run(work())
    times = [when for when, _ in found.events]
    gaps = [b - a for a, b in itertools.pairwise(times[:5])]
    assert [data for _, data in found.events] == [b"{%d}" % i for i in range(5)] + EVENTS
    assert times[0] - start > 0.035 and all(gap > 0.035 for gap in gaps[:3]) and gaps[3] > 0.015
    assert times[4:] == [found.end_s] * 4, "what came in one segment came at one time"


def test_a_recorder_sleeps_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """What costs the measured server: one look at a whole stream, not one for each event."""
    looks = []
    feed = http_client._Events.feed

    def watched(self: Any, text: bytes) -> list[bytes]:
        looks.append(time.perf_counter())
        return feed(self, text)

    monkeypatch.setattr(http_client._Events, "feed", watched)
    found = run(ask_raw(recorded, [CHUNKED, *FRAMES], pause_s=0.01))
    assert [data for _, data in found.events] == EVENTS
    assert found.end_s <= looks[0], "nothing was looked at before the end had come"


@BOTH
def test_a_server_that_sends_too_much_is_held_back_and_nothing_is_lost(
    ask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "_MAX_HELD_BYTES", 50_000)
    events = [b'{"n": %d, "x": "%s"}' % (i, b"x" * 2000) for i in range(300)]
    pieces = [one_chunk(b"data: %s\n\n" % data) for data in [*events, b"[DONE]"]]
    assert run(ask_raw(ask, [CHUNKED, *pieces], stays=True)) == events


def test_a_slow_reader_holds_the_server_back() -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(OK + b"\r\n")
        while sent < 200 << 20:
            writer.write(b"data: {%s}\n\n" % (b"x" * 100_000))
            await writer.drain()
            sent += 100_000

    async def work() -> None:
        async with serving(serve) as at, contextlib.aclosing(stream(at, "/v1/completions", BODY)) as events:
            await anext(events)
            before = -1
            while before != sent:
                before = sent
                await asyncio.sleep(0.1)
            assert 0 < sent < 100 << 20, "sockets' buffers and what may be held"
            for _ in range(100):
                await anext(events)

    run(work())


def test_giving_up_a_recording_hangs_up() -> None:
    server = SSEServer(lambda body: completion(body | {"max_tokens": 100_000}), delay_s=0.001)

    async def work() -> None:
        async with server.listening() as url:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(recorded(Endpoint.parse(url)), 0.1)
            while server.in_flight:
                await asyncio.sleep(0.01)

    run(work())
    assert server.most_in_flight == 1


@BOTH
def test_ipv6(ask: Any) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
    assert run(ask_raw(ask, [REPLIES["chunk per event"]], host="::1")) == EVENTS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    pem = tmp_path_factory.mktemp("tls") / "both.pem"
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]  # fmt: skip
    subprocess.run(words, check=True, capture_output=True, cwd=pem.parent)
    pem.write_bytes((pem.parent / "key.pem").read_bytes() + (pem.parent / "cert.pem").read_bytes())
    return pem


@BOTH
@pytest.mark.parametrize("split", list(SPLITS))
def test_tls(ask: Any, split: str, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    pieces = SPLITS[split](REPLIES["chunk per event"])
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert run(ask_raw(ask, pieces, tls=context)) == EVENTS
    monkeypatch.delenv("SSL_CERT_FILE")
    with pytest.raises(ssl.SSLCertVerificationError):
        run(ask_raw(ask, pieces, tls=context))
