"""A plan as figures, a table and JSON."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from octavo.cli.text import size

if TYPE_CHECKING:
    from octavo.cli.plan_target import Target
    from octavo.sim.planner import Plan, Tried
    from octavo.sim.request import TimedRequest
    from octavo.sim.trials import Outcome, Point

_CURVE = (0.25, 0.5, 0.75, 0.9, 1.1)
"""Rates of the curve, as shares of what is sustained."""


def curve_rates(sustained: float, asked: float | None, curve: Any) -> list[float]:
    """Rates to measure latencies at, besides the one that the search confirmed: that of each replica where a rate is
    asked for, and some more for a curve if one is wanted."""
    each = {asked / _replicas(asked, sustained)} if asked else set()
    return sorted(each | ({share * sustained for share in _CURVE} if curve else set()))


def build(
    args: argparse.Namespace,
    target: Target,
    plan: Plan,
    curve: Sequence[Outcome],
    requests: Sequence[TimedRequest],
    num_left_out: int,
    seconds: float,
) -> dict[str, Any]:
    """Everything that is known, as plain values. Times in ms, sizes in bytes, rates in requests a second."""
    from octavo.sim.trials import mean_lengths

    best = plan.best
    num_input, num_output = mean_lengths(requests)
    system = best.candidate.system
    points = sorted([*best.points, *(outcome.points[0] for outcome in curve)], key=lambda point: point.rate)
    held = system.kv_spec.peak_blocks(math.ceil(num_input + num_output), 1)
    return {
        "model": target.model,
        "device": target.device,
        "workload": {
            "name": args.lengths or args.trace or args.workload,
            "mean_input_tokens": num_input,
            "mean_output_tokens": num_output,
            "num_requests": len(requests),
            "num_too_long": num_left_out,
            "percent_too_long": 100 * num_left_out / (len(requests) + num_left_out),
        },
        "objectives": {"ttft_ms": args.ttft_ms, "tpot_ms": args.tpot_ms, "percent": args.percent},
        "settings": best.candidate.settings | {"max_num_seqs": system.max_num_seqs},
        "memory": target.memory(best.candidate) | {"max_model_len": system.max_model_len},
        "concurrent_requests": min(system.max_num_seqs, system.num_blocks // held),
        "sustained": _sustained(best, num_output),
        "asked": _asked(args.rate, best, points),
        "costs": _costs(args, target, best, num_input, num_output),
        "alternatives": [_alternative(one, target) for one in plan.tried],
        "curve": [_point(point) for point in points],
        "notes": target.notes,
        "num_simulated_steps": plan.num_steps + sum(outcome.points[0].num_steps for outcome in curve),
        "seconds": seconds,
    }


def _sustained(best: Outcome, num_output: float) -> dict[str, Any]:
    point = best.best
    assert point is not None, "a rate above 0 has a trial that holds"
    tokens = best.rate * num_output
    return _point(point) | {"requests_per_s": best.rate, "output_tokens_per_s": tokens}


def _asked(rate: float | None, best: Outcome, points: Sequence[Point]) -> dict[str, Any] | None:
    if rate is None:
        return None
    replicas = _replicas(rate, best.rate)
    near = min(points, key=lambda point: abs(point.rate - rate / replicas))
    devices = replicas * best.candidate.num_devices
    return {"requests_per_s": rate, "replicas": replicas, "devices": devices, "each": _point(near)}


def _replicas(asked: float, sustained: float) -> int:
    return math.ceil(asked / sustained)


def _costs(
    args: argparse.Namespace, target: Target, best: Outcome, num_input: float, num_output: float
) -> dict[str, float | None]:
    """Of a million answer tokens, and of a million of all tokens, at the sustained rate."""
    devices = best.candidate.num_devices
    found: dict[str, float | None] = {}
    for name, tokens in (("output", num_output), ("total", num_input + num_output)):
        hours = 1e6 / (best.rate * tokens) / 3600
        price, watts = args.price_per_hour, target.watts
        found[f"price_per_million_{name}_tokens"] = None if price is None else hours * price * devices
        found[f"watt_hours_per_million_{name}_tokens"] = hours * watts * devices if watts else None
    return found


def _alternative(one: Tried, target: Target) -> dict[str, Any]:
    outcome = one.outcome
    return {
        "setting": one.setting,
        "value": one.value,
        "chosen": one.chosen,
        "requests_per_s": outcome.rate if outcome is not None and outcome.rate else None,
        "below_requests_per_s": None if outcome is None or math.isinf(outcome.below) else outcome.below,
        "num_blocks": None if outcome is None else target.memory(outcome.candidate)["num_blocks"],
        "why_not": one.why_not or None,
    }


def _point(point: Point) -> dict[str, Any]:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None or not math.isfinite(seconds) else seconds * 1e3

    return {
        "rate": point.rate,
        "holds": point.holds,
        "ttft_ms": ms(point.ttft_s),
        "tpot_ms": ms(point.tpot_s),
        "ttft_p50_ms": ms(point.ttft_p50_s),
        "tpot_p50_ms": ms(point.tpot_p50_s),
        "mean_running": point.mean_running,
        "num_preemptions": point.num_preemptions,
    }


def to_json(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1, allow_nan=False)


# ---- for people


def print_report(report: dict[str, Any]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(
        title=f"{report['model']} on {report['device']}", title_justify="left", show_header=False, box=SIMPLE_HEAD
    )
    table.add_column()
    table.add_column(overflow="fold")
    for label, text in _facts(report):
        table.add_row(label, text)
    console.print(table)
    table = Table(title="alternatives", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("setting")
    for heading in ("value", "blocks", "requests/s"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for one in report["alternatives"]:
        blocks = "-" if one["num_blocks"] is None else f"{one['num_blocks']:,}"
        verdict = "chosen" if one["chosen"] else one["why_not"] or ""
        table.add_row(one["setting"], str(one["value"]), blocks, _rate(one), verdict)
    console.print(table)
    for note in report["notes"]:
        console.print(f"* {note}", markup=False)
    console.print(f"{report['num_simulated_steps']:,} steps simulated, {report['seconds']:.1f} s")


def _facts(report: dict[str, Any]) -> list[tuple[str, str]]:
    memory, work, done = report["memory"], report["workload"], report["sustained"]
    wanted, settings, costs = report["objectives"], report["settings"], report["costs"]
    too_long = ""
    if work["num_too_long"]:
        num_made = work["num_requests"] + work["num_too_long"]
        too_long = (
            f"; {work['num_too_long']:,} of {num_made:,} requests ({work['percent_too_long']:.2g} %) are longer than "
            "the context and left out"
        )
    facts = [
        ("workload", f"{work['name']}: {work['mean_input_tokens']:.0f} tokens in, {work['mean_output_tokens']:.0f} out"
         f" on average{too_long}"),
        ("objectives", f"first token within {wanted['ttft_ms']:g} ms, each further one within {wanted['tpot_ms']:g} "
         f"ms, for {wanted['percent']:g} % of requests"),
        ("settings", ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in settings.items() if
         name != "num_devices" or report["device"] != "cpu")),
        ("weights", f"{size(memory['weight_bytes'])} on each device"),
        ("KV memory", f"{memory['num_blocks']:,} blocks of {settings['block_size']} tokens, {size(memory['kv_bytes'])} "
         f"on each device; {memory['kv_bytes_per_token']:,.0f} bytes per token; "
         f"context up to {memory['max_model_len']:,}"),
        *([("", memory["kv_groups"])] if memory["kv_groups"] else []),
        ("", memory["reason"]),
        ("at once", f"{report['concurrent_requests']:,} requests of mean length fit; "
         f"{done['mean_running']:.1f} run at the sustained rate"),
        ("sustained", f"{done['requests_per_s']:.3g} requests/s, {done['output_tokens_per_s']:,.0f} answer tokens/s; "
         f"first token {_ms(done['ttft_ms'])} (median {_ms(done['ttft_p50_ms'])}), "
         f"each further one {_ms(done['tpot_ms'])} (median {_ms(done['tpot_p50_ms'])})"),
    ]  # fmt: skip
    if report["asked"]:
        asked = report["asked"]
        facts.append(
            ("asked for", f"{asked['requests_per_s']:g} requests/s: {asked['replicas']} of these, {asked['devices']} "
             f"devices; first token {_ms(asked['each']['ttft_ms'])}, each further one {_ms(asked['each']['tpot_ms'])}")
        )  # fmt: skip
    for name, what in (("price", "price"), ("watt_hours", "Wh")):
        output, total = (costs[f"{name}_per_million_{kind}_tokens"] for kind in ("output", "total"))
        if output is not None:
            facts.append((what, f"{output:.3g} per million answer tokens, {total:.3g} per million of all"))
    return facts


def _rate(one: dict[str, Any]) -> str:
    if one["requests_per_s"] is not None:
        return f"{one['requests_per_s']:.3g}"
    below = one["below_requests_per_s"]
    return "-" if below is None else f"below {below:.3g}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms" if value >= 100 else f"{value:.1f} ms"
