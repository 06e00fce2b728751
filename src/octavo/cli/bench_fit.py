"""`octavo bench fit`: how long this machine's steps take, as a cost model for the simulator and the planner.

Steps of the real engine are measured over designed shapes (see `fit_design`), several times in turns, and a sum of
terms is fitted to their medians (see `octavo.sim.fitted`). `--check` also serves the `chat` workload after each of
these rounds, and says how far the simulator is off: nothing of it went into the fit. Measuring and serving take turns
because a shared machine's own speed changes by the minute, which says nothing of the fit.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from octavo import registry
from octavo.cli.fit_design import MOST_TOKENS, QUICK_STAGES, STAGES, Stage, fitting_stages, requests
from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config
from octavo.cli.output_files import check_file
from octavo.cli.parser import integer
from octavo.cli.step_watch import RealRun, Step
from octavo.config import EngineConfig, SpeculationConfig
from octavo.core.step import Executor, StepPlan
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.sim.fitted import Fit, FittedCost, Residual, row

MOST_ROUNDS = 1000
MOST_PROMPTS = 10_000
"""Of the check. It serves them twice a round."""
MOST_TEMPERATURE = 1e4
MOST_RATE = 1e5
_BLOCKS_MOVED = 64
"""Copied and swapped at once to time a block."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    group = parser.add_argument_group("Fit")
    group.add_argument(
        "--output", metavar="FILE", help="where the fit is written (default: fit-MODEL.json in the current folder)"
    )
    group.add_argument(
        "--rounds",
        type=integer,
        default=3,
        metavar="N",
        help="times each step is made, and with --check the workload served, in turns, up to 1000 (default: 3)",
    )
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="of every request (default: 0)")
    group.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of prompts and arrivals (default: 0)")
    group.add_argument(
        "--check", action="store_true", help="serve the chat workload too, and compare with what is predicted"
    )
    group.add_argument("--fit", metavar="FILE", help="with --check: a fit made before, instead of measuring")
    group.add_argument(
        "--num-prompts", type=integer, default=64, metavar="N", help="requests of --check, up to 10000 (default: 64)"
    )
    group.add_argument(
        "--request-rate", type=float, metavar="X", help="of --check's open loop (default: 0.7 of what is predicted)"
    )
    add_flags(parser, [group for group in ENGINE_GROUPS if group is not SpeculationConfig])


def run(args: argparse.Namespace) -> int:
    from octavo.cli.fit_check import Check, print_comparison

    check_flags(args)
    config = engine_config(args, model=args.model_tag)
    fit = _fit_file(args.fit)
    executor, info = load(config)
    try:
        check = Check(config, executor, info, args, fit) if args.check else None
        if fit is None:
            path = Path(args.output or f"fit-{info.model.replace('/', '-')}.json")
            check_file("output", str(path))
            steps = Steps(config, executor, info, temperature=args.temperature, seed=args.seed)
        for _ in range(args.rounds):
            if fit is None:
                steps.measure()
            if check:
                check.serve(fit.cost if fit else steps.cost())
        if fit is None:
            fit = steps.fit()
            path.write_bytes(msgspec.json.format(msgspec.json.encode(fit), indent=2) + b"\n")
            print_fit(fit)
            print(f"written to {path}")
        if check:
            found = check.compare(fit.cost)
            print_comparison(found, check.rate, args.rounds)
            return 0 if all(one.holds for one in found) else 1
    finally:
        executor.close()
    return 0


def check_flags(args: argparse.Namespace) -> None:
    """Raises ConfigError for what can be told before a model is loaded."""
    for name, most in (("rounds", MOST_ROUNDS), ("num_prompts", MOST_PROMPTS)):
        if not 1 <= getattr(args, name) <= most:
            raise ConfigError(name, getattr(args, name), f"from 1 to {most}")
    if not 0 <= args.temperature <= MOST_TEMPERATURE:
        raise ConfigError("temperature", args.temperature, f"from 0 to {MOST_TEMPERATURE:g}")
    if args.request_rate is not None and not 0 < args.request_rate <= MOST_RATE:
        raise ConfigError("request_rate", args.request_rate, f"requests a second above 0, at most {MOST_RATE:g}")
    for name in ("fit", "request_rate"):
        if getattr(args, name) is not None and not args.check:
            raise ConfigError(name, getattr(args, name), "left out without --check")
    if args.fit is not None and args.output is not None:
        raise ConfigError("output", args.output, "left out with --fit: nothing is fitted")
    check_file("output", args.output)


def _fit_file(name: str | None) -> Fit | None:
    if name is None:
        return None
    from octavo.traces.fits import read_fit_file

    return read_fit_file(name)


def load(config: EngineConfig) -> tuple[Any, EngineInfo]:
    """The executor, able to compute the largest step that is measured, and what it settled on."""
    from octavo.engine.build import find_files

    budget = config.scheduler.max_num_batched_tokens
    scheduler = dataclasses.replace(config.scheduler, max_num_batched_tokens=max(budget, MOST_TOKENS))
    roomy = dataclasses.replace(config, scheduler=scheduler)
    executor = registry.resolve("executors", config.execution.executor).load(roomy, find_files(config))
    return executor, msgspec.structs.replace(executor.info, max_num_batched_tokens=budget)


def quick_fit(config: EngineConfig) -> Fit:
    """A fit from a few seconds of measuring, for a plan made on the spot."""
    executor, info = load(config)
    try:
        steps = Steps(config, executor, info, temperature=0.0, seed=0, stages=QUICK_STAGES)
        steps.measure()
        return steps.fit()
    finally:
        executor.close()


class Steps:
    """Steps of an engine, measured in rounds.

    Args:
        temperature: Of every request; 0 is greedy.
        seed: Of the prompts.
        stages: Cut to the engine's size.

    Raises:
        ConfigError: For an engine too small to measure.
    """

    def __init__(
        self,
        config: EngineConfig,
        executor: Executor,
        info: EngineInfo,
        *,
        temperature: float,
        seed: int,
        stages: Sequence[Stage] = STAGES,
    ) -> None:
        num_slots = (info.num_blocks - 1) // executor.kv_spec.num_groups * info.block_size
        stages = fitting_stages(info.max_num_seqs, info.max_model_len, num_slots, stages)
        self._config, self._executor, self._info = config, executor, info
        self._temperature, self._seed = temperature, seed
        self._found: dict[Stage, list[list[Step]]] = {stage: [] for stage in stages}
        self._round_s: list[float] = []
        self._blocks = time_blocks(executor)
        self._run(stages[0])  # touches memory for the first time

    def measure(self) -> None:
        """One round: every stage once, in the other order than in the round before."""
        found = list(self._found.items())
        started = time.perf_counter()
        for stage, runs in found if len(self._round_s) % 2 == 0 else reversed(found):
            runs.append(self._run(stage))
        self._round_s.append(time.perf_counter() - started)

    def medians(self) -> list[Step]:
        """Every step that computes something, its time the median over the rounds.

        Raises:
            ConfigError: If a stage's steps differ from round to round, so that there is nothing to take a median of.
        """
        steps: list[Step] = []
        for stage, runs in self._found.items():
            if any([step.work for step in other] != [step.work for step in runs[0]] for other in runs[1:]):
                raise ConfigError("rounds", len(runs), f"1, for the steps of {stage} differ from round to round")
            for same in zip(*runs, strict=True):
                steps.append(msgspec.structs.replace(same[0], seconds=statistics.median(step.seconds for step in same)))
        return [step for step in steps if step.work.num_tokens]

    def cost(self) -> FittedCost:
        """The fit to the rounds so far."""
        return fit_cost(self.medians(), self._blocks, total_s=self._total_s())

    def _total_s(self) -> float:
        """Seconds of all steps that compute something, the median round's."""
        totals = [0.0] * len(self._round_s)
        for runs in self._found.values():
            for turn, steps in enumerate(runs):
                totals[turn] += sum(step.seconds for step in steps if step.work.num_tokens)
        return statistics.median(totals)

    def fit(self) -> Fit:
        """The fit with where it comes from."""
        from octavo.cli.machine import fingerprint

        steps = self.medians()
        cost = fit_cost(steps, self._blocks, total_s=self._total_s())
        return Fit(
            model=self._info.model,
            date=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            machine=fingerprint(),
            engine=about(self._info, self._config, self._temperature),
            cost=cost,
            residuals=residuals(steps, cost),
            num_steps=len(steps),
            rounds=len(self._round_s),
            round_s=tuple(self._round_s),
        )

    def _run(self, stage: Stage) -> list[Step]:
        return run_stage(self._config, self._executor, self._info, stage, self._temperature, Random(self._seed))


def about(info: EngineInfo, config: EngineConfig, temperature: float) -> dict[str, Any]:
    """What a fit must be read with, and what a planner needs to know of the engine."""
    names = ("weight_dtype", "kv_dtype", "kernel_path", "num_threads", "block_size", "weight_bytes", "bytes_per_block",
             "kv_bytes_per_token", "max_num_seqs", "max_model_len")  # fmt: skip
    facts = {name: getattr(info, name) for name in names}
    return facts | {"depth": config.scheduler.depth, "temperature": temperature}


def run_stage(
    config: EngineConfig, executor: Executor, info: EngineInfo, stage: Stage, temperature: float, rng: Random
) -> list[Step]:
    """The steps of a stage, the time that taking in its requests took shared out to those that admit them."""
    budgeted = msgspec.structs.replace(info, max_num_batched_tokens=stage.budget)
    real = RealRun(config, executor, budgeted, temperature=temperature)
    real.open_loop(requests(stage, info.vocab_size, rng))
    add_s = real.add_s
    return [msgspec.structs.replace(s, seconds=s.seconds + add_s * s.num_admitted) for s in real.steps]


def time_blocks(executor: Executor) -> dict[str, float]:
    """Seconds to copy a block, and to swap one out and in; each the median of some plans that do nothing else."""
    count = min(_BLOCKS_MOVED, (executor.num_blocks - 1) // 2)
    copies = _plan(copies=[(1 + i, 1 + count + i) for i in range(count)])
    found = {"copied_s": _per_block(executor, count, copies)}
    count = min(count, executor.num_host_blocks)
    if count:
        out = _plan(swap_out=[(1 + i, i) for i in range(count)])
        back = _plan(swap_in=[(i, 1 + i) for i in range(count)])
        seconds = [(_per_block(executor, count, out, 1), _per_block(executor, count, back, 1)) for _ in range(5)]
        outs, ins = zip(*seconds, strict=True)
        found |= {"swapped_out_s": statistics.median(outs), "swapped_in_s": statistics.median(ins)}
    return found


def _plan(**moves: Any) -> StepPlan:
    return StepPlan(0, [], [], [], [], [], [], **moves)


def _per_block(executor: Executor, count: int, plan: StepPlan, repeats: int = 5) -> float:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        executor.submit(plan).result()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds) / count


def fit_cost(
    steps: Sequence[Step], blocks: dict[str, float] | None = None, *, total_s: float | None = None
) -> FittedCost:
    """Least squares of relative errors: a step of 5 ms counts as much as one of 500.

    Squares of relative errors find too little on a noisy machine, as a step of twice its time is off by half and one of
    half its time by twice; and so do medians of single steps, if what disturbs them comes seldom and takes long. So
    the terms' proportions are those of the least squares, and their level is that of the sum over all steps.

    Args:
        blocks: Seconds per block, see `time_blocks`.
        total_s: Seconds that all steps together take; the sum of `steps` if left out.
    """
    from octavo.measure.least_squares import nnls

    rows = [[x / step.seconds for x in row(step.work)] for step in steps]
    shape = [float(x) for x in nnls(rows, [1.0] * len(rows))]
    fitted_s = sum(x * y for step in steps for x, y in zip(row(step.work), shape, strict=True))
    level = (sum(step.seconds for step in steps) if total_s is None else total_s) / fitted_s
    return FittedCost.of([x * level for x in shape], blocks=blocks)


def residuals(steps: Sequence[Step], cost: FittedCost) -> dict[str, Residual]:
    """How far the fit is from what was measured, by kind of step."""
    from octavo.cli.bench_report import percentile

    ratios: dict[str, list[float]] = {}
    for step in steps:
        ratios.setdefault(kind(step), []).append(cost.step(step.work).forward_s / step.seconds)
    found = {}
    for name, values in ratios.items():
        off = [abs(value - 1) for value in values]
        found[name] = Residual(
            num_steps=len(values),
            median=statistics.median(off),
            p90=percentile(off, 90) or 0.0,
            bias=statistics.fmean(values) - 1,
        )
    return found


def kind(step: Step) -> str:
    """ "decode", "chunks" or "mixed"."""
    if not step.work.chunks:
        return "decode"
    return "mixed" if step.work.num_decodes else "chunks"


def print_fit(fit: Fit) -> None:
    """Coefficients and residuals on the terminal."""
    from rich.console import Console
    from rich.table import Table

    console, cost = Console(highlight=False), fit.cost
    table = Table(title=f"{fit.model}: what a step takes", title_justify="left")
    table.add_column("term")
    table.add_column("us", justify="right")
    for field in cost.__struct_fields__:
        if field not in ("knots", "token_s"):
            table.add_row(field.removesuffix("_s"), f"{getattr(cost, field) * 1e6:,.3f}")
    for low, high, slope in zip(cost.knots, cost.knots[1:], cost.token_s, strict=False):
        table.add_row(f"per token from {low} to {high}", f"{slope * 1e6:,.1f}")
    console.print(table)
    table = Table(title="fitted against measured steps", title_justify="left")
    for heading in ("steps", "number", "median off, %", "p90 off, %", "bias, %"):
        table.add_column(heading, justify="left" if heading == "steps" else "right")
    for name, found in fit.residuals.items():
        shares = (f"{100 * found.median:.1f}", f"{100 * found.p90:.1f}", f"{100 * found.bias:+.1f}")
        table.add_row(name, f"{found.num_steps}", *shares)
    console.print(table)
    if len(fit.round_s) > 1:
        spread = f"{min(fit.round_s):.1f} to {max(fit.round_s):.1f}"
        console.print(f"a round of the same steps took {spread} s, as the machine's speed moved")
