"""A front for OpenVINO GenAI, whose own server is not in the package index: completions over HTTP, streamed.

    ov/bin/python openvino_server.py MODEL_FOLDER --port 8000 [--precision bf16] [--threads 2] [--cache-gb 2]

Runs in the peer's environment: the standard library and openvino_genai only. The pipeline steps in the event loop's own
thread. In a thread of its own it would hold the interpreter for whole steps while sockets wait, and the peer would look
slower than it is.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
from typing import Any

import openvino_genai as genai

_TURNS = 6
"""Turns of the event loop between two steps: accept, read, hand over, write."""

_DONE = None


def make_pipeline(args: argparse.Namespace) -> genai.ContinuousBatchingPipeline:
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = args.cache_gb
    scheduler.max_num_batched_tokens = 2048
    scheduler.max_num_seqs = 256
    scheduler.enable_prefix_caching = True
    scheduler.dynamic_split_fuse = True
    properties = {"INFERENCE_PRECISION_HINT": args.precision, "INFERENCE_NUM_THREADS": args.threads}
    return genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)


def generation_config(body: dict[str, Any]) -> genai.GenerationConfig:
    config = genai.GenerationConfig()
    config.max_new_tokens = body.get("max_tokens", 16)
    config.ignore_eos = body.get("ignore_eos", False)
    config.num_return_sequences = body.get("n", 1)
    temperature = body.get("temperature", 1.0)
    config.do_sample = temperature > 0
    if config.do_sample:
        config.temperature = temperature
    return config


class Request:
    """A request in the pipeline, and the queue by which its tokens reach the connection."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.pieces: asyncio.Queue[tuple[int, list[int]] | None] = asyncio.Queue()
        self.index: dict[int, int] = {}
        """The pipeline's names of the answers, in the order of their first tokens."""

    def forward(self) -> bool:
        """Pass on what is new; whether the request has ended."""
        while self.handle.can_read():
            for name, output in self.handle.read().items():
                if output.generated_ids:
                    which = self.index.setdefault(name, len(self.index))
                    self.pieces.put_nowait((which, list(output.generated_ids)))
        if self.handle.get_status() == genai.GenerationStatus.RUNNING:
            return False
        self.pieces.put_nowait(_DONE)
        return True


class Batcher:
    """Steps the pipeline while it has requests."""

    def __init__(self, pipeline: genai.ContinuousBatchingPipeline) -> None:
        self._pipeline = pipeline
        self._tokenizer = pipeline.get_tokenizer()
        self._ids = itertools.count(1)
        self._requests: list[Request] = []
        self._wake = asyncio.Event()
        self._text: dict[int, str] = {}

    def add(self, prompt: str, config: genai.GenerationConfig) -> Request:
        request = Request(self._pipeline.add_request(next(self._ids), prompt, config))
        self._requests.append(request)
        self._wake.set()
        return request

    def text(self, token: int) -> str:
        """A token's text; something invisible where it has none, so that the client sees it come."""
        if token not in self._text:
            self._text[token] = self._tokenizer.decode([token]) or "\u200b"
        return self._text[token]

    async def run(self) -> None:
        while True:
            if not self._requests:
                self._wake.clear()
                await self._wake.wait()
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            self._requests = [request for request in self._requests if not request.forward()]
            for _ in range(_TURNS):
                await asyncio.sleep(0)


async def read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The method and the body."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
    length = int(headers.get("content-length", 0))
    return head[0].split(" ", 1)[0], await reader.readexactly(length)


def event(data: Any) -> bytes:
    return b"data: " + json.dumps(data).encode() + b"\n\n"


async def stream(batcher: Batcher, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    request = batcher.add(body["prompt"], generation_config(body))
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
    count = 0
    while (piece := await request.pieces.get()) is not _DONE:
        which, tokens = piece
        count += len(tokens)
        writer.write(event({"choices": [{"index": which, "text": "".join(map(batcher.text, tokens))}]}))
    writer.write(event({"choices": [], "usage": {"completion_tokens": count}}) + b"data: [DONE]\n\n")
    await writer.drain()


async def answer(batcher: Batcher, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        method, body = await read_request(reader)
        if method == "GET":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            await writer.drain()
        else:
            await stream(batcher, json.loads(body), writer)
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the client has gone
    except Exception as error:
        writer.write(event({"error": {"message": repr(error)}}))
    finally:
        writer.close()


async def serve(args: argparse.Namespace) -> None:
    batcher = Batcher(make_pipeline(args))
    server = await asyncio.start_server(lambda r, w: answer(batcher, r, w), "127.0.0.1", args.port, limit=1 << 22)
    async with server:
        await batcher.run()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gb", type=int, default=2)
    asyncio.run(serve(parser.parse_args()))
