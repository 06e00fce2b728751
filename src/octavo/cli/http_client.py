"""A small HTTP/1.1 client on one asyncio protocol: one request per connection, server-sent events with their times.

The load generator shares the cores with the server that it measures: what it takes per token is taken from the engine.
So while a stream runs, an arrival is a clock reading and a copy (`_Reply.buffer_updated`), and `record` looks into the
bytes only when they may hold the stream's end.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

from octavo.errors import ConfigError, OctavoError

_READ_BYTES = 1 << 14
_MAX_HEAD_BYTES = 1 << 16
_MAX_HELD_BYTES = 1 << 20
"""What may lie unread before the server is held back."""

_MAX_LINE_BYTES = 1 << 22
"""Of one event."""

_MAX_SIZE_LINE_BYTES = 1 << 12

_NO_DONE = "the stream ended before [DONE]"

_DULL = (b"}\n\n", b"}\r\n\r\n")
"""How a piece ends that holds whole events of JSON: neither `[DONE]` nor the body's end is the last thing in it."""

_DULL_CHUNKS = tuple(end + b"\r\n" for end in _DULL)

_STATUS = re.compile(rb"HTTP/[^ \n]+ +(\d{3})(?!\d)[^\n]*\n?")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK_SIZE = re.compile(rb"\r?\n([0-9a-fA-F]{1,15})[ \t]*(?:;[^\n]*)?\r?\n")


class HTTPError(OctavoError):
    """The server answered with an error, or not in HTTP. `status` is 0 for the latter."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}" if status else message)
        self.status = status


class Endpoint(msgspec.Struct, frozen=True):
    """Where a server is."""

    host: str
    port: int
    path: str = ""
    """In front of every request's path, without a slash at the end."""
    tls: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """From a base URL; a final `/v1` may stand there or not.

        Raises:
            ConfigError: When it is not an http or https URL.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            raise ConfigError("url", url, "a URL such as http://127.0.0.1:8000") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("url", url, "a URL such as http://127.0.0.1:8000")
        path = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port, path, parts.scheme == "https", api_key)


class Recording(msgspec.Struct):
    """A stream as it came. Times are `time.perf_counter()`'s when the bytes were read that completed something."""

    events: list[tuple[float, bytes]]
    """Time and data of each event before `[DONE]`."""
    end_s: float
    """When `[DONE]` came."""


class _Body:
    """Takes the framing off a body that is fed in any pieces. `ended` once all of it has been fed."""

    def __init__(self, headers: dict[str, str]) -> None:
        self.chunked = "chunked" in headers.get("transfer-encoding", "")
        self.sized = not self.chunked and "content-length" in headers
        self.ended = False
        self._left = 0
        """Bytes to come of the chunk, or of a body of known length."""
        self._line = b"\r\n"
        """What has come of the line with the next chunk's size, and the line end before it: at first the head's."""
        if self.sized:
            length = headers["content-length"]
            if not (length.isascii() and length.isdecimal()):
                raise HTTPError(0, f"the length of the reply is {length!r}")
            self._left = int(length)
            self.ended = not self._left

    @property
    def framed(self) -> bool:
        """Whether its end shows without the connection's."""
        return self.chunked or self.sized

    def feed(self, raw: bytes) -> bytes:
        """What of the body is in the next piece. Raises HTTPError for broken chunks."""
        if self.chunked:
            return self._unchunk(self._line + raw)
        if self.sized:
            raw = raw[: self._left]
            self._left -= len(raw)
            self.ended = not self._left
        return raw

    def _unchunk(self, raw: bytes) -> bytes:
        parts, at = [], 0
        while not self.ended:
            if self._left:
                parts.append(raw[at : at + self._left])
                at += len(parts[-1])
                self._left -= len(parts[-1])
            size = None if self._left else _CHUNK_SIZE.match(raw, at)
            if size is None:
                break
            at = size.end()
            self._left = int(size[1], 16)
            self.ended = not self._left  # trailers may follow: nothing of interest
        self._line = raw[at:]
        if self._line != b"\r\n" and not self.ended and not _begins_size_line(self._line):
            raise HTTPError(0, f"the reply's chunks are broken: {self._line[:40]!r} in place of a size")
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _begins_size_line(line: bytes) -> bool:
    return line[:1] in (b"", b"\r", b"\n") and line.count(b"\n") < 2 and len(line) <= _MAX_SIZE_LINE_BYTES


class _Events:
    """The data of server-sent events, from text that is fed in any pieces. `done` once `[DONE]` came."""

    def __init__(self) -> None:
        self.done = False
        self._line = b""

    def feed(self, text: bytes) -> list[bytes]:
        """The events that `text` completes, up to `[DONE]`; nothing after it."""
        if self.done:
            return []
        lines = (self._line + text).split(b"\n")
        self._line = lines.pop()
        if len(self._line) > _MAX_LINE_BYTES:
            raise HTTPError(0, f"a line of the stream is longer than {_MAX_LINE_BYTES} bytes")
        found = [line[5:].strip() for line in lines if line.startswith(b"data:")]
        if b"[DONE]" in found:
            self.done = True
            del found[found.index(b"[DONE]") :]
        return found


class _Reply(asyncio.BufferedProtocol):
    """One connection, and what comes on it: raw pieces and their times, kept until somebody takes them."""

    def __init__(self) -> None:
        self.status = 0
        self.body = _Body({})
        self.dull: tuple[bytes, ...] = ()
        """Endings of pieces that need nobody's attention: they wait until one comes that ends otherwise."""
        self.transport: asyncio.Transport
        self._buffer = memoryview(bytearray(_READ_BYTES))
        self._times: list[float] = []
        self._pieces: list[bytes] = []
        self._held_bytes = 0
        self._news = asyncio.Event()
        self._closed = False
        self._lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._times.append(perf_counter())
        piece = self._buffer[:nbytes].tobytes()
        self._pieces.append(piece)
        self._held_bytes += nbytes
        if not piece.endswith(self.dull):
            self._news.set()
        if self._held_bytes > _MAX_HELD_BYTES:
            self.transport.pause_reading()
            self._news.set()

    def eof_received(self) -> None:
        self._close(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._close(exc)

    def _close(self, exc: Exception | None) -> None:
        self._closed = True
        self._lost = self._lost or exc
        self._news.set()

    async def _take(self) -> list[tuple[float, bytes]]:
        """What has come since the last call, as soon as there is something; empty when nothing more will come.

        Raises:
            OSError: When the connection broke.
        """
        await self._news.wait()
        taken = list(zip(self._times, self._pieces, strict=True))
        self._times, self._pieces, self._held_bytes = [], [], 0
        if not self._closed:
            self._news.clear()
            self.transport.resume_reading()
        elif self._lost and not taken:
            raise self._lost
        return taken

    async def read_head(self) -> None:
        """Wait for status and headers. Raises HTTPError when it is something else that comes."""
        head, end, when = b"", None, 0.0
        while end is None and b"HTTP/".startswith(head[:5]) and (taken := await self._take()):
            head, when = head + b"".join(piece for _, piece in taken), taken[-1][0]
            end = _HEAD_END.search(head)
            if (end.start() if end else len(head)) > _MAX_HEAD_BYTES:
                raise HTTPError(0, f"the head of the reply is longer than {_MAX_HEAD_BYTES} bytes")
        if end is None or not (first := _STATUS.match(head)):
            raise HTTPError(0, "the server closed the connection or does not speak HTTP")
        fields = (line.partition(":") for line in head[first.end() : end.start()].decode("latin-1").split("\n"))
        self.body = _Body({name.lower(): value.strip().lower() for name, _, value in fields})
        self.status = int(first[1])
        if end.end() < len(head):
            self._times.insert(0, when)
            self._pieces.insert(0, head[end.end() :])
            self._news.set()

    async def read(self) -> list[tuple[float, bytes]]:
        """More of the body, with the times when it came; empty at its end or the connection's."""
        if self.body.ended:
            return []
        return [(when, self.body.feed(piece)) for when, piece in await self._take()]

    async def read_all(self) -> bytes:
        """The body, or what comes of it before the connection ends."""
        parts = []
        while taken := await self.read():
            parts += [part for _, part in taken]
        return b"".join(parts)


@asynccontextmanager
async def _request(at: Endpoint, method: str, path: str, body: bytes) -> AsyncIterator[_Reply]:
    loop = asyncio.get_running_loop()
    transport, reply = await loop.create_connection(_Reply, at.host, at.port, ssl=at.tls or None)
    try:
        host = f"[{at.host}]" if ":" in at.host else at.host
        head = [f"{method} {at.path}{path} HTTP/1.1", f"Host: {host}:{at.port}", "Connection: close"]
        if at.api_key:
            head.append(f"Authorization: Bearer {at.api_key}")
        if body:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        transport.write("\r\n".join([*head, "", ""]).encode() + body)
        await reply.read_head()
        if reply.status != 200:
            raise _error(reply.status, await reply.read_all())
        yield reply
    finally:
        transport.close()


def _error(status: int, body: bytes) -> HTTPError:
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:300].decode(errors="replace").strip() or "no message"
    return HTTPError(status, message)


async def get(at: Endpoint, path: str) -> bytes:
    """The body of a GET.

    Raises:
        HTTPError: For a status other than 200, or a reply that breaks off.
        OSError: When there is no connection.
    """
    async with _request(at, "GET", path, b"") as reply:
        body = await reply.read_all()
        if reply.body.framed and not reply.body.ended:
            raise HTTPError(0, "the server closed the connection within its reply")
        return body


async def stream(at: Endpoint, path: str, body: Any) -> AsyncGenerator[bytes, None]:
    """POST `body` as JSON and yield the data of each server-sent event up to `[DONE]`.

    Closing the iterator closes the connection, which is how a client tells the server to stop.

    Raises:
        HTTPError: For a status other than 200, or a stream that ends before `[DONE]`.
        OSError: When there is no connection.
    """
    events = _Events()
    async with _request(at, "POST", path, msgspec.json.encode(body)) as reply:
        while taken := await reply.read():
            for _, text in taken:
                for data in events.feed(text):
                    yield data
                if events.done:
                    return
    raise HTTPError(0, _NO_DONE)


async def record(at: Endpoint, path: str, body: Any) -> Recording:
    """As `stream`, all of it at once with the times when it came, at the least cost while it comes.

    Raises:
        HTTPError: For a status other than 200, or a stream that ends before `[DONE]`.
        OSError: When there is no connection.
    """
    events, found = _Events(), []
    async with _request(at, "POST", path, msgspec.json.encode(body)) as reply:
        reply.dull = _DULL if not reply.body.framed else _DULL_CHUNKS if reply.body.chunked else ()
        while taken := await reply.read():
            for when, text in taken:
                found += [(when, data) for data in events.feed(text)]
                if events.done:
                    return Recording(found, when)
    raise HTTPError(0, _NO_DONE)


async def first_model(at: Endpoint) -> str:
    """The name of the first model a server lists."""
    models = msgspec.json.decode(await get(at, "/v1/models"))["data"]
    if not models:
        raise HTTPError(0, "the server lists no model")
    return str(models[0]["id"])
