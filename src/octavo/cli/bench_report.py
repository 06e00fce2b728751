"""From records to figures, a table and a JSON file."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from octavo.cli.bench_load import Record
from octavo.cli.machine import fingerprint
from octavo.sim.result import percentile as _percentile

METRICS = {"ttft": "time to first token", "tpot": "time per output token", "itl": "inter-token latency",
           "e2el": "end-to-end latency"}  # fmt: skip


def percentile(values: Iterable[float], p: float) -> float | None:
    """The p-th percentile (0 to 100), linear between neighbours; None of nothing."""
    found = _percentile(values, p)
    return found if math.isfinite(found) else None


def summarize(records: list[Record], duration_s: float, metrics: list[str], percentiles: list[float]) -> dict[str, Any]:
    """The figures of a run, under the names of `vllm bench serve` where they mean the same. Times in ms."""
    good = [r for r in records if r.error is None]
    output = sum(r.output_tokens for r in good)
    prompt = sum(r.prompt_tokens for r in good)
    series = {
        "ttft": [r.ttft_s for r in good if r.ttft_s is not None],
        "tpot": [x for r in good for x in r.tpot_s],
        "itl": [x for r in good for x in r.itl_s],
        "e2el": [r.end_s - r.start_s for r in good],
    }
    figures: dict[str, Any] = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(records) - len(good),
        "wrong_length": sum(r.output_tokens != r.wanted_tokens for r in good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / duration_s,
        "output_throughput": output / duration_s,
        "total_token_throughput": (output + prompt) / duration_s,
    }
    for name in metrics:
        values = series[name]
        figures[f"mean_{name}_ms"] = sum(values) / len(values) * 1e3 if values else None
        for p in percentiles:
            value = percentile(values, p)
            figures[f"p{p:g}_{name}_ms"] = None if value is None else value * 1e3
    figures["errors"] = sorted({r.error for r in records if r.error is not None})[:5]
    return figures


def print_report(title: str, figures: dict[str, Any], metrics: list[str], percentiles: list[float]) -> None:
    """Two tables: totals, then latencies."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    totals = Table(title=title, title_justify="left", show_header=False)
    totals.add_column()
    totals.add_column(justify="right")
    rows = [
        ("requests done / failed", f"{figures['completed']} / {figures['failed']}"),
        ("answers of another length than asked", f"{figures['wrong_length']}"),
        ("duration, s", f"{figures['duration']:.2f}"),
        ("input / output tokens", f"{figures['total_input_tokens']:,} / {figures['total_output_tokens']:,}"),
        ("requests/s", f"{figures['request_throughput']:.2f}"),
        ("output tokens/s", f"{figures['output_throughput']:.1f}"),
        ("input + output tokens/s", f"{figures['total_token_throughput']:.1f}"),
    ]
    if figures.get("peak_rss_bytes"):
        rows.append(("peak memory of the server, MB", f"{figures['peak_rss_bytes'] / 1e6:.0f}"))
    for row in rows:
        totals.add_row(*row)
    console.print(totals)
    if metrics:
        console.print(_latencies(figures, metrics, percentiles))
    for error in figures["errors"]:
        console.print(f"failed: {error}", style="red", markup=False)


def _latencies(figures: dict[str, Any], metrics: list[str], percentiles: list[float]) -> Any:
    from rich.table import Table

    table = Table()
    table.add_column("ms")
    for name in ["mean", *(f"p{p:g}" for p in percentiles)]:
        table.add_column(name, justify="right")
    for metric in metrics:
        keys = [f"mean_{metric}_ms", *(f"p{p:g}_{metric}_ms" for p in percentiles)]
        values = ["-" if figures[key] is None else f"{figures[key]:.1f}" for key in keys]
        table.add_row(METRICS[metric], *values)
    return table


def save(path: Path, setup: dict[str, Any], figures: dict[str, Any]) -> None:
    """Write one JSON object: when, on what machine, how, and what came out."""
    path.parent.mkdir(parents=True, exist_ok=True)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path.write_text(json.dumps({"date": when, "machine": fingerprint(), **setup, **figures}, indent=2) + "\n")


def result_path(folder: str | None, filename: str | None, name: str) -> Path:
    """Where a result goes: the names asked for, or one made from the run's name and the time."""
    made = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    return Path(folder or ".") / (filename or made)
