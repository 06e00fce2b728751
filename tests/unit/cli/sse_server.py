"""A plain asyncio server that speaks just enough of the completions API to be measured: real bytes on a real socket.

It stands for any OpenAI-compatible server, which the load generator must be able to measure; Octavo's own is driven
in tests/e2e.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

Answer = Callable[[dict[str, Any]], list[str]]


class SSEServer:
    """Answers POST with the events that `answer(body)` gives, `delay_s` apart; GET /v1/models lists one model."""

    def __init__(self, answer: Answer, *, delay_s: float = 0.0, chunked: bool = True, status: int = 200) -> None:
        self.answer, self.delay_s, self.chunked, self.status = answer, delay_s, chunked, status
        self.bodies: list[dict[str, Any]] = []
        self.heads: list[str] = []
        self.in_flight = 0  # requests whose last event is not yet written
        self._open = 0
        self.most_in_flight = 0

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        async with server:
            yield f"http://{host}:{port}"
            while self._open:
                await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            with contextlib.suppress(ConnectionError):
                await self._answer(reader, writer)
        finally:
            self._open -= 1
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        lengths = [line.split(":")[1] for line in head.splitlines() if line.lower().startswith("content-length")]
        if head.startswith("GET"):
            body = json.dumps({"data": [{"id": "tiny"}]}).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            return
        self.bodies.append(json.loads(await reader.readexactly(int(lengths[0]))))
        if self.status != 200:
            body = json.dumps({"error": {"message": "temperature = 9: must be from 0 to 2"}}).encode()
            writer.write(b"HTTP/1.1 %d No\r\nContent-Length: %d\r\n\r\n" % (self.status, len(body)) + body)
            return
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n" if self.chunked else b"\r\n")
        await self._stream(writer, self.answer(self.bodies[-1]))

    async def _stream(self, writer: asyncio.StreamWriter, events: list[str]) -> None:
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            for event in events[:-1]:
                await self._write(writer, event)
        finally:
            self.in_flight -= 1
        await self._write(writer, events[-1])
        if self.chunked:
            writer.write(b"0\r\n\r\n")

    async def _write(self, writer: asyncio.StreamWriter, event: str) -> None:
        await asyncio.sleep(self.delay_s)
        data = f"data: {event}\n\n".encode()
        writer.write(b"%x\r\n%s\r\n" % (len(data), data) if self.chunked else data)
        await writer.drain()


def completion(body: dict[str, Any]) -> list[str]:
    """One event per token, for each of the n answers, then usage."""
    n, wanted = body.get("n", 1), body["max_tokens"]
    events = [json.dumps({"choices": [{"index": i, "text": " word"}]}) for _ in range(wanted) for i in range(n)]
    usage = {"prompt_tokens": len(body["prompt"].split()), "completion_tokens": wanted * n}
    return [*events, json.dumps({"choices": [], "usage": usage}), "[DONE]"]
