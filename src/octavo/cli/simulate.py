"""`octavo simulate`: a workload on a simulated system, by the real scheduler and block manager."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.output_files import check_file
from octavo.cli.parser import integer

if TYPE_CHECKING:
    from octavo.sim.paper_systems import PaperSystem
    from octavo.sim.result import SimResult

ALL = "all"
MOST_BLOCKS = 1 << 24
MOST_SEQS = 1 << 16
WHOLE_ANSWERS = (
    "fastertransformer hands out answers whole, when its batch ends: TTFT is that moment, and there is no TPOT"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", default="opt-13b", metavar="MODEL", help="opt-13b, opt-66b, opt-175b or llama-13b"
    )
    load = parser.add_argument_group("Workload")
    load.add_argument("--workload", default="sharegpt", metavar="NAME", help="see --list-workloads (default: sharegpt)")
    load.add_argument("--list-workloads", action="store_true", help="name the workloads and end")
    load.add_argument(
        "--rate", type=float, nargs="+", default=None, metavar="R", help="requests a second; several make a curve"
    )
    load.add_argument(
        "--duration",
        type=float,
        default=600.0,
        metavar="S",
        help="seconds of arrivals, of 250000 requests at most (default: 600)",
    )
    load.add_argument("--seed", type=integer, default=0, metavar="N", help="of lengths and arrivals (default: 0)")
    load.add_argument(
        "--arrivals",
        metavar="NAME",
        help="poisson, bursty, artifact (the paper's own draws) or trace (default: the workload's own)",
    )
    load.add_argument("--cv", type=float, metavar="X", help="variation of the gaps of bursty arrivals (default: 4)")
    load.add_argument("--trace", metavar="FILE", help="lengths or trace to read instead of the bundled ones")
    load.add_argument(
        "--n", type=integer, metavar="N", help="answers to a prompt of the workload parallel (default: 2)"
    )
    load.add_argument("--beam-width", type=integer, metavar="N", help="beams of the workload beam (default: 4)")
    what = parser.add_argument_group("System")
    what.add_argument(
        "--kv-policy", nargs="+", default=["paged"], metavar="NAME", help="systems to compare, or all (default: paged)"
    )
    what.add_argument("--block-size", type=integer, default=16, metavar="N", help="tokens per KV block (default: 16)")
    what.add_argument("--num-blocks", type=integer, metavar="N", help="KV blocks (default: the paper's)")
    what.add_argument("--max-num-seqs", type=integer, metavar="N", help="sequences at once (default: the paper's)")
    what.add_argument("--max-num-batched-tokens", type=integer, metavar="N", help="tokens in a step (default: 2560)")
    what.add_argument(
        "--batch-size",
        type=integer,
        metavar="N",
        help="requests in a batch of fastertransformer (default: the paper's)",
    )
    what.add_argument(
        "--preemption",
        default="recompute",
        metavar="WAY",
        help="of paged: recompute, swap or auto (default: recompute)",
    )
    what.add_argument(
        "--num-host-blocks", type=integer, default=0, metavar="N", help="blocks of host memory to swap to (default: 0)"
    )
    what.add_argument("--enable-prefix-caching", action="store_true", help="reuse the KV of prompts that begin alike")
    what.add_argument("--until", type=float, metavar="S", help="end at this simulated time, whoever still runs")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON; - for the terminal, alone")


def run(args: argparse.Namespace) -> int:
    from octavo.sim.paper_systems import REQUEST_LEVEL
    from octavo.traces.catalogue import CATALOGUE, lookup, workload

    if args.list_workloads:
        for name, entry in CATALOGUE.items():
            print(f"{name:<22}{entry.summary}")
        return 0
    _check(args)
    if args.json != "-":
        check_file("json", args.json)
    entry = lookup(args.workload)
    notes: dict[str, None] = {}
    rates: list[float | None] = args.rate or [None]
    rows = []
    for rate in rates:
        requests = workload(
            args.workload,
            rate,
            args.duration,
            args.seed,
            arrivals=args.arrivals,
            trace=None if args.trace is None else Path(args.trace),
            block_size=args.block_size,
            max_model_len=_max_model_len(args.model),
            tell=notes.setdefault,
            **_of_few_workloads(args),
        )
        for policy in _policies(args.kv_policy):
            started = time.perf_counter()
            label = policy if rate is None else f"{policy}, {rate:g} requests/s"
            result = _simulate(_system(args, policy), requests, args.until, label)
            if policy == REQUEST_LEVEL:
                notes.setdefault(WHOLE_ANSWERS)
            rows.append(_figures(policy, rate, len(requests), result, time.perf_counter() - started))
    source = entry.summary if args.trace is None else f"from {Path(args.trace).name}"
    _report(args, source, rows, list(notes))
    return 0


def _check(args: argparse.Namespace) -> None:
    from octavo.errors import ConfigError

    for name in ("duration", "until"):
        value = getattr(args, name)
        if value is not None and not 0 < value <= 1e7:
            raise ConfigError(name, value, "seconds above 0, at most 10000000")
    if not 1 <= args.block_size <= 256 or args.block_size & (args.block_size - 1):
        raise ConfigError("block_size", args.block_size, "a power of two from 1 to 256")
    for name, least, most in (
        ("num_blocks", 1, MOST_BLOCKS),
        ("num_host_blocks", 0, MOST_BLOCKS),
        ("max_num_seqs", 1, MOST_SEQS),
        ("batch_size", 1, MOST_SEQS),
        ("max_num_batched_tokens", 1, 1 << 20),
        ("n", 1, MOST_SEQS),
        ("beam_width", 1, MOST_SEQS),
    ):
        value = getattr(args, name)
        if value is not None and not least <= value <= most:
            raise ConfigError(name, value, f"from {least} to {most}")
    _check_paged(args)
    _of_few_workloads(args)
    if args.batch_size is not None and not {"fastertransformer", ALL}.intersection(args.kv_policy):
        raise ConfigError(
            "batch_size", args.batch_size, "left out but for fastertransformer: the others have no batches"
        )
    for rate in args.rate or ():
        if not 0 < rate <= 1e5:
            raise ConfigError("rate", rate, "requests a second above 0, at most 100000")


def _of_few_workloads(args: argparse.Namespace) -> dict[str, Any]:
    """Settings that were given and that the workload has a use for.

    Raises:
        ConfigError: For one that it could only ignore.
    """
    from octavo.errors import ConfigError
    from octavo.traces.catalogue import CATALOGUE, lookup

    uses = lookup(args.workload).uses
    found: dict[str, Any] = {}
    for name in ("n", "beam_width"):
        value = getattr(args, name)
        if value is None:
            continue
        if name not in uses:
            users = " or ".join(user for user, entry in CATALOGUE.items() if name in entry.uses)
            raise ConfigError(name, value, f"left out with {args.workload}: only {users} has a use for it")
        found[name] = value
    if args.cv is not None:
        if args.arrivals != "bursty":
            raise ConfigError("cv", args.cv, "left out without --arrivals bursty: other arrivals have no use for it")
        found["cv"] = args.cv
    return found


def _check_paged(args: argparse.Namespace) -> None:
    """What only the paged system has."""
    from octavo.core.preemption import WAYS
    from octavo.errors import ConfigError

    if args.preemption not in WAYS:
        raise ConfigError("preemption", args.preemption, "one of " + ", ".join(WAYS))
    if args.enable_prefix_caching and args.kv_policy not in (["paged"], [ALL]):
        raise ConfigError("enable_prefix_caching", True, "left out but for paged: the others share nothing")
    if args.num_host_blocks and args.kv_policy not in (["paged"], [ALL]):
        raise ConfigError("num_host_blocks", args.num_host_blocks, "0 but for paged: the others never swap")
    if args.preemption != "recompute":
        if args.kv_policy not in (["paged"], [ALL]):
            raise ConfigError("preemption", args.preemption, "left out but for paged: the others preempt nobody")
        if not args.num_host_blocks:
            raise ConfigError("preemption", args.preemption, "given with num_host_blocks above 0: blocks to swap to")
    elif args.num_host_blocks:
        raise ConfigError("num_host_blocks", args.num_host_blocks, "0 with preemption recompute: nobody is swapped")


def _max_model_len(model: str) -> int:
    from octavo.errors import ConfigError
    from octavo.sim.model_shape import PAPER_MODELS

    if model not in PAPER_MODELS:
        raise ConfigError("model", model, "one of " + ", ".join(PAPER_MODELS))
    return PAPER_MODELS[model].shape.max_len


def _policies(names: list[str]) -> list[str]:
    from octavo.sim.paper_systems import POLICIES

    return list(POLICIES) if names == [ALL] else names


def _system(args: argparse.Namespace, policy: str) -> PaperSystem:
    import msgspec

    from octavo.sim.paper_systems import BATCH_SIZES, paper_system

    batch_size = args.batch_size
    if batch_size is None and args.workload == "alpaca" and args.model in BATCH_SIZES:
        batch_size = BATCH_SIZES[args.model][1]
    chosen = paper_system(
        args.model,
        policy,
        block_size=args.block_size,
        batch_size=batch_size,
        preemption=args.preemption,
        num_host_blocks=args.num_host_blocks,
        enable_prefix_caching=args.enable_prefix_caching,
    )
    names = ("num_blocks", "max_num_seqs", "max_num_batched_tokens")
    asked = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return chosen._replace(system=msgspec.structs.replace(chosen.system, **asked))


def _simulate(chosen: PaperSystem, requests: list[Any], until_s: float | None, label: str) -> SimResult:
    from octavo.cli.simulate_progress import SimulationProgress
    from octavo.sim.simulator import simulate

    beams = None
    if any(request.beam_width for request in requests):
        from octavo.traces.beams import recorded_beams

        beams = recorded_beams()
    with SimulationProgress(label, requests) as progress:
        probes = (progress,) if sys.stderr.isatty() else ()
        return simulate(chosen.system, chosen.cost, requests, probes=probes, until_s=until_s, beams=beams)


def _figures(policy: str, rate: float | None, count: int, result: SimResult, wall_s: float) -> dict[str, Any]:
    import math

    from octavo.sim.paper_systems import REQUEST_LEVEL

    return {
        "kv_policy": policy,
        "rate": rate,
        "num_requests": count,
        "num_finished": len(result.finished),
        "normalized_latency_s": result.normalized_latency_s,
        "ttft_p50_s": result.ttft_s(50),
        "ttft_p99_s": result.ttft_s(99),
        "tpot_p50_s": math.inf if policy == REQUEST_LEVEL else result.tpot_s(50),
        "latency_p50_s": result.latency_s(50),
        "tokens_per_s": result.throughput_tokens_per_s,
        "mean_running": result.mean_running,
        "num_preemptions": result.num_preemptions,
        "num_prefix_hit_tokens": result.num_prefix_hit_tokens,
        "simulated_s": result.end_s,
        "num_steps": result.num_steps,
        "wall_s": wall_s,
    }


def _report(args: argparse.Namespace, source: str, rows: list[dict[str, Any]], notes: list[str]) -> None:
    import json
    import math

    text = json.dumps(
        [{k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()} for row in rows],
        indent=1,
    )
    if args.json == "-":
        print(text)
        for note in notes:
            print(note, file=sys.stderr)
        return
    _print_table(f"{args.model}, {args.workload}: {source}", rows)
    for note in notes:
        print(f"* {note}")
    if args.json is not None:
        Path(args.json).write_text(text + "\n")
        print(f"written to {args.json}")


def _number(value: float, digits: int) -> str:
    """A dash where nothing has finished."""
    return f"{value:.{digits}f}" if value < float("inf") else "-"


def _print_table(title: str, rows: list[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("system")
    for name in ("req/s", "s/token", "TTFT s", "TPOT ms", "token/s", "running", "preempted", "faster"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row["kv_policy"],
            "trace" if row["rate"] is None else f"{row['rate']:g}",
            _number(row["normalized_latency_s"], 3),
            _number(row["ttft_p50_s"], 2),
            _number(row["tpot_p50_s"] * 1e3, 1),
            f"{row['tokens_per_s']:.0f}",
            f"{row['mean_running']:.2f}",
            f"{row['num_preemptions']}",
            f"{row['simulated_s'] / row['wall_s']:.0f}",
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(
        "s/token: mean latency by output length. TTFT, TPOT: medians. running: sequences in a step. faster: than real."
    )
