"""More open streams than can run at once: all are answered, whole and alike, and in the order of their arrival."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from support.processes import private_bytes
from support.server_process import ServerProcess

BODY: dict[str, Any] = {
    "prompt": "Once upon a time",
    "max_tokens": 24,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}
RUNNING = 64
BYTES_PER_STREAM = 256 << 10
"""Of the front end's memory, at most."""


class Stream:
    """One connection with one request."""

    def __init__(self) -> None:
        self.text = ""

    async def open(self, port: int) -> None:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        body = json.dumps(BODY).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
        self._writer.write(head + body)
        await self._writer.drain()

    async def read(self, number: int, order: list[int]) -> None:
        """To the end of the stream; `number` is noted with the first event."""
        async for line in self._reader:
            if line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: "):
                if not self.text:
                    order.append(number)
                self.text += json.loads(line[6:])["choices"][0]["text"]
        self._writer.close()


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.full)])
def test_no_stream_starves(start_server: Callable[..., ServerProcess], count: int) -> None:
    server = start_server("--num-blocks", "600", "--max-num-seqs", str(RUNNING))
    alone = server.post("/v1/completions", {**BODY, "stream": False}).body["choices"][0]["text"]
    before = private_bytes(server.process.pid)

    async def main() -> tuple[list[Stream], list[int], int]:
        streams, order = [Stream() for _ in range(count)], list[int]()
        for stream in streams:
            await stream.open(server.port)
        grown = private_bytes(server.process.pid) - before
        await asyncio.gather(*(stream.read(number, order) for number, stream in enumerate(streams)))
        return streams, order, grown

    streams, order, grown = asyncio.run(main())
    assert [stream.text for stream in streams] == [alone] * count
    assert grown < count * BYTES_PER_STREAM, grown
    late = [number for place, number in enumerate(order) if place - number > RUNNING]
    assert sorted(order) == list(range(count)) and not late, "somebody was passed by more than run at once"
    server.wait_metric("octavo:kv_blocks", 0, 5.0, state="held")
