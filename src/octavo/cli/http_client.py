"""A small HTTP/1.1 client over asyncio streams: one request per connection, server-sent events as they come.

The load generator runs on the machine it measures, so what it costs per token counts; this costs a few microseconds.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import msgspec

from octavo.errors import ConfigError, OctavoError

_LINE_LIMIT = 1 << 22


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


class _Reply(msgspec.Struct):
    status: int
    headers: dict[str, str]
    reader: Any

    async def parts(self) -> AsyncIterator[bytes]:
        """The body as it arrives."""
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while size := int((await self.reader.readline()).split(b";")[0].strip() or b"0", 16):
                yield await self.reader.readexactly(size)
                await self.reader.readline()
            return
        left = int(self.headers["content-length"]) if "content-length" in self.headers else -1
        while left and (part := await self.reader.read(min(left, 65536) if left > 0 else 65536)):
            left -= len(part) if left > 0 else 0
            yield part

    async def body(self) -> bytes:
        return b"".join([part async for part in self.parts()])


@asynccontextmanager
async def _request(at: Endpoint, method: str, path: str, body: bytes) -> AsyncIterator[_Reply]:
    reader, writer = await asyncio.open_connection(at.host, at.port, ssl=at.tls or None, limit=_LINE_LIMIT)
    try:
        host = f"[{at.host}]" if ":" in at.host else at.host
        head = [f"{method} {at.path}{path} HTTP/1.1", f"Host: {host}:{at.port}", "Connection: close"]
        if at.api_key:
            head.append(f"Authorization: Bearer {at.api_key}")
        if body:
            head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        writer.write("\r\n".join([*head, "", ""]).encode() + body)
        await writer.drain()
        yield await _read_head(reader)
    finally:
        writer.close()


async def _read_head(reader: asyncio.StreamReader) -> _Reply:
    first = (await reader.readline()).split(None, 2)
    if len(first) < 2 or not first[0].startswith(b"HTTP/") or not first[1].isdigit():
        raise HTTPError(0, "the server closed the connection or does not speak HTTP")
    headers: dict[str, str] = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode("latin-1").partition(":")
        headers[name.lower()] = value.strip().lower()
    return _Reply(int(first[1]), headers, reader)


def _error(status: int, body: bytes) -> HTTPError:
    try:
        message = str(msgspec.json.decode(body)["error"]["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = body[:300].decode(errors="replace").strip() or "no message"
    return HTTPError(status, message)


async def get(at: Endpoint, path: str) -> bytes:
    """The body of a GET.

    Raises:
        HTTPError: For a status other than 200.
        OSError: When there is no connection.
    """
    async with _request(at, "GET", path, b"") as reply:
        body = await reply.body()
    if reply.status != 200:
        raise _error(reply.status, body)
    return body


async def stream(at: Endpoint, path: str, body: Any) -> AsyncGenerator[bytes, None]:
    """POST `body` as JSON and yield the data of each server-sent event up to `[DONE]`.

    Closing the iterator closes the connection, which is how a client tells the server to stop.

    Raises:
        HTTPError: For a status other than 200, or a stream that ends before `[DONE]`.
        OSError: When there is no connection.
    """
    async with _request(at, "POST", path, msgspec.json.encode(body)) as reply:
        if reply.status != 200:
            raise _error(reply.status, await reply.body())
        rest = b""
        async for part in reply.parts():
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                if not line.startswith(b"data:"):
                    continue
                data = line[5:].strip()
                if data == b"[DONE]":
                    return
                yield data
    raise HTTPError(0, "the stream ended before [DONE]")


async def first_model(at: Endpoint) -> str:
    """The name of the first model a server lists."""
    models = msgspec.json.decode(await get(at, "/v1/models"))["data"]
    if not models:
        raise HTTPError(0, "the server lists no model")
    return str(models[0]["id"])
