"""The prefix workload with the prefix cache on and off: time to first token and throughput.

    python benchmarks/prefix.py [MODEL] [--rounds 5] [--json FILE] [--flag=value of octavo serve]

64 requests of 544 tokens, the first 512 the same, 64 answer tokens each, 16 at once, streamed over HTTP. Two servers,
alike but for the cache, take turns; a round has a text of its own, so its first requests find nothing. Ratios are taken
within a round, medians over the rounds; requests of the first wave (sent before any answer was complete) are told
apart.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from start import connect, free_port

from octavo.cli.bench_load import Load, Record, send_all, send_one
from octavo.cli.bench_report import percentile, save
from octavo.cli.bench_workload import CONCURRENCY, Item, synthetic
from octavo.cli.http_client import Endpoint
from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.engine.front_end import FrontEnd

WAYS = {"on": "--enable-prefix-caching", "off": "--no-enable-prefix-caching"}


@contextlib.contextmanager
def server(model: str, flags: list[str]) -> Iterator[Load]:
    """A server of this model, and how to load it."""
    port = free_port()
    words = [sys.executable, "-m", "octavo.cli.main", "serve", model, "--port", str(port)]
    process = subprocess.Popen([*words, "--served-model-name", "m", *flags], stdout=subprocess.DEVNULL)
    try:
        connect(port, process, time.perf_counter() + 120).close()
        yield Load(at=Endpoint("127.0.0.1", port), model="m", max_concurrency=CONCURRENCY["prefix"])
    finally:
        process.terminate()
        process.wait(60)


def figures_of(records: list[Record], duration_s: float) -> dict[str, Any]:
    failed = [record.error for record in records if record.error is not None]
    if failed:
        raise RuntimeError(f"{len(failed)} requests failed: {failed[0]}")
    wave = min(record.end_s for record in records)
    firsts = {"ttft": records, "first_wave_ttft": [record for record in records if record.start_s < wave]}
    found: dict[str, Any] = {"output_throughput": sum(record.output_tokens for record in records) / duration_s}
    for name, some in firsts.items():
        values = [record.ttft_s or 0.0 for record in some]
        found |= {f"{name}_p{p}_ms": (percentile(values, p) or 0.0) * 1e3 for p in (50, 95)}
        found[f"{name}_mean_ms"] = statistics.fmean(values) * 1e3
    return found


def one_round(loads: dict[str, Load], items: list[Item]) -> dict[str, dict[str, Any]]:
    """Each way once, on the same text."""
    return {way: figures_of(*asyncio.run(send_all(load, items))) for way, load in loads.items()}


def medians(rounds: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Per figure: with the cache, without it, and the ratio of the two within a round."""
    table = {}
    for name in rounds[0]["on"]:
        ratio = [r["off"][name] / r["on"][name] for r in rounds]
        table[name] = {way: statistics.median(r[way][name] for r in rounds) for way in WAYS}
        table[name] |= {"off/on": statistics.median(ratio), "least": min(ratio), "most": max(ratio)}
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write every round with the machine's fingerprint")
    args, flags = parser.parse_known_args()
    config = EngineConfig.of(model=args.model)
    tokenizer = FrontEnd.load(config, find_files(config)).tokenizer
    load_before = os.getloadavg()[0]
    with contextlib.ExitStack() as stack:
        loads = {way: stack.enter_context(server(args.model, [*flags, flag])) for way, flag in WAYS.items()}
        for load in loads.values():  # not a text of the workload
            asyncio.run(send_one(load, synthetic("single", tokenizer)[0]))
        rounds = []
        for seed in range(args.rounds):
            rounds.append(one_round(loads, synthetic("prefix", tokenizer, seed)))
            p50 = {way: found["ttft_p50_ms"] for way, found in rounds[-1].items()}
            print(f"round {seed}: TTFT p50 {p50['on']:.0f} ms with the cache, {p50['off']:.0f} ms without", flush=True)
    table = medians(rounds)
    print(f"{args.model}, {args.rounds} rounds; load average before {load_before:.2f}, after {os.getloadavg()[0]:.2f}")
    print(f"{'median of rounds':<26}{'cache on':>10}{'off':>10}{'off/on':>8}{'from':>8}{'to':>8}")
    for name, row in table.items():
        print(
            f"{name:<26}{row['on']:>10.1f}{row['off']:>10.1f}{row['off/on']:>8.2f}{row['least']:>8.2f}{row['most']:>8.2f}"
        )
    if args.json:
        setup = {"model": args.model, "flags": flags, "load_before": load_before}
        save(Path(args.json), setup, {"medians": table, "rounds": rounds})


if __name__ == "__main__":
    main()
