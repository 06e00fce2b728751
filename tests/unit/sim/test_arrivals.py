"""Arrivals: the rate asked for, in order, within the duration, and the same again from the same seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.sim.arrivals import MOST_REQUESTS, artifact, bursty, from_trace, poisson

RATES = st.floats(0.05, 50)
DURATIONS = st.floats(0.5, 200)


@settings(max_examples=60, deadline=None)
@given(rate=RATES, duration_s=DURATIONS, seed=st.integers(0, 2**32), cv=st.floats(0.2, 8))
def test_arrivals_are_in_order_within_the_duration_and_repeatable(
    rate: float, duration_s: float, seed: int, cv: float
) -> None:
    for process in (lambda r: poisson(rate, duration_s, r), lambda r: bursty(rate, duration_s, r, cv)):
        times = process(Random(seed))
        assert all(0 <= a <= b < duration_s for a, b in pairwise([0.0, *times]))
        assert times == process(Random(seed))


def test_another_seed_gives_other_arrivals() -> None:
    assert poisson(5, 100, Random(1)) != poisson(5, 100, Random(2))
    assert bursty(5, 100, Random(1)) != bursty(5, 100, Random(2))


@pytest.mark.parametrize("cv", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(cv: float) -> None:
    times = bursty(10, 20_000, Random(7), cv)
    gaps = [b - a for a, b in pairwise(times)]
    assert len(times) / 20_000 == pytest.approx(10, rel=0.03)
    assert statistics.stdev(gaps) / statistics.mean(gaps) == pytest.approx(cv, rel=0.03)


def test_poisson_counts_vary_as_poisson_counts_do() -> None:
    times = poisson(3, 20_000, Random(3))
    counts = [0] * 20_000
    for time in times:
        counts[int(time)] += 1
    assert statistics.mean(counts) == pytest.approx(3, rel=0.02)
    assert statistics.variance(counts) == pytest.approx(3, rel=0.04)


def test_short_bursty_workloads_have_the_rate_too() -> None:
    """An ordinary renewal process from time 0 would have (cv^2 - 1) / 2 requests more, or less, each time."""
    counts = [len(bursty(2, 10, Random(seed), cv=3)) for seed in range(4000)]
    assert statistics.mean(counts) == pytest.approx(20, rel=0.04)


@settings(max_examples=60, deadline=None)
@given(
    times=st.lists(st.floats(0, 1000), min_size=2, max_size=30, unique=True).map(sorted),
    rate=st.none() | RATES,
)
def test_a_trace_keeps_its_pattern_at_any_rate(times: list[float], rate: float | None) -> None:
    mean_gap = (times[-1] - times[0]) / (len(times) - 1)
    lap_s = mean_gap * len(times) if rate is None else len(times) / rate
    found = from_trace(times, 2.5 * lap_s, rate)
    stretch = lap_s / (mean_gap * len(times))
    assert found[: len(times)] == pytest.approx([(time - times[0]) * stretch for time in times])
    assert all(a <= b for a, b in pairwise(found))
    # What the first lap does, the second does one lap later.
    assert found[len(times) : 2 * len(times)] == pytest.approx([time + lap_s for time in found[: len(times)]])


def test_a_trace_longer_than_the_workload_is_cut() -> None:
    assert from_trace([5.0, 6.0, 8.0, 11.0], 4.0) == [0.0, 1.0, 3.0]


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_settings_are_named(bad: float) -> None:
    with pytest.raises(ConfigError, match="rate"):
        poisson(bad, 1, Random(0))
    with pytest.raises(ConfigError, match="duration_s"):
        poisson(1, bad, Random(0))
    with pytest.raises(ConfigError, match="cv"):
        bursty(1, 1, Random(0), bad)
    with pytest.raises(ConfigError, match="rate"):
        from_trace([0, 1], 1, bad)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: poisson(1e5, 1e7, Random(0)),
        lambda: bursty(1e5, 1e7, Random(0)),
        lambda: bursty(MOST_REQUESTS / 2, 1.0, Random(1), cv=1000.0),  # half as many are expected; this draw has more
        lambda: artifact(900, 1e5, 0),
        lambda: from_trace([0.0, 1e-9], 1e7),
        lambda: from_trace([0.0, 1.0], 1e7, 1e5),
    ],
)
def test_more_requests_than_a_run_may_have_are_refused_at_once(draw: Callable[[], list[float]]) -> None:
    with pytest.raises(ConfigError, match=r"requests = \d+: must be at most 250000 in a run: lower the rate"):
        draw()


@pytest.mark.parametrize("times", [[], [1.0], [2.0, 2.0]])
def test_a_trace_without_two_times_is_refused(times: list[float]) -> None:
    with pytest.raises(ConfigError, match="at least two times that differ"):
        from_trace(times, 10)


@pytest.mark.parametrize(("rate", "seed"), [(4.0, 0), (30.0, 0), (0.5, 11)])
def test_the_authors_arrivals_are_those_that_numpy_draws(rate: float, seed: int) -> None:
    np = pytest.importorskip("numpy")
    counts = np.random.RandomState(seed).poisson(rate * 0.01, size=30_000)
    expected = [number * 0.01 for number, count in enumerate(counts) for _ in range(count)]
    assert artifact(rate, 300, seed) == expected
    assert len(expected) > 100
