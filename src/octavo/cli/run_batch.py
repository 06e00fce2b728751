"""`octavo run-batch`: a file of requests in OpenAI's batch format, answered without a server.

Each line names the route that it is for, and gets the reply that the server's route would send. The answers are
written in the order of the requests.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, is_set, set_flag
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.config import EngineConfig, HTTPConfig
    from octavo.server.batches.lines import LineResult


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    parser.add_argument("-i", "--input-file", required=True, metavar="FILE", help="requests, one JSON object per line")
    parser.add_argument("-o", "--output-file", required=True, metavar="FILE", help="where to write the answers")
    parser.add_argument(
        "--served-model-name", action="append", default=[], metavar="TEXT", help="name that the requests give the model"
    )
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.config import HTTPConfig

    source, target = Path(args.input_file), Path(args.output_file)
    if not source.is_file():
        raise ConfigError("input_file", args.input_file, "a file of requests, one per line")
    if target.exists() and target.samefile(source):
        raise ConfigError("output_file", args.output_file, "another file than the requests")
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "thread")
    config = engine_config(args, model=args.model)
    http = HTTPConfig(served_model_name=tuple(args.served_model_name))
    with source.open("rb") as lines, target.open("wb") as out:
        num_lines, num_failed = asyncio.run(_answer_all(config, http, lines, out))
    print(f"octavo: {num_lines - num_failed} of {num_lines} requests answered", file=sys.stderr)
    return 1 if num_failed else 0


async def _answer_all(config: EngineConfig, http: HTTPConfig, lines: IO[bytes], out: IO[bytes]) -> tuple[int, int]:
    """(requests, failed ones)."""
    from octavo.engine.async_engine import AsyncEngine
    from octavo.server.batches.run import as_they_end, run_raw
    from octavo.server.responses.store import ResponseStore
    from octavo.server.routes import generation_routes, make_context

    engine = await AsyncEngine.start(config)
    routes = generation_routes(make_context(engine, http), ResponseStore(http.max_stored_bytes))
    order = _InOrder(out)

    def work() -> Iterator[tuple[int, Coroutine[Any, Any, LineResult]]]:
        filled = (line for line in lines if line.strip())
        for number, line in enumerate(filled):
            yield number, run_raw(routes, line)

    try:
        async with contextlib.aclosing(as_they_end(work(), engine.info.max_num_seqs)) as results:
            async for number, result in results:
                order.put(number, result)
    finally:
        await engine.close()
    return order.num_written, order.num_failed


class _InOrder:
    """Writes results in the order of their numbers, each as soon as those before it are there."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out = out
        self._early: dict[int, LineResult] = {}
        self.num_written = 0
        self.num_failed = 0

    def put(self, number: int, result: LineResult) -> None:
        self._early[number] = result
        while (ready := self._early.pop(self.num_written, None)) is not None:
            self._out.write(ready.text())
            self.num_written += 1
            self.num_failed += not ready.ok
        self._out.flush()
