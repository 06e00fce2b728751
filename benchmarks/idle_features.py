"""What sharing, accounts and the host tier cost a workload that uses none of them.

    python benchmarks/idle_features.py [MODEL] [--rounds 9] [--json FILE]

Steady decoding of different prompts, with everything on (the default) and with everything off (no prefix cache, no
swapping), by two cores that take turns on one worker: the same weights and KV memory, so that no page's luck counts.
The ratio of a round is that of the medians of its steps; the median of the rounds is reported, in wall time and,
steadier on a busy machine, in CPU time. The last lines are the scheduler alone: schedule, plan and apply on a worker
that has its tokens ready.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

from octavo.cli.bench_report import save
from octavo.cli.bench_step import ReadyExecutor
from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.core.step import Executor
from octavo.engine.build import find_files
from octavo.executor.local import LocalExecutor
from octavo.messages import EngineRequest, SamplingParams

GATE = 0.03
PROMPT = 64
STEP_TOKENS = 128


def request(number: int, max_tokens: int) -> EngineRequest:
    length = PROMPT + number % 16  # so that blocks are taken in all steps alike
    tokens = [(number * 31 + i * i) % 500 + 100 for i in range(length)]
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return EngineRequest(
        request_id=number,
        token_ids=tokens,
        num_prompt_tokens=length,
        sampling=sampling,
        seed=1,
        max_tokens=max_tokens,
        eos_token_ids=(0,),
    )


def time_steps(executor: Executor, is_on: bool, num_seqs: int, num_steps: int) -> tuple[float, float]:
    """Median wall and CPU seconds of a decode step of a new core on this worker, which is idle before and after."""
    core = EngineCore(
        executor,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=2048,
        enable_prefix_caching=is_on,
        preemption="auto" if is_on else "recompute",
    )
    for number in range(num_seqs):
        core.add(request(number, num_steps + 40))
    while core.stats().num_waiting or core.stats().num_generated_tokens < 4 * num_seqs:
        core.step(0.0)
    times = []
    for _ in range(num_steps):
        wall, cpu = time.perf_counter(), time.process_time()
        core.step(0.0)
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    for number in range(num_seqs):
        core.abort(number)
    while core.has_work:
        core.step(0.0)
    wall_s, cpu_s = (statistics.median(values) for values in zip(*times, strict=True))
    return wall_s, cpu_s


def compare(executor: Executor, num_seqs: int, rounds: int, steps: int) -> dict[str, float]:
    """Medians of the rounds: milliseconds of a step with everything on, and the ratio on/off of wall and CPU time."""
    ratios: list[tuple[float, float]] = []
    step_s: list[float] = []
    for number in range(rounds):
        order = (True, False) if number % 2 else (False, True)
        found = {is_on: time_steps(executor, is_on, num_seqs, steps) for is_on in order}
        ratios.append((found[True][0] / found[False][0], found[True][1] / found[False][1]))
        step_s.append(found[True][0])
    walls, cpus = zip(*ratios, strict=True)
    figures = {"step_ms": statistics.median(step_s) * 1e3, "wall": statistics.median(walls)}
    return figures | {"cpu": statistics.median(cpus), "least": min(walls), "most": max(walls)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=40, help="steps of a round, per engine")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16], metavar="N", help="decoding at once")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    table: dict[str, dict[str, float]] = {}
    for count in args.sequences:
        config = EngineConfig.of(
            model=args.model,
            max_num_seqs=count,
            max_num_batched_tokens=STEP_TOKENS,
            max_model_len=2048,
            num_blocks=2048,
            block_size=16,
        )
        executor = LocalExecutor.load(config, find_files(config))
        table[f"model, {count}"] = compare(executor, count, args.rounds, args.steps)
        executor.close()
    for count in (16, 64):
        table[f"scheduler alone, {count}"] = compare(ReadyExecutor(1 << 15), count, args.rounds, 10 * args.steps)
    print(f"load average {os.getloadavg()[0]:.2f}")
    print(f"{'sequences':<24}{'step, ms':>10}{'on/off wall':>13}{'CPU':>8}{'wall from':>11}{'to':>8}")
    for name, row in table.items():
        values = f"{row['wall']:>13.3f}{row['cpu']:>8.3f}{row['least']:>11.3f}{row['most']:>8.3f}"
        print(f"{name:<24}{row['step_ms']:>10.3f}{values}")
    worst = max(row["cpu"] for name, row in table.items() if name.startswith("model"))
    print(f"gate of {GATE:.0%} of step time with the model, in CPU time: {'met' if worst < 1 + GATE else 'missed'}")
    if args.json:
        save(Path(args.json), {"model": args.model, "load": os.getloadavg()[0]}, {"figures": table})


if __name__ == "__main__":
    main()
