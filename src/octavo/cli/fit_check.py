"""The check of a fit: the simulator predicts a workload that the fit has not seen, and the real engine serves it.

The lengths are those of the `chat` workload of `octavo bench serve`, sent in an open loop (a Poisson process) and in a
closed one (16 in flight), to the same core with the same settings, by the real clock some times and by the virtual one.
What counts is the median of the real runs, each figure by itself.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from random import Random

import msgspec

from octavo.cli.bench_workload import CONCURRENCY, chat_lengths
from octavo.cli.step_watch import RealRun, simulated_system
from octavo.config import EngineConfig
from octavo.core.step import Executor
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.sim.closed_loop import simulate_closed_loop
from octavo.sim.cost_model import CostModel
from octavo.sim.fitted import Fit
from octavo.sim.request import TimedRequest
from octavo.sim.result import SimResult
from octavo.sim.simulator import simulate

IN_FLIGHT = CONCURRENCY["chat"]
SHARE_OF_CAPACITY = 0.7
"""Of the closed loop's predicted rate: busy, and not overloaded."""

LIMITS = {"tokens/s": 0.10, "TTFT, ms": 0.15, "TPOT, ms": 0.15, "end to end, ms": 0.15}
"""How far a prediction may be off, as a share; latencies are medians."""


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One figure, predicted and in the real runs."""

    loop: str
    figure: str
    predicted: float
    runs: tuple[float, ...]

    @property
    def real(self) -> float:
        return statistics.median(self.runs)

    @property
    def deviation(self) -> float:
        return self.predicted / self.real - 1

    @property
    def holds(self) -> bool:
        return abs(self.deviation) <= LIMITS[self.figure]


class Check:
    """Serves for real, round by round, and compares with what a fit predicts.

    Args:
        args: `num_prompts`, `seed`, `temperature` and `request_rate`.
        fit: One made before, or None.

    Raises:
        ConfigError: If the workload does not fit the engine, or the fit is of another one.
    """

    def __init__(
        self, config: EngineConfig, executor: Executor, info: EngineInfo, args: argparse.Namespace, fit: Fit | None
    ) -> None:
        if fit is not None:
            check_same_engine(fit, info)
        self.rate: float = args.request_rate or 0.0
        """Requests a second of the open loop; 0 until it is known."""
        self._requests = chat_requests(args.num_prompts, info, args.seed)
        self._timed: list[TimedRequest] = []
        self._seed: int = args.seed
        self._temperature: float = args.temperature
        self._config, self._executor, self._info = config, executor, info
        self._system = simulated_system(config, info, executor.kv_spec)
        self._runs: dict[str, list[SimResult]] = {"closed": [], "open": []}

    def serve(self, cost: CostModel) -> None:
        """Serve both loops once.

        Args:
            cost: Says in the first round which rate the open loop has, unless one is asked for.
        """
        if not self._timed:
            self.rate = self.rate or SHARE_OF_CAPACITY * self._closed(cost).throughput_requests_per_s
            self._timed = arriving(self._requests, self.rate, self._seed)
        self._runs["closed"].append(self._real().closed_loop(self._requests, IN_FLIGHT))
        self._runs["open"].append(self._real().open_loop(self._timed))

    def compare(self, cost: CostModel) -> list[Comparison]:
        """What `cost` predicts beside what was served."""
        predicted = {"closed": self._closed(cost), "open": simulate(self._system, cost, self._timed)}
        return [one for loop, runs in self._runs.items() for one in compare(loop, predicted[loop], runs)]

    def _closed(self, cost: CostModel) -> SimResult:
        return simulate_closed_loop(self._system, cost, self._requests, in_flight=IN_FLIGHT)

    def _real(self) -> RealRun:
        served = sum(len(runs) for runs in self._runs.values()) * len(self._requests)
        return RealRun(self._config, self._executor, self._info, temperature=self._temperature, first_id=served)


def check_same_engine(fit: Fit, info: EngineInfo) -> None:
    """Raises ConfigError for a fit of another engine."""
    for name in ("weight_dtype", "kv_dtype", "kernel_path", "num_threads", "block_size"):
        if fit.engine.get(name) != getattr(info, name):
            allowed = f"of this engine's {name} {getattr(info, name)!r}, not {fit.engine.get(name)!r}"
            raise ConfigError("fit", fit.model, allowed)
    if fit.model != info.model:
        raise ConfigError("fit", fit.model, f"of {info.model}")


def chat_requests(count: int, info: EngineInfo, seed: int) -> list[TimedRequest]:
    """Requests with the lengths of the chat workload and prompts that share no beginning."""
    rng = Random(seed)
    found = []
    for num_input, num_output in chat_lengths(count):
        if num_input + num_output > info.max_model_len:
            raise ConfigError("max_model_len", info.max_model_len, f"at least {num_input + num_output} for chat")
        prompt = [rng.randrange(info.vocab_size) for _ in range(num_input)]
        found.append(TimedRequest(arrival_s=0.0, token_ids=prompt, num_output_tokens=num_output))
    return found


def arriving(requests: list[TimedRequest], rate: float, seed: int) -> list[TimedRequest]:
    """The requests at the times of a Poisson process."""
    if not 0 < rate < float("inf"):
        raise ConfigError("request_rate", rate, "above 0 and finite")
    rng = Random(f"arrivals {seed}")
    now_s, found = 0.0, []
    for request in requests:
        now_s += rng.expovariate(rate)
        found.append(msgspec.structs.replace(request, arrival_s=now_s))
    return found


def compare(loop: str, predicted: SimResult, runs: Sequence[SimResult]) -> list[Comparison]:
    real = [_figures(run) for run in runs]
    return [
        Comparison(loop=loop, figure=name, predicted=value, runs=tuple(figures[name] for figures in real))
        for name, value in _figures(predicted).items()
    ]


def _figures(result: SimResult) -> dict[str, float]:
    return {
        "tokens/s": result.throughput_tokens_per_s,
        "TTFT, ms": result.ttft_s() * 1e3,
        "TPOT, ms": result.tpot_s() * 1e3,
        "end to end, ms": result.latency_s() * 1e3,
    }


def print_comparison(found: list[Comparison], rate: float, rounds: int) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    title = f"chat, predicted and real: closed loop of {IN_FLIGHT}, open loop at {rate:.2f} requests/s"
    table = Table(title=title, title_justify="left")
    for heading in ("loop", "figure", "predicted", "real", "off, %", "limit, %", ""):
        table.add_column(heading, justify="left" if heading in ("loop", "figure") else "right")
    for one in found:
        limit, verdict = f"{100 * LIMITS[one.figure]:.0f}", "holds" if one.holds else "BROKEN"
        values = (f"{one.predicted:.1f}", f"{one.real:.1f}", f"{100 * one.deviation:+.1f}")
        table.add_row(one.loop, one.figure, *values, limit, verdict)
    console.print(table)
    if rounds > 1:
        console.print(f"real: medians of {rounds} runs")
        for one in found:
            runs = ", ".join(f"{value:.1f}" for value in one.runs)
            if one.figure == "tokens/s":
                console.print(f"  {one.loop}, tokens/s: {runs}")
