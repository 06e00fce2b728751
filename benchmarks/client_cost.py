"""What `octavo bench serve`'s client takes of the CPU for each streamed event.

    python benchmarks/client_cost.py [--streams 16] [--requests 64] [--tokens 150] [--step-ms 15]

A process that computes nothing writes one event to every open stream once a step, a write per stream as Octavo's server
does. CPU time is the client process's own while it sends the workload: its start is not in it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import time
from multiprocessing.connection import Connection

from octavo.cli.bench_load import Load, send_all
from octavo.cli.bench_workload import Item
from octavo.cli.http_client import Endpoint

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str | None, tokens: int) -> bytes:
    about = {"id": "cmpl-0123456789abcdef", "object": "text_completion", "created": 1700000000, "model": "m"}
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": tokens, "total_tokens": tokens + 1}
    rest = {"choices": [], "usage": usage} if text is None else {"choices": [choice]}
    return chunk(b"data: " + json.dumps(about | rest, separators=(",", ":")).encode() + b"\n\n")


class Server:
    """One event a step to every open stream."""

    def __init__(self, tokens: int, step_s: float) -> None:
        self.left: dict[asyncio.StreamWriter, int] = {}
        self.tokens, self.step_s = tokens, step_s

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length:")[2].split()[0]))
        writer.write(HEAD)
        self.left[writer] = self.tokens

    async def serve(self, ready: Connection) -> None:
        server = await asyncio.start_server(self.accept, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        token, last = event(" word", 0), event(None, self.tokens) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
        while True:
            await asyncio.sleep(self.step_s)
            for writer in list(self.left):
                self.left[writer] -= 1
                writer.write(token if self.left[writer] >= 0 else last)
                if self.left[writer] < 0:
                    del self.left[writer]
                    writer.close()


def serve(ready: Connection, tokens: int, step_s: float) -> None:
    asyncio.run(Server(tokens, step_s).serve(ready))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150)
    parser.add_argument("--step-ms", type=float, default=15.0)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs, args.tokens, args.step_ms / 1e3), daemon=True)
    server.start()
    load = Load(at=Endpoint("127.0.0.1", ours.recv()), model="m", max_concurrency=args.streams)
    items = [Item(prompt="word", output_token_count=args.tokens)] * args.requests
    before_s = time.process_time()
    records, duration_s = asyncio.run(send_all(load, items))
    spent_s = time.process_time() - before_s
    server.terminate()
    events = sum(record.output_tokens for record in records)
    if any(record.error for record in records) or events != args.requests * args.tokens:
        raise RuntimeError(f"{events} events came: {[record.error for record in records if record.error]}")
    print(f"{events} events in {duration_s:.1f} s: {1e6 * spent_s / events:.1f} us each")


if __name__ == "__main__":
    main()
