"""`octavo bench serve`: load a server and time its streams.

Without `--base-url` a server of our own is started for the model, and stopped afterwards. Flags are named as those of
`vllm bench serve` where they mean the same.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from octavo.cli.bench_arguments import (
    add_result_arguments,
    add_workload_arguments,
    concurrency,
    load_workload,
    workload_name,
)
from octavo.cli.flags import ENGINE_GROUPS, Flag, add_flags, engine_config, flags_of, is_set
from octavo.cli.parser import integer
from octavo.errors import ConfigError, OctavoError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help="model to serve; with --base-url the one in whose tokens prompts are counted",
    )
    add_workload_arguments(parser)
    group = parser.add_argument_group("Load")
    group.add_argument("--base-url", metavar="URL", help="server to measure (default: start one for MODEL)")
    group.add_argument(
        "--server-pid", type=int, metavar="N", help="process of the --base-url server, to watch its memory"
    )
    group.add_argument("--endpoint", default="/v1/completions", help="path to post to (default: /v1/completions)")
    group.add_argument("--served-model-name", metavar="NAME", help="name to ask for (default: the first one listed)")
    group.add_argument("--api-key", metavar="KEY", help="sent as bearer token (also OCTAVO_API_KEY)")
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="X", help="requests a second (default: inf)"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="gaps' gamma shape; 1.0 is Poisson (default: 1.0)"
    )
    group.add_argument("--max-concurrency", type=integer, metavar="N", help="in flight (default: the workload's)")
    group.add_argument("--num-warmups", type=integer, default=1, metavar="N", help="requests before (default: 1)")
    group.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="force the workload's output lengths (default: on)",
    )
    group.add_argument("--extra-body", metavar="JSON", help="more fields for every request, as a JSON object")
    group.add_argument(
        "--ready-check-timeout-sec", type=float, default=60.0, metavar="X", help="wait for the server (default: 60)"
    )
    group.add_argument(
        "--percentile-metrics", default="ttft,tpot,itl", metavar="LIST", help="of ttft,tpot,itl,e2el (default: first 3)"
    )
    group.add_argument("--metric-percentiles", default="50,95,99", metavar="LIST", help="(default: 50,95,99)")
    add_result_arguments(parser)
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.cli.bench_report import print_report, result_path, save, summarize
    from octavo.cli.output_files import check_result

    metrics, percentiles = _metrics(args), _percentiles(args)
    check_result(args)
    with _server(args) as (url, pid):
        setup, records, duration_s, peak_rss = asyncio.run(_measure(args, url, pid))
    figures = summarize(records, duration_s, metrics, percentiles) | {"peak_rss_bytes": peak_rss}
    rate = "closed loop" if args.request_rate == float("inf") else f"{args.request_rate:g} requests/s"
    limit = f", {setup['max_concurrency']} in flight" if setup["max_concurrency"] else ""
    print_report(f"{setup['workload']} on {setup['model_id']}, {rate}{limit}", figures, metrics, percentiles)
    if args.save_result:
        path = result_path(args.result_dir, args.result_filename, f"serve-{setup['workload']}")
        save(path, setup, figures)
        print(f"written to {path}")
    return 1 if figures["failed"] else 0


def _metrics(args: argparse.Namespace) -> list[str]:
    from octavo.cli.bench_report import METRICS

    names = [name for name in args.percentile_metrics.split(",") if name]
    for name in names:
        if name not in METRICS:
            raise ConfigError("percentile_metrics", name, "of " + ", ".join(METRICS))
    return names


def _percentiles(args: argparse.Namespace) -> list[float]:
    try:
        values = [float(text) for text in args.metric_percentiles.split(",")]
    except ValueError:
        values = [-1.0]
    if not all(0 <= value <= 100 for value in values):
        raise ConfigError("metric_percentiles", args.metric_percentiles, "numbers from 0 to 100 with commas between")
    return values


async def _measure(
    args: argparse.Namespace, url: str, pid: int | None
) -> tuple[dict[str, Any], list[Any], float, int | None]:
    """How it was done, the records, the seconds it took, and the server's peak memory if its process is known."""
    import os

    from octavo.cli.bench_load import Load, send_all, send_one
    from octavo.cli.http_client import Endpoint, first_model
    from octavo.cli.process_tree import watch_memory

    at = Endpoint.parse(url, args.api_key or os.environ.get("OCTAVO_API_KEY", "").split(",")[0] or None)
    await _wait_until_ready(at, args.ready_check_timeout_sec)
    model = args.served_model_name or await first_model(at)
    items = load_workload(args, lambda: _tokenizer(args, model))
    load = Load(
        at=at,
        model=model,
        endpoint=args.endpoint,
        max_concurrency=concurrency(args),
        request_rate=_positive("request_rate", args.request_rate),
        burstiness=_positive("burstiness", args.burstiness),
        seed=args.seed,
        ignore_eos=args.ignore_eos,
        extra_body=_extra_body(args.extra_body),
    )
    for _ in range(args.num_warmups):
        record = await send_one(load, items[0])
        if record.error:
            raise OctavoError(f"the warm-up request failed: {record.error}")
    async with watch_memory(pid) as peak:
        records, duration_s = await send_all(load, items)
    setup = {
        "model_id": model,
        "workload": workload_name(args),
        "num_prompts": len(items),
        "request_rate": "inf" if args.request_rate == float("inf") else args.request_rate,
        "burstiness": args.burstiness,
        "max_concurrency": load.max_concurrency,
        "ignore_eos": args.ignore_eos,
        "seed": args.seed,
        "own_server": args.base_url is None,
    }
    return setup, records, duration_s, peak.rss_bytes or None


def _positive(name: str, value: float) -> float:
    if not value > 0:
        raise ConfigError(name, value, "above 0")
    return value


def _extra_body(text: str | None) -> dict[str, Any]:
    import json

    try:
        value = json.loads(text or "{}")
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise ConfigError("extra_body", text, "a JSON object")
    return value


async def _wait_until_ready(at: Any, timeout_s: float) -> None:
    from octavo.cli.http_client import HTTPError, get

    deadline = time.monotonic() + timeout_s
    while True:
        try:
            await asyncio.wait_for(get(at, "/v1/models"), 5)
            return
        except (OSError, HTTPError) as error:
            if time.monotonic() > deadline:
                raise OctavoError(f"no server at {at.host}:{at.port} after {timeout_s:g} s ({error})") from None
        await asyncio.sleep(0.05)


def _tokenizer(args: argparse.Namespace, served: str) -> Any:
    """The tokenizer of the model being served, to make prompts of known length. Its name may be that of no model here:
    the model that was given goes before."""
    from octavo.engine.build import find_files
    from octavo.engine.front_end import FrontEnd

    config = engine_config(args, model=args.model_tag or (None if is_set(args, "model") else served))
    return FrontEnd.load(config, find_files(config)).tokenizer


@contextlib.contextmanager
def _server(args: argparse.Namespace) -> Iterator[tuple[str, int | None]]:
    """URL and process of what to measure: as given, or a server started for as long as the context lasts."""
    if args.base_url:
        yield args.base_url, args.server_pid
        return
    port = _free_port()
    command = [sys.executable, "-m", "octavo.cli.main", "serve", *_server_words(args), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        _wait_for_port(process, port, args.ready_check_timeout_sec)
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _server_words(args: argparse.Namespace) -> list[str]:
    """The engine flags given to us, as words for `octavo serve`."""
    words = [args.model_tag] if args.model_tag else []
    for group in ENGINE_GROUPS:
        for flag in flags_of(group):
            if hasattr(args, flag.dest):
                words += _flag_words(flag, getattr(args, flag.dest))
    return words


def _flag_words(flag: Flag, value: Any) -> list[str]:
    if flag.kind == "bool":
        return [f"--{flag.name}" if value else f"--no-{flag.name}"]
    values = value if flag.is_list else [value]
    return [f"--{flag.name}={item}" for item in values]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for_port(process: subprocess.Popen[bytes], port: int, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise OctavoError("the server did not start" if process.poll() is not None else "the server took too long to start")
