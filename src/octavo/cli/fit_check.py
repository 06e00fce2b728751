"""The check of a fit: the simulator predicts a workload that the fit has not seen, and the real engine serves it.

The lengths are those of the `chat` workload of `octavo bench serve`, sent in an open loop (a Poisson process) and in a
closed one (16 in flight), to the same core with the same settings, once by the real clock and once by the virtual one.
"""

from __future__ import annotations

import argparse
from random import Random

import msgspec

from octavo.cli.bench_workload import CONCURRENCY, chat_lengths
from octavo.cli.step_watch import RealRun
from octavo.config import EngineConfig
from octavo.core.step import Executor
from octavo.errors import ConfigError
from octavo.messages import EngineInfo
from octavo.sim.closed_loop import simulate_closed_loop
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
    """One figure, predicted and real."""

    loop: str
    figure: str
    predicted: float
    real: float

    @property
    def deviation(self) -> float:
        return self.predicted / self.real - 1

    @property
    def holds(self) -> bool:
        return abs(self.deviation) <= LIMITS[self.figure]


def check(config: EngineConfig, executor: Executor, info: EngineInfo, fit: Fit, args: argparse.Namespace) -> int:
    """Predict and serve; 0 if every figure is within its limit, else 1."""
    check_same_engine(fit, info)
    asked = chat_requests(args.num_prompts, info, args.seed)
    ahead = RealRun(config, executor, info, temperature=args.temperature)
    closed = simulate_closed_loop(ahead.system, fit.cost, asked, in_flight=IN_FLIGHT)
    rate = args.request_rate or SHARE_OF_CAPACITY * closed.throughput_requests_per_s
    timed = arriving(asked, rate, args.seed)
    opened = simulate(ahead.system, fit.cost, timed)
    found = compare("closed", closed, ahead.closed_loop(asked, IN_FLIGHT))
    again = RealRun(config, executor, info, temperature=args.temperature, first_id=len(asked))
    found += compare("open", opened, again.open_loop(timed))
    print_comparison(found, rate)
    return 0 if all(one.holds for one in found) else 1


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


def compare(loop: str, predicted: SimResult, real: SimResult) -> list[Comparison]:
    pairs = [(_figures(predicted)[name], _figures(real)[name], name) for name in LIMITS]
    return [Comparison(loop=loop, figure=name, predicted=p, real=r) for p, r, name in pairs]


def _figures(result: SimResult) -> dict[str, float]:
    return {
        "tokens/s": result.throughput_tokens_per_s,
        "TTFT, ms": result.ttft_s() * 1e3,
        "TPOT, ms": result.tpot_s() * 1e3,
        "end to end, ms": result.latency_s() * 1e3,
    }


def print_comparison(found: list[Comparison], rate: float) -> None:
    from rich.console import Console
    from rich.table import Table

    title = f"chat, predicted and real: closed loop of {IN_FLIGHT}, open loop at {rate:.2f} requests/s"
    table = Table(title=title, title_justify="left")
    for heading in ("loop", "figure", "predicted", "real", "off, %", "limit, %", ""):
        table.add_column(heading, justify="left" if heading in ("loop", "figure") else "right")
    for one in found:
        limit, verdict = f"{100 * LIMITS[one.figure]:.0f}", "holds" if one.holds else "BROKEN"
        values = (f"{one.predicted:.1f}", f"{one.real:.1f}", f"{100 * one.deviation:+.1f}")
        table.add_row(one.loop, one.figure, *values, limit, verdict)
    Console(highlight=False).print(table)
