"""`octavo plan`: does a model fit, what does it sustain within given latencies, with which settings, and at what cost.

The answer comes from simulations of the real scheduler and block manager, with the time of steps from published figures
(accelerators) or from measurements of this machine (`--device cpu`).
"""

from __future__ import annotations

import argparse
import os
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, flags_of
from octavo.cli.output_files import check_file
from octavo.cli.parser import integer
from octavo.config import EngineConfig, SpeculationConfig

if TYPE_CHECKING:
    from octavo.cli.plan_progress import PlanProgress
    from octavo.cli.plan_target import Target
    from octavo.sim.planner import Jobs
    from octavo.sim.request import TimedRequest
    from octavo.sim.trials import Outcome

MOST_REQUESTS = 6000
"""Made for the longest trial."""
MOST_TOKENS = 8_000_000
"""Of all prompts that are made: they are kept in memory."""
MOST = 1e12
"""Of rates, prices and a device's figures."""
MOST_MS = 1e9
"""Of an objective."""
_SAMPLE = 200
"""Requests that are made to see how long they are."""
OF_ACCELERATORS = frozenset(
    ("model", "max_model_len", "block_size", "kv_cache_dtype", "kv_policy", "enable_prefix_caching", "memory_fraction",
     "kv_cache_memory_bytes", "num_blocks", "max_num_seqs", "max_num_batched_tokens", "admission", "depth",
     "hf_overrides")
)  # fmt: skip
"""Settings of the server that a plan for an accelerator heeds. All of them count where the server's machine is."""
RESIDENCES = 2
"""A trial of the search lasts about so many times as long as a request is in the system."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_tag", nargs="?", metavar="MODEL",
        help="well-known name (llama-3.1-8b, opt-13b, ...), config.json, or what octavo serve takes",
    )  # fmt: skip
    group = parser.add_argument_group("Device")
    group.add_argument(
        "--device", default="cpu", metavar="NAME",
        help="cpu (this machine), a100-40gb, a100-80gb, h100, h200, l4, rtx4090, or custom with the next three",
    )  # fmt: skip
    group.add_argument("--device-memory", type=float, metavar="GB", help="memory of each device, in 10^9 bytes")
    group.add_argument("--bandwidth", type=float, metavar="GB/S", help="of that memory")
    group.add_argument("--tflops", type=float, metavar="X", help="16-bit arithmetic, dense, in 10^12 a second")
    group.add_argument(
        "--num-devices", type=integer, metavar="N", help="devices that share the model (default: 1, 2, 4, 8 are tried)"
    )
    group.add_argument("--fit", metavar="FILE", help="of octavo bench fit, for cpu (default: a quick measurement)")
    group = parser.add_argument_group("Workload")
    group.add_argument("--workload", default="sharegpt", metavar="NAME", help="of octavo simulate --list-workloads")
    group.add_argument(
        "--lengths", metavar="IN:OUT", help="in place of a workload: mean tokens of prompts and answers, or a CSV file"
    )
    group.add_argument("--trace", metavar="FILE", help="file that the workload is read from")
    group.add_argument("--rate", type=float, metavar="X", help="requests a second that must be carried")
    group.add_argument("--seed", type=integer, default=0, metavar="N", help="of lengths and arrivals (default: 0)")
    group = parser.add_argument_group("Objectives")
    group.add_argument("--ttft-ms", type=float, default=2000.0, metavar="X", help="time to first token (default: 2000)")
    group.add_argument("--tpot-ms", type=float, default=100.0, metavar="X", help="time per token after (default: 100)")
    group.add_argument(
        "--percent", type=float, default=90.0, metavar="X", help="of requests for which each must hold (default: 90)"
    )
    group = parser.add_argument_group("Costs")
    group.add_argument("--price-per-hour", type=float, metavar="X", help="of one device, in any currency")
    group.add_argument("--watts", type=float, metavar="X", help="of one device (default: its board limit, where known)")
    group = parser.add_argument_group("Result")
    group.add_argument("--json", metavar="FILE", help="also write everything as JSON; - for the terminal, alone")
    group.add_argument("--plot", metavar="FILE", help="draw latencies over the rate: .png, .svg or .pdf")
    add_flags(parser, [group for group in ENGINE_GROUPS if group is not SpeculationConfig])


def run(args: argparse.Namespace) -> int:
    from octavo.cli import plan_report

    check(args)
    report = make_report(args)
    if args.json == "-":
        print(plan_report.to_json(report))
        return 0
    plan_report.print_report(report)
    if args.json:
        Path(args.json).write_text(plan_report.to_json(report) + "\n")
        print(f"written to {args.json}")
    if args.plot:
        from octavo.cli.plan_plot import draw

        draw(report, Path(args.plot))
        print(f"drawn to {args.plot}")
    return 0


def make_report(args: argparse.Namespace) -> dict[str, Any]:
    """Search, and everything that is known then; see `plan_report.build`."""
    from octavo.cli import plan_report
    from octavo.cli.plan_progress import plan_progress
    from octavo.sim.planner import search
    from octavo.sim.trials import CONFIRMS, Objectives, measured_at, residence_s

    started = time.perf_counter()
    objectives = Objectives(ttft_s=args.ttft_ms / 1e3, tpot_s=args.tpot_ms / 1e3, percent=args.percent)
    with plan_progress() as progress, Workers(progress) as workers:
        progress.begin("model and memory" if args.fit or args.device != "cpu" else "steps of this machine")
        target = make_target(args)
        progress.begin("requests")
        requests, num_left_out = make_requests(args, target)
        horizon_s = RESIDENCES * residence_s(target.start, requests, objectives)
        plan = search(target.start, target.axes, requests, objectives, horizon_s=horizon_s, run_all=workers.run_all)
        rates = plan_report.curve_rates(plan.best.rate, args.rate, args.json or args.plot)
        long_s = CONFIRMS * horizon_s
        jobs = [partial(measured_at, plan.best.candidate, requests, objectives, rate, long_s) for rate in rates]
        curve = workers.run_all("latencies", jobs)
    return plan_report.build(args, target, plan, curve, requests, num_left_out, time.perf_counter() - started)


def check(args: argparse.Namespace) -> None:
    """Raises ConfigError for a number that makes no sense."""
    from octavo.errors import ConfigError

    for name in ("ttft_ms", "tpot_ms"):
        if not 0 < getattr(args, name) <= MOST_MS:
            raise ConfigError(name, getattr(args, name), f"milliseconds above 0, at most {MOST_MS:g}")
    if not 1 <= args.percent <= 100:
        raise ConfigError("percent", args.percent, "from 1 to 100")
    for name in ("rate", "price_per_hour", "watts", "device_memory", "bandwidth", "tflops"):
        value = getattr(args, name)
        if value is not None and not 0 < value <= MOST:
            raise ConfigError(name, value, f"above 0, at most {MOST:g}")
    for name in ("device_memory", "bandwidth", "tflops", "num_devices"):
        if args.device == "cpu" and getattr(args, name) is not None:
            raise ConfigError(name, getattr(args, name), "left out with the device cpu: this machine is measured")
    if args.fit and args.device != "cpu":
        raise ConfigError("fit", args.fit, "left out: only the device cpu is measured")
    if args.json != "-":
        check_file("json", args.json)
    if args.plot is not None:
        from octavo.cli.plan_plot import check_drawing

        if Path(args.plot).suffix not in (".png", ".svg", ".pdf"):
            raise ConfigError("plot", args.plot, "a file that ends in .png, .svg or .pdf")
        check_file("plot", args.plot)
        check_drawing(args.plot)
    if args.num_devices is not None and not 1 <= args.num_devices <= 1024:
        raise ConfigError("num_devices", args.num_devices, "from 1 to 1024")


def check_settings(args: argparse.Namespace, config: EngineConfig) -> None:
    """Raises ConfigError for a setting of the server that the plan could only ignore."""
    from octavo.errors import ConfigError

    policy = config.cache.kv_policy
    if policy != "paged":
        raise ConfigError("kv_policy", policy, "paged: nothing else is planned for; octavo simulate compares them")
    if args.device == "cpu":
        return
    for flag in (flag for group in ENGINE_GROUPS for flag in flags_of(group)):
        if flag.field not in OF_ACCELERATORS and hasattr(args, flag.dest):
            allowed = f"left out with the device {args.device}: it would change nothing of the plan"
            raise ConfigError(flag.field, getattr(args, flag.dest), allowed)


def make_target(args: argparse.Namespace) -> Target:
    """What is planned for; see `plan_target`."""
    from octavo.cli.plan_target import accelerator_target, cpu_target

    config = engine_config(args, model=args.model_tag)
    check_settings(args, config)
    if args.device == "cpu":
        return cpu_target(args, config)
    return accelerator_target(args, config)


def make_requests(args: argparse.Namespace, target: Target) -> tuple[list[TimedRequest], int]:
    """Requests that arrive once a second on average, and how many more were made that the context has no room for.
    What is to be known of their file is added to the target's notes.

    Raises:
        ConfigError: For an unknown workload, a bad file, or requests of which none fits.
    """
    from octavo.errors import ConfigError
    from octavo.sim.arrivals import poisson
    from octavo.sim.trials import at_rate
    from octavo.sim.workload import from_lengths
    from octavo.traces.catalogue import workload

    trace = None if args.trace is None else Path(args.trace)
    max_model_len = target.start.system.max_model_len
    notes: dict[str, None] = {}

    def make(count: int) -> list[TimedRequest]:
        if args.lengths is None:
            return workload(args.workload, 1.0, float(count), args.seed, trace=trace, tell=notes.setdefault)
        arrivals = poisson(1.0, float(count), Random(f"{args.seed} arrivals"))
        return from_lengths(lengths(args, max_model_len), arrivals, Random(f"{args.seed} lengths"))

    sample = make(_SAMPLE)
    if any(request.beam_width for request in sample):
        raise ConfigError(
            "workload", args.workload, "one without beam searches: their choices were recorded, not planned"
        )
    num_tokens = sum(len(request.token_ids) for request in sample)
    everyone = make(max(_SAMPLE, min(MOST_REQUESTS, MOST_TOKENS * len(sample) // max(1, num_tokens))))
    target.notes.extend(notes)
    fitting = [r for r in everyone if len(r.token_ids) + r.num_output_tokens <= max_model_len]
    if not fitting:
        longest = min(len(r.token_ids) + r.num_output_tokens for r in everyone)
        allowed = f"at least {longest}: the shortest request of the workload has so many tokens, prompt and answer"
        raise ConfigError("max_model_len", max_model_len, allowed)
    # Without those in between the others would come less than once a second.
    return at_rate(fitting, len(everyone) / len(fitting)), len(everyone) - len(fitting)


def lengths(args: argparse.Namespace, max_model_len: int) -> list[tuple[int, int]]:
    """Of --lengths: drawn around two means, or read from a file."""
    from octavo.traces.lengths import read_lengths

    means = args.lengths.split(":")
    if len(means) == 2 and all(mean.isdigit() for mean in means):
        return drawn_lengths(int(means[0]), int(means[1]), max_model_len, Random(f"{args.seed} lengths"))
    return read_lengths(Path(args.lengths))


def drawn_lengths(num_input: int, num_output: int, most: int, rng: Random) -> list[tuple[int, int]]:
    """Lengths whose spread equals their mean (exponential), as that of chat roughly is.

    Args:
        most: Tokens that there is room for; the means must fit, single draws may be longer.
    """
    from octavo.errors import ConfigError

    if num_input < 1 or num_output < 1 or num_input + num_output > most:
        allowed = f"IN:OUT of at least 1:1, and together at most the context of {most} tokens that there is room for"
        raise ConfigError("lengths", f"{num_input}:{num_output}", allowed)

    def draw(mean: int) -> int:
        return max(1, round(rng.expovariate(1 / mean)))

    return [(draw(num_input), draw(num_output)) for _ in range(MOST_REQUESTS)]


class Workers:
    """Processes that run jobs, as many as there are cores, at most two; none where there is one core.

    Args:
        progress: Told of each job that ends.
    """

    def __init__(self, progress: PlanProgress) -> None:
        self._progress = progress
        self._pool: Any = None

    def __enter__(self) -> Workers:
        if len(os.sched_getaffinity(0)) > 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) > 1:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            # Fresh interpreters: a fork would copy whatever threads and locks this process has.
            self._pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
        return self

    def run_all(self, what: str, jobs: Jobs) -> list[Outcome]:
        """The results of independent jobs, in order; see `octavo.sim.planner.RunAll`."""
        self._progress.begin(what, len(jobs))
        if self._pool is None or len(jobs) < 2:
            return [self._ended(job()) for job in jobs]
        from concurrent.futures import as_completed

        futures = [self._pool.submit(job) for job in jobs]
        for future in as_completed(futures):
            self._ended(future.result())
        return [future.result() for future in futures]

    def _ended(self, outcome: Outcome) -> Outcome:
        self._progress.advance()
        return outcome

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is None:
            return
        if kind is not None:  # after Ctrl-C or an error nobody waits for what still runs
            for process in list((self._pool._processes or {}).values()):
                process.kill()
        self._pool.shutdown(wait=kind is None, cancel_futures=True)
