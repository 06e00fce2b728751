"""`octavo bench step`: what the engine's own Python costs per step of steady decoding.

The real EngineCore runs on an executor that has its tokens ready. The executor's time is taken inside the run and
subtracted, so what is left is schedule, plan and apply.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from typing import Any

from octavo.core.engine_core import EngineCore
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.core.step import StepPlan, StepResult
from octavo.messages import EngineRequest, SamplingParams

BLOCK_SIZE = 16
PROMPT_TOKENS = 64

BUDGET_US = {"32": 60, "256": 400}
"""What a step may cost at most, by batch size: little beside the milliseconds that the model takes."""


class _Ready:
    def __init__(self, answer: StepResult) -> None:
        self._answer = answer

    def result(self) -> StepResult:
        return self._answer


class ReadyExecutor:
    """Answers each plan at once with token 1 for every sampled row, and counts the time that takes, in seconds."""

    kv_spec = KVSpec(groups=(KVGroup(layers=(0,)),), block_size=BLOCK_SIZE, bytes_per_block=1)

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_host_blocks = 0
        self.spent_s = 0.0

    def submit(self, plan: StepPlan) -> _Ready:
        start = time.perf_counter()
        ready = _Ready(StepResult(plan.step_id, [1] * len(plan.sample_rows)))
        self.spent_s += time.perf_counter() - start
        return ready

    def close(self) -> None:
        """Nothing to free."""


def measure(
    sequences: Sequence[int] = (32, 256), steps: int = 300, rounds: int = 7, depth: int = 1
) -> dict[str, dict[str, float]]:
    """Time steady decode steps.

    Args:
        sequences: Batch sizes.
        steps: Steps per round; the time of a round is its mean over them.
        rounds: Rounds per batch size, taken in turns.
        depth: Plans in flight.

    Returns:
        Per batch size, as text, in microseconds: `median_us` of single steps, `mean_us` of all steps of a round
        (which also holds whatever else the machine did), both as medians over the rounds; `us_per_sequence` is
        `median_us` shared out.
    """
    engines = {count: _decoding(count, steps * rounds, depth) for count in sequences}
    times: dict[int, list[list[float]]] = {count: [] for count in sequences}
    for _ in range(rounds):
        for count, (core, executor) in engines.items():
            times[count].append(_time_steps(core, executor, steps))
    figures = {}
    for count, found in times.items():
        median_us = statistics.median(map(statistics.median, found)) * 1e6
        mean_us = statistics.median(map(statistics.fmean, found)) * 1e6
        figures[str(count)] = {"median_us": median_us, "mean_us": mean_us, "us_per_sequence": median_us / count}
    return figures


def _decoding(count: int, num_steps: int, depth: int) -> tuple[EngineCore, ReadyExecutor]:
    """An engine whose `count` sequences are past their prompts and have `num_steps` tokens to go."""
    max_tokens = num_steps + 16
    # Prompts of all lengths modulo the block size, so that growth is spread over the steps as in service.
    lengths = [PROMPT_TOKENS + i % BLOCK_SIZE for i in range(count)]
    blocks_each = (PROMPT_TOKENS + BLOCK_SIZE + max_tokens) // BLOCK_SIZE + 1
    executor = ReadyExecutor(1 + count * blocks_each)
    core = EngineCore(
        executor,
        max_num_seqs=count,
        max_num_batched_tokens=sum(lengths),
        max_model_len=PROMPT_TOKENS + BLOCK_SIZE + max_tokens,
        depth=depth,
    )
    for i, length in enumerate(lengths):
        core.add(
            EngineRequest(
                request_id=i,
                token_ids=[2] * length,
                num_prompt_tokens=length,
                sampling=SamplingParams(max_tokens=max_tokens),
                seed=i,
                max_tokens=max_tokens,
                eos_token_ids=(0,),
            )
        )
    for _ in range(8):
        core.step(0.0)
    return core, executor


def _time_steps(core: EngineCore, executor: ReadyExecutor, steps: int) -> list[float]:
    """Seconds of each step, the executor's own time left out."""
    found = []
    for _ in range(steps):
        executor.spent_s = 0.0
        start = time.perf_counter()
        core.step(0.0)
        found.append(time.perf_counter() - start - executor.spent_s)
    return found


def print_table(figures: dict[str, dict[str, float]]) -> None:
    """The figures as a table on the terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="schedule + plan + apply, one decode step", title_justify="left")
    for name in ("sequences", "median, us", "budget, us", "mean, us", "median us per sequence"):
        table.add_column(name, justify="right")
    for count, found in figures.items():
        budget = f"{BUDGET_US[count]}" if count in BUDGET_US else "-"
        mean, each = f"{found['mean_us']:.1f}", f"{found['us_per_sequence']:.2f}"
        table.add_row(count, f"{found['median_us']:.1f}", budget, mean, each)
    Console(highlight=False).print(table)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.cli.bench_arguments import add_result_arguments

    parser.add_argument("--sequences", type=int, nargs="+", default=[32, 256], metavar="N", help="batch sizes")
    parser.add_argument("--steps", type=int, default=300, help="steps per round")
    parser.add_argument("--rounds", type=int, default=7, help="rounds, taken in turns; the median is reported")
    parser.add_argument("--depth", type=int, default=1, help="plans in flight: 1 or 2")
    add_result_arguments(parser)


def run(args: argparse.Namespace) -> int:
    from octavo.cli.bench_report import result_path, save
    from octavo.cli.output_files import check_result
    from octavo.errors import ConfigError

    for name in ("steps", "rounds"):
        if getattr(args, name) < 1:
            raise ConfigError(name, getattr(args, name), "at least 1")
    check_result(args)
    figures = measure(args.sequences, args.steps, args.rounds, args.depth)
    print_table(figures)
    if args.save_result:
        path = result_path(args.result_dir, args.result_filename, "step")
        setup: dict[str, Any] = {"steps": args.steps, "rounds": args.rounds, "depth": args.depth}
        save(path, setup, {"sequences": figures})
        print(f"written to {path}")
    return 0
