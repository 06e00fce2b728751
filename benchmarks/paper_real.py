"""The paper's comparison for real: paging against Orca and FasterTransformer on this machine's kernels and clock.

    python benchmarks/paper_real.py [--rounds 3] [--minutes 25] [--quantization none] [--jsonl FILE]

Requests with ShareGPT's lengths divided by `--scale` arrive as a Poisson process in real time at one engine in this
process. Context and KV pool are divided by the same number, so the pool holds as many mean requests (31) and as many
whole contexts (7) as the paper's A100 does with OPT-13B. Each system is the same engine with another `--kv-policy`:
same weights, same kernels, same steps. Nothing is cached between requests, as in the paper.

A system's *sustained rate* is the rate of arrivals at which the mean normalised latency (end-to-end latency by output
tokens) of the requests that arrive after the warm-up is `--threshold`: 0.2 s per token by default, five tokens a
second, about as fast as people read. Rates are searched, upwards from below the threshold, downwards from above it, and
the rate is read off the line between the two around it. The search begins where the project's simulator expects the
answer, with step times fitted to a first run. Systems take turns; arrivals and lengths of a round are one draw for all.

A run in which other programs took more than `--disturbed` of the processors' time is counted at the end: its round
should be measured again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from octavo import registry
from octavo.cli.bench_fit import fit_cost
from octavo.cli.machine import fingerprint
from octavo.cli.step_watch import RealRun, simulated_system
from octavo.config import EngineConfig
from octavo.core.kv_policies import KV_POLICIES
from octavo.engine.build import find_files
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.sim.capacity import crossing, sustained_rate
from octavo.sim.cost_model import StepWork
from octavo.sim.request import TimedRequest
from octavo.sim.result import RequestRecord
from octavo.sim.simulator import simulate
from octavo.traces.lengths import sharegpt

PAPER_SLOTS, PAPER_CONTEXT, PAPER_STEP_TOKENS = 15_728, 2048, 2560
"""OPT-13B on an A100 with 40 GB: KV slots (table 1), context, tokens in a step (the authors' scripts)."""
STEP_UP = 1.15
"""From one rate of a search to the next."""
MOST_RUNS, MOST_ROWS = 4, 128
STRATA = 40
"""Every 40 requests in a row hold one of each fortieth of the lengths."""


class Run(msgspec.Struct, kw_only=True):
    """One system at one rate."""

    system: str
    rate: float
    round: int
    num_requests: int
    """That arrived after the warm-up."""
    normalized_s: float
    expected_s: float
    """The same by the simulator."""
    ttft_s: float
    """Mean."""
    tokens_per_s: float
    num_running: float
    """Sequences in a step, averaged over time."""
    step_s: float
    """Median."""
    num_preemptions: int
    took_s: float
    others: float
    """Share of the processors' time that other programs took."""


class Workload:
    """ShareGPT's lengths divided by `scale`, rounded up, in a context divided by the same."""

    def __init__(self, scale: int, vocab_size: int) -> None:
        most = PAPER_CONTEXT // scale
        pairs = ((-(-prompt // scale), -(-answer // scale)) for prompt, answer in sharegpt())
        self.pairs = sorted((pair for pair in pairs if sum(pair) <= most), key=lambda pair: (pair[1], pair[0]))
        self.mean_tokens = statistics.fmean(map(sum, self.pairs))
        self._vocab_size = vocab_size

    def draw(self, rate: float, duration_s: float, seed: int) -> list[TimedRequest]:
        """One seed gives the same requests and the same process at any rate, faster or slower."""
        arrivals, lengths, tokens = Random(seed), Random(seed + 1), Random(seed + 2)
        found: list[TimedRequest] = []
        waiting: list[tuple[int, int]] = []
        now_s = arrivals.expovariate(1.0) / rate
        while now_s < duration_s:
            waiting = waiting or self._one_of_each(lengths)
            prompt, answer = waiting.pop()
            prompt_ids = [tokens.randrange(3, self._vocab_size) for _ in range(prompt)]
            found.append(TimedRequest(arrival_s=now_s, token_ids=prompt_ids, num_output_tokens=answer, seed=len(found)))
            now_s += arrivals.expovariate(1.0) / rate
        return found

    def _one_of_each(self, rng: Random) -> list[tuple[int, int]]:
        """A length out of each stratum, so that short runs are about as much work as long ones."""
        size = len(self.pairs) / STRATA
        drawn = [self.pairs[int((i + rng.random()) * size)] for i in range(STRATA)]
        rng.shuffle(drawn)
        return drawn


class Bench:
    """One loaded model, and everything asked of it."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self._config = EngineConfig.of(
            model=args.model,
            quantization=args.quantization,
            dtype=args.dtype,
            num_threads=args.num_threads,
            block_size=args.block_size,
            num_blocks=1 + PAPER_SLOTS // args.scale // args.block_size,
            max_model_len=PAPER_CONTEXT // args.scale,
            max_num_seqs=MOST_ROWS,
            max_num_batched_tokens=PAPER_STEP_TOKENS // args.scale,
            enable_prefix_caching=False,
            swap_space_bytes=0,
        )
        files = find_files(self._config)
        self.executor = registry.resolve("executors", self._config.execution.executor).load(self._config, files)
        self.info: EngineInfo = self.executor.info
        self.workload = Workload(args.scale, self.info.vocab_size)
        self.num_slots = (self.info.num_blocks - 1) * args.block_size
        self.batch = self.num_slots // self.info.max_model_len
        """Whole contexts in the pool: FasterTransformer's batch, as large as memory allows (paper, section 6.1)."""
        self.runs: list[Run] = []
        self.open("paged").open_loop(self.workload.draw(1e9, 4e-9, 0))  # touches the memory
        calibrating = self.open("paged")
        calibrating.open_loop(self.workload.draw(1e9, 80e-9, 1))
        self.cost = fit_cost(calibrating.steps)
        self.rough_rate = 8 / self.decode_s(8) / self.workload.mean_tokens
        """Of arrivals, if all steps held eight sequences that decode: where the simulator begins to search."""

    def decode_s(self, num_rows: int) -> float:
        """Fitted seconds of a step in which sequences of mean length, half answered, decode."""
        context = int(num_rows * self.workload.mean_tokens / 2)
        work = StepWork(num_tokens=num_rows, num_decodes=num_rows, num_sampled=num_rows, decode_context_tokens=context)
        return self.cost.step(work).forward_s

    def settings(self, system: str) -> tuple[EngineConfig, EngineInfo]:
        cache = dataclasses.replace(self._config.cache, kv_policy=system)
        rows = self.batch if system == "fastertransformer" else MOST_ROWS
        return dataclasses.replace(self._config, cache=cache), msgspec.structs.replace(self.info, max_num_seqs=rows)

    def open(self, system: str) -> RealRun:
        config, info = self.settings(system)
        return RealRun(config, self.executor, info, temperature=1.0)

    # ---- runs

    def draw(self, rate: float, number: int) -> list[TimedRequest]:
        args = self.args
        duration_s = args.warmup + max(args.window, args.min_requests / rate)
        return self.workload.draw(rate, duration_s, 1000 * (args.seed + 1) + 10 * number)

    def measure(self, system: str, rate: float, number: int) -> Run:
        """Serve a Poisson process in real time, until everyone is answered."""
        real, before = self.open(system), busy_seconds()
        result = real.open_loop(self.draw(rate, number))
        seconds = [step.seconds for step in real.steps if step.work.num_tokens]
        running_s = sum((step.work.num_decodes + len(step.work.chunks)) * step.seconds for step in real.steps)
        measured = self._measured(result.records)
        run = Run(
            system=system,
            rate=rate,
            round=number,
            num_requests=len(measured),
            normalized_s=mean_normalized_s(measured),
            expected_s=self.expect(system, rate, number),
            ttft_s=statistics.fmean(record.ttft_s for record in measured) if measured else 0.0,
            tokens_per_s=result.throughput_tokens_per_s,
            num_running=running_s / result.end_s,
            step_s=statistics.median(seconds) if seconds else 0.0,
            num_preemptions=real._loop.core.stats().num_preemptions,
            took_s=result.end_s,
            others=others_share(before, busy_seconds(), result.end_s),
        )
        self.runs.append(run)
        return run

    def expect(self, system: str, rate: float, number: int) -> float:
        """The normalised latency of the same run by the simulator."""
        simulated = simulate(
            simulated_system(*self.settings(system), self.executor.kv_spec), self.cost, self.draw(rate, number)
        )
        return mean_normalized_s(self._measured(simulated.records))

    def _measured(self, records: list[RequestRecord]) -> list[RequestRecord]:
        return [record for record in records if record.arrival_s >= self.args.warmup]

    # ---- searches

    def expected_rate(self, system: str, number: int, first_guess: float) -> float:
        """The sustained rate of a round by the simulator."""

        def latency(rate: float) -> float:
            return self.expect(system, rate, number)

        return sustained_rate(latency, first_guess, limit=self.args.threshold, tolerance=0.03)

    def search(self, system: str, guess: float, number: int, may_run: Callable[[], bool]) -> Found:
        """A round's sustained rate."""
        points: list[tuple[float, float]] = []
        rate, threshold = guess / STEP_UP**0.5, self.args.threshold
        while len(points) < 2 or (not is_between(points, threshold) and len(points) < MOST_RUNS and may_run()):
            run = self.measure(system, rate, number)
            report(run)
            points.append((rate, run.normalized_s))
            rate = rate * STEP_UP if run.normalized_s <= threshold else rate / STEP_UP
        return Found(rate=passing(points, threshold), is_between=is_between(points, threshold))


class Found(msgspec.Struct, kw_only=True):
    """What a round found of a system."""

    rate: float
    is_between: bool
    """Whether rates on both sides of it were run."""


def mean_normalized_s(records: list[RequestRecord]) -> float:
    """Seconds per token (paper, section 6.1); these requests have one answer each."""
    found = [record.latency_s / record.num_output_tokens for record in records if record.is_finished]
    return statistics.fmean(found) if found else 0.0


def busy_seconds() -> tuple[float, float] | None:
    """CPU seconds of this machine and of this process; None where the system does not tell."""
    try:
        fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    user, nice, system, _, _, interrupts, soft, stolen = map(float, fields)
    ticks = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + interrupts + soft + stolen) / ticks, time.process_time()


def others_share(before: tuple[float, float] | None, after: tuple[float, float] | None, took_s: float) -> float:
    """What other programs had of the processors meanwhile."""
    if before is None or after is None:
        return 0.0
    others_s = (after[0] - before[0]) - (after[1] - before[1])
    return max(0.0, others_s / took_s / (os.cpu_count() or 1))


# ---- where the latency passes the threshold


def is_between(points: list[tuple[float, float]], threshold: float) -> bool:
    latencies = [latency for _, latency in points]
    return min(latencies) <= threshold < max(latencies)


def passing(points: list[tuple[float, float]], threshold: float) -> float:
    """The rate at which the latency passes a threshold; where all rates lie on one side, one step past the last."""
    found = crossing(points, threshold)
    if found is not None:
        return found
    rates = [rate for rate, _ in points]
    return max(rates) * STEP_UP if points[-1][1] <= threshold else min(rates) / STEP_UP


# ---- what is said


def report(run: Run) -> None:
    print(
        f"  round {run.round}  {run.system:<18}{run.rate:7.3f} req/s  {run.normalized_s:7.3f} s/token (simulated "
        f"{run.expected_s:.3f})  {run.num_requests:4d} requests, {run.took_s:.0f} s  batch {run.num_running:5.1f}  "
        f"step {run.step_s * 1e3:6.1f} ms  others {run.others:.0%}",
        flush=True,
    )


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def row(system: str, rounds: list[Found], ratios: list[float], runs: list[Run]) -> str:
    rates = [found.rate for found in rounds]
    mark = "" if all(found.is_between for found in rounds) else " *"
    ratio = "" if system == "paged" or not ratios else spread(ratios)
    near = sorted(runs, key=lambda run: abs(run.rate / statistics.median(rates) - 1))[: len(rounds)]
    running, step, tokens = (
        statistics.median(getattr(run, name) for run in near) for name in ("num_running", "step_s", "tokens_per_s")
    )
    return f"| `{system}` | {spread(rates)}{mark} | {ratio} | {running:.1f} | {step * 1e3:.0f} | {tokens:.0f} |"


def table(found: dict[str, list[Found]], runs: list[Run], threshold: float) -> str:
    """The table of the documentation: medians over rounds, with the least and the largest."""
    heading = f"sustained req/s at {threshold:g} s/token | paged by it | sequences in a step | step, ms | token/s"
    lines = [f"| system | {heading} |", "|---|---|---|---|---|---|"]
    for system, rounds in found.items():
        lines.append(row(system, rounds, ratios(found, system), [run for run in runs if run.system == system]))
    if any(mark.endswith(" *") for mark in (line.split("|")[2].rstrip() for line in lines)):
        lines.append("\n\\* all rates that were run in some round lay on one side: taken as one step past the last")
    return "\n".join(lines)


def ratios(found: dict[str, list[Found]], system: str) -> list[float]:
    """Paged's rate by a system's, round by round."""
    return [ours.rate / theirs.rate for ours, theirs in zip(found.get("paged", []), found[system], strict=False)]


def commit() -> str:
    words = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(
            words, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--systems", nargs="+", default=list(KV_POLICIES), choices=list(KV_POLICIES), metavar="NAME")
    parser.add_argument("--quantization", default="none", help="as the engine's flag (default: none)")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--scale", type=int, default=8, help="lengths, context and pool are divided by it (default: 8)")
    parser.add_argument("--block-size", type=int, default=8, help="what a server chooses for such lengths (default: 8)")
    parser.add_argument("--threshold", type=float, default=0.2, metavar="S", help="seconds per token (default: 0.2)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup", type=float, default=8.0, metavar="S", help="seconds not counted (default: 8)")
    parser.add_argument("--window", type=float, default=25.0, metavar="S", help="arrivals counted (default: 25 s)")
    parser.add_argument("--min-requests", type=int, default=30, help="in a window, however long (default: 30)")
    parser.add_argument("--minutes", type=float, default=25.0, help="no third rate in a search after (default: 25)")
    parser.add_argument(
        "--long-window",
        type=float,
        metavar="S",
        help="also simulate runs of this length",
    )
    parser.add_argument("--disturbed", type=float, default=0.1, metavar="SHARE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--jsonl", metavar="FILE", help="a line for the settings, one for each run, one for each system"
    )
    args = parser.parse_args(words)
    for name in ("scale", "threshold", "rounds", "window", "min_requests"):
        if getattr(args, name) <= 0:
            raise ConfigError(name, getattr(args, name), "above 0")
    return args


def introduce(bench: Bench) -> None:
    info, args, mean = bench.info, bench.args, bench.workload.mean_tokens
    decodes = ", ".join(f"{num} {bench.decode_s(num) * 1e3:.3g}" for num in (1, 7, 14, 28))
    print(
        f"{info.model} in {info.weight_dtype}, {info.kernel_path}, {info.num_threads} threads\n"
        f"{info.num_blocks - 1} blocks of {args.block_size} tokens: {bench.batch} contexts of {info.max_model_len}, "
        f"{bench.num_slots / mean:.1f} mean requests of {mean:.1f} tokens\n"
        f"milliseconds of a step by sequences that decode, as fitted: {decodes}\n"
        f"load {os.getloadavg()[0]:.1f}, commit {commit()}, {time.strftime('%Y-%m-%d %H:%M')}",
        flush=True,
    )


def simulate_long(bench: Bench, window_s: float) -> str:
    """What the simulator expects of runs of another length, on the same three draws: medians, and paged by each."""
    bench.args = argparse.Namespace(**{**vars(bench.args), "window": window_s, "warmup": window_s / 6})
    lines = [f"simulated, {window_s:g} s after a warm-up of {window_s / 6:.0f} s:"]
    rates: dict[str, list[float]] = {}
    for system in bench.args.systems:
        rates[system] = [bench.expected_rate(system, n, bench.rough_rate) for n in range(bench.args.rounds)]
        by = [ours / theirs for ours, theirs in zip(rates.get("paged", []), rates[system], strict=False)]
        lines.append(f"  {system:<18}{spread(rates[system])} req/s" + (f", paged by it {spread(by)}" if by else ""))
    return "\n".join(lines)


def save(path: Path, bench: Bench, found: dict[str, list[Found]]) -> None:
    settings = {
        **vars(bench.args),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "machine": fingerprint(),
        "cost": msgspec.to_builtins(bench.cost),
    }
    ends = [
        {"system": system, "rounds": msgspec.to_builtins(rounds), "ratios": ratios(found, system)}
        for system, rounds in found.items()
    ]
    lines: list[Any] = [settings, *map(msgspec.to_builtins, bench.runs), *ends]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def main(words: list[str] | None = None) -> dict[str, list[Found]]:
    args = arguments(words)
    began = time.monotonic()
    bench = Bench(args)
    introduce(bench)
    found: dict[str, list[Found]] = {system: [] for system in args.systems}
    expected: dict[str, list[float]] = {system: [] for system in args.systems}
    for number in range(args.rounds):
        turn = number % len(args.systems)
        for system in args.systems[turn:] + args.systems[:turn]:
            known = expected[system]
            wanted = bench.expected_rate(system, number, known[-1] if known else bench.rough_rate)
            # What rounds before this one found the simulator to be off by.
            off = [one.rate / guess for one, guess in zip(found[system], known, strict=True)]
            guess = wanted * (statistics.median(off) if off else 1.0)
            one = bench.search(system, guess, number, lambda: time.monotonic() - began < args.minutes * 60)
            found[system].append(one)
            known.append(wanted)
            print(f"  round {number}  {system:<18}{one.rate:7.3f} req/s sustained, simulated {wanted:.3f}", flush=True)
        if args.jsonl:
            save(Path(args.jsonl), bench, found)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes\n\n{table(found, bench.runs, args.threshold)}")
    if args.long_window:
        print(f"\n{simulate_long(bench, args.long_window)}")
    disturbed = [run for run in bench.runs if run.others > args.disturbed]
    if disturbed:
        print(f"\n{len(disturbed)} of {len(bench.runs)} runs were disturbed by other programs", file=sys.stderr)
    bench.executor.close()
    return found


if __name__ == "__main__":
    main()
