"""Timing kernels beside their floors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from octavo import _native
from octavo.measure.probes import Probe, probe

Clock = Callable[[], float]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Something to time, and what it has to move and compute at least."""

    kernel: str
    form: str
    """Format of weights or KV, and how they lie."""
    size: str
    """The batch, in words."""
    run: Callable[[Clock], float]
    """Do it all once; the seconds it took by the clock."""
    num_bytes: float
    """Bytes that must be read from memory, or written to it."""
    num_ops: float = 0.0
    """Multiplications and additions."""
    arithmetic: str | None = None
    """Whose peak bounds the operations: a name of `probes.PEAKS`."""
    num_calls: int = 1
    """Kernel calls in one run: each forks and joins at least once when it is large enough."""


def take_turns(
    runs: Sequence[Callable[[Clock], float]], repeats: int, clock: Clock = time.perf_counter
) -> list[list[float]]:
    """Seconds of each run in each of `repeats` turns, after one that does not count.

    Each turn begins with another run, so that none always follows the same one: `[runs][repeats]`.
    """
    seconds: list[list[float]] = [[0.0] * repeats for _ in runs]
    for run in runs:
        run(clock)
    for turn in range(repeats):
        for place in range(len(runs)):
            index = (turn + place) % len(runs)
            seconds[index][turn] = runs[index](clock)
    return seconds


@dataclass
class _Timings:
    case: Case
    seconds: list[float]
    probes: list[Probe]


def compare(
    cases: list[Case], pool: _native.ThreadPool, isa: str, repeats: int, clock: Clock = time.perf_counter
) -> Iterator[dict[str, Any]]:
    """Time the cases in turn, `repeats` times, each time with the machine's limits taken just before.

    Yields:
        One row of figures a case: medians over the repeats. `ratio` is the time over that of the first case in the
        same turn; `of_floor` the floor of the moment over the time, 1 is the most there can be unless data stays in a
        cache. With a clock of CPU time there are no shares: the limits are in wall time.
    """
    timings = [_Timings(case, [], []) for case in cases]
    for each in timings:
        each.case.run(clock)  # warms up: pages, caches, branch predictors
    for _ in range(repeats):
        for each in timings:
            each.probes.append(probe(pool, isa, each.case.arithmetic))
            each.seconds.append(each.case.run(clock))
    for each in timings:
        yield _row(each, timings[0], wall=clock is time.perf_counter)


def _row(timings: _Timings, first: _Timings, *, wall: bool) -> dict[str, Any]:
    case, seconds = timings.case, statistics.median(timings.seconds)
    row: dict[str, Any] = {
        "kernel": case.kernel,
        "form": case.form,
        "size": case.size,
        "ms": seconds * 1e3,
        "ratio": statistics.median(a / b for a, b in zip(timings.seconds, first.seconds, strict=True)),
        "num_calls": case.num_calls,
        "us_per_call": seconds * 1e6 / case.num_calls,
        "gb_per_s": case.num_bytes / seconds / 1e9,
        "gop_per_s": case.num_ops / seconds / 1e9 if case.num_ops else None,
        "repeats_ms": [s * 1e3 for s in timings.seconds],
    }
    return row | _limits(timings, seconds, wall)


def _limits(timings: _Timings, seconds: float, wall: bool) -> dict[str, Any]:
    case, pairs = timings.case, list(zip(timings.probes, timings.seconds, strict=True))
    bandwidth = statistics.median(p.bandwidth_gb_per_s for p in timings.probes)
    peaks = [p.peak_gop_per_s for p in timings.probes if p.peak_gop_per_s is not None]
    peak = statistics.median(peaks) if peaks else None
    fork_join_us = statistics.median(p.fork_join_us for p in timings.probes)
    by_bytes = case.num_bytes / bandwidth
    by_ops = case.num_ops / peak if peak else 0.0
    shares = {
        "of_floor": statistics.median(p.floor_s(case.num_bytes, case.num_ops) / s for p, s in pairs),
        "of_bandwidth": statistics.median(case.num_bytes / s / 1e9 / p.bandwidth_gb_per_s for p, s in pairs),
        "of_peak": case.num_ops / seconds / 1e9 / peak if peak else None,
        "fork_join_share": fork_join_us * case.num_calls / 1e6 / seconds,
    }
    return {
        "bound": "bytes" if by_bytes >= by_ops else "operations",
        "floor_ms": max(by_bytes, by_ops) / 1e6,
        "bandwidth_gb_per_s": bandwidth,
        "peak_gop_per_s": peak,
        "fork_join_us": fork_join_us,
        **(shares if wall else dict.fromkeys(shares)),
    }
