"""Sending a workload to an OpenAI-compatible server and timing what comes back."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec

from octavo.cli import http_client
from octavo.cli.bench_workload import Item
from octavo.cli.http_client import Endpoint, HTTPError, Recording
from octavo.errors import OctavoError


class Record(msgspec.Struct, kw_only=True):
    """One request as it went. Times in seconds on the client's clock."""

    start_s: float
    end_s: float = 0.0
    ttft_s: float | None = None
    """Sent to first text, of any of the n answers."""
    tpot_s: list[float] = []
    """Per answer, time from first to last text over tokens - 1."""
    itl_s: list[float] = []
    """Gaps between the pieces of text of one answer."""
    prompt_tokens: int = 0
    output_tokens: int = 0
    """As the server counts them, but no fewer than the pieces of text it sent: some count one answer of several."""
    wanted_tokens: int = 0
    error: str | None = None


class _Choice(msgspec.Struct):
    text: str = ""
    index: int = 0


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decoder = msgspec.json.Decoder(_Event)


class Load(msgspec.Struct, kw_only=True, frozen=True):
    """How to send."""

    at: Endpoint
    model: str
    endpoint: str = "/v1/completions"
    max_concurrency: int | None = None
    request_rate: float = float("inf")
    """Requests a second; infinite sends as `max_concurrency` allows (a closed loop)."""
    burstiness: float = 1.0
    """Shape of the gamma law of the gaps; 1 is a Poisson process, smaller is burstier."""
    seed: int = 0
    ignore_eos: bool = True
    extra_body: dict[str, Any] = {}
    rewrite: Callable[[Item, dict[str, Any]], dict[str, Any]] | None = None
    """Makes of the usual body what a server with fields of its own wants."""


async def send_one(load: Load, item: Item) -> Record:
    """Send one request and follow its stream. Failures are recorded, not raised: a benchmark counts them."""
    body: dict[str, Any] = {
        "model": load.model,
        "prompt": item.prompt,
        "max_tokens": item.output_token_count,
        "temperature": item.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if item.n > 1:
        body["n"] = item.n
    if item.temperature > 0:
        body["seed"] = load.seed
    if load.ignore_eos:
        body["ignore_eos"] = True
    body |= load.extra_body
    if load.rewrite is not None:
        body = load.rewrite(item, body)
    record = Record(start_s=time.perf_counter(), wanted_tokens=item.output_token_count * item.n)
    try:
        recording = await http_client.record(load.at, load.endpoint, body)
        record.end_s = recording.end_s
        _read(recording, item, record)
    except (OctavoError, OSError, msgspec.DecodeError, ValueError) as error:
        record.error = f"{type(error).__name__}: {error}"[:300]
        record.end_s = record.end_s or time.perf_counter()
    return record


def _read(recording: Recording, item: Item, record: Record) -> None:
    """Enter what a stream said, and when. Raises HTTPError for an error that came in it."""
    first: dict[int, float] = {}
    last: dict[int, float] = {}
    pieces = 0
    for when, data in recording.events:
        event = _decoder.decode(data)
        if event.error is not None:
            raise HTTPError(0, f"error in the stream: {event.error}")
        for choice in event.choices:
            if not choice.text:
                continue
            if choice.index in last:
                record.itl_s.append(when - last[choice.index])
            else:
                first[choice.index] = when
            last[choice.index] = when
            pieces += 1
        if event.usage is not None:
            record.prompt_tokens = event.usage.prompt_tokens
            record.output_tokens = event.usage.completion_tokens
    record.output_tokens = max(record.output_tokens, pieces)
    if first:
        record.ttft_s = min(first.values()) - record.start_s
    gaps = item.output_token_count - 1
    record.tpot_s = [(last[i] - first[i]) / gaps for i in first if gaps > 0]


async def send_all(load: Load, items: list[Item]) -> tuple[list[Record], float]:
    """Send the workload; the records, in the order of the items, and the seconds it took."""
    gate = asyncio.Semaphore(load.max_concurrency or len(items))
    start = time.perf_counter()

    async def send(item: Item) -> Record:
        async with gate:
            return await send_one(load, item)

    tasks = [asyncio.create_task(send(item)) async for item in _paced(load, items)]
    records = await asyncio.gather(*tasks)
    return list(records), time.perf_counter() - start


async def _paced(load: Load, items: list[Item]) -> AsyncIterator[Item]:
    """The items at their times of arrival."""
    rng = random.Random(f"arrivals {load.seed}")
    due = time.perf_counter()
    for item in items:
        if load.request_rate != float("inf"):
            due += rng.gammavariate(load.burstiness, 1 / (load.request_rate * load.burstiness))
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        yield item
