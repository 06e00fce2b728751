"""Where a decode step's time goes: the forward pass, and everything between two forward passes.

    python benchmarks/step_profile.py [MODEL] [--sequences 1 16] [--steps 100] [--json FILE] [engine flags]

The engine's own loop runs in this process, as it does in the server's engine process, with a timer around each of its
parts; what a step makes known is encoded as for the front end. Times are medians over the steps, by the clock and in
CPU time of the thread that steps (on a busy machine only the latter says something), and "outside kernels" is all but
the forward pass and the kernel that samples, as a share of the step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import octavo._native as native
from octavo.cli.bench_report import save
from octavo.config import EngineConfig
from octavo.engine import wire
from octavo.engine.build import build_engine, find_files
from octavo.engine.loop import EngineLoop
from octavo.messages import EngineRequest, SamplingParams
from octavo.worker import model_runner, steady_decode
from octavo.worker.model_runner import ModelRunner

KERNELS = ("forward (native)", "sample (native)")


class Stopwatch:
    """Times of a step's parts by name, each without the parts that run inside it."""

    def __init__(self) -> None:
        self.steps: list[dict[str, tuple[float, float]]] = []
        self._inside: list[list[float]] = []

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inside.append([0.0, 0.0])
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                spent = time.perf_counter() - wall, time.thread_time() - cpu
                inner = self._inside.pop()
                self._note(name, spent[0] - inner[0], spent[1] - inner[1])
                if self._inside:
                    self._inside[-1][0] += spent[0]
                    self._inside[-1][1] += spent[1]

        return timed

    def replace(self, owner: Any, attribute: str, name: str) -> None:
        """Put a timer around `owner.attribute`."""
        setattr(owner, attribute, self.wrap(name, getattr(owner, attribute)))

    def _note(self, name: str, wall: float, cpu: float) -> None:
        step = self.steps[-1]
        before = step.get(name, (0.0, 0.0))
        step[name] = before[0] + wall, before[1] + cpu

    def medians(self) -> dict[str, dict[str, float]]:
        """Microseconds by part, and of whole steps as `step`."""
        names = dict.fromkeys(name for step in self.steps for name in step)
        parts = {name: [step.get(name, (0.0, 0.0)) for step in self.steps] for name in names}
        parts["step"] = [tuple(map(sum, zip(*step.values(), strict=True))) for step in self.steps]  # type: ignore[misc]
        return {
            name: {"wall_us": statistics.median(wall) * 1e6, "cpu_us": statistics.median(cpu) * 1e6}
            for name, (wall, cpu) in ((name, zip(*times, strict=True)) for name, times in parts.items())
        }


def instrument(loop: EngineLoop, runner: ModelRunner, watch: Stopwatch) -> None:
    """Timers around the parts of a step. The names of private parts are this benchmark's to keep up with."""
    core: Any = loop.core
    watch.replace(core._scheduler, "schedule", "schedule")
    watch.replace(core._scheduler, "apply", "apply")
    watch.replace(core._executor, "submit", "rows, result")
    watch.replace(runner, "_step_batch", "batch arrays")
    for method in ("run", "run_greedy"):  # the second one chooses the tokens as well
        watch.replace(runner._program, method, "forward (native)")
    watch.replace(runner._backend, "sample", "sample (native)")
    for module in (model_runner, steady_decode):
        watch.replace(module, "sample_batch", "sampling arrays")


def requests(count: int, prompt_len: int, max_tokens: int, temperature: float) -> list[EngineRequest]:
    sampling = SamplingParams(temperature=temperature, ignore_eos=True, max_tokens=max_tokens)
    return [
        EngineRequest(
            request_id=i,
            token_ids=[(7 * i + 13 * j) % 200 + 300 for j in range(prompt_len)],
            num_prompt_tokens=prompt_len,
            sampling=sampling,
            seed=i,
            max_tokens=max_tokens,
        )
        for i in range(count)
    ]


def profile(loop: EngineLoop, watch: Stopwatch, args: argparse.Namespace, count: int) -> dict[str, dict[str, float]]:
    """Medians of the steps in which all `count` sequences decode."""
    watch.steps = [{}]
    for request in requests(count, args.context, args.steps + args.warmups, args.temperature):
        loop.add(request)
    step = watch.wrap("loop", loop.step)
    encode = watch.wrap("encode", wire.encode)
    while loop.core.has_work:
        watch.steps.append({})
        encode(step())
    full = [s for s in watch.steps[args.warmups :] if "forward (native)" in s]
    watch.steps = full[-args.steps : -1]  # the last one ends them all
    return watch.medians()


def print_table(count: int, found: dict[str, dict[str, float]]) -> None:
    step = found["step"]
    print(f"\n{count} sequences: a step takes {step['wall_us'] / 1e3:.2f} ms, {step['cpu_us'] / 1e3:.2f} ms of CPU")
    print(f"{'part':<20}{'us':>10}{'CPU us':>10}{'% of CPU':>10}")
    for name, times in found.items():
        share = 100 * times["cpu_us"] / step["cpu_us"]
        print(f"{name:<20}{times['wall_us']:>10.1f}{times['cpu_us']:>10.1f}{share:>10.2f}")
    print(f"{'outside kernels':<20}{outside(found, 'wall_us'):>10.1f}{outside(found, 'cpu_us'):>10.1f}", end="")
    print(f"{100 * outside(found, 'cpu_us') / step['cpu_us']:>10.2f}", flush=True)


def outside(found: dict[str, dict[str, float]], clock: str) -> float:
    return sum(times[clock] for name, times in found.items() if name not in ("step", *KERNELS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--sequences", type=int, nargs="+", default=[1, 16], metavar="N")
    parser.add_argument("--context", type=int, default=160, metavar="TOKENS", help="of each prompt (default: 160)")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--warmups", type=int, default=20)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--num-threads", type=int)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    config = EngineConfig.of(model=args.model, num_threads=args.num_threads, kv_cache_memory_bytes=1 << 29)
    core, _, close = build_engine(config, find_files(config))
    loop = EngineLoop(core, close)
    watch = Stopwatch()
    runner = core._executor._runner  # type: ignore[attr-defined]
    instrument(loop, runner, watch)
    profile(loop, watch, args, 2)  # touches memory for the first time
    table = {}
    for count in args.sequences:
        table[count] = profile(loop, watch, args, count)
        print_table(count, table[count])
    loop.close()
    if args.json:
        save(Path(args.json), vars(args), {"parts": table, "isa": native.supported_paths()[0]})


if __name__ == "__main__":
    main()
