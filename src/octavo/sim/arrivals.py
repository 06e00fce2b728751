"""When requests arrive: seconds from the start of a workload, in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from octavo.errors import ConfigError

MOST_REQUESTS = 250_000
"""Of a workload: they are kept in memory, and every one is served. The paper's longest runs have half as many."""


def poisson(rate: float, duration_s: float, rng: Random) -> list[float]:
    """A Poisson process: independent exponential gaps with mean 1 / `rate` (section 6.1 of the paper).

    The authors' script draws Poisson counts for slices of 10 ms instead, and lets a slice's requests arrive together;
    at the rates of the paper a step takes longer than a slice, so the two cannot be told apart.

    Raises:
        ConfigError: If `rate` or `duration_s` is not above 0 and finite, or they make more than MOST_REQUESTS.
    """
    _check(rate, duration_s)
    return _renewal(duration_s, rng.expovariate(rate), lambda: rng.expovariate(rate))


def bursty(rate: float, duration_s: float, rng: Random, cv: float = 4.0) -> list[float]:
    """Gaps from a gamma distribution with mean 1 / `rate` and coefficient of variation `cv`: many short gaps, a few
    long ones. `cv` = 1 is a Poisson process; below 1 arrivals are more regular than that.

    The process is stationary: the wait for the first arrival is that of an observer who comes at a random moment,
    so that `rate` * `duration_s` requests are expected for any `cv`.

    Raises:
        ConfigError: If `rate`, `duration_s` or `cv` is not above 0 and finite, or they make more than MOST_REQUESTS.
    """
    _check(rate, duration_s)
    if not 1e-3 <= cv <= 1e3:
        raise ConfigError("cv", cv, "from 0.001 to 1000")
    shape = cv**-2
    scale = 1 / (rate * shape)
    # A random moment falls into a gap with a probability proportional to the gap's length, and anywhere within it.
    first = rng.random() * rng.gammavariate(shape + 1, scale)
    return _renewal(duration_s, first, lambda: rng.gammavariate(shape, scale))


QUANTUM_S = 0.01
"""Slices of the authors' trace generator."""
MOST_SLICES = 10_000_000
_OTHER_METHOD = 10
"""A mean count from which on numpy rejects from a transformed distribution instead of multiplying uniform numbers."""


def artifact(rate: float, duration_s: float, seed: int) -> list[float]:
    """The very arrivals of the paper's runs: Poisson counts for slices of 10 ms, all of a slice at its beginning, drawn
    as numpy's legacy generator draws them from that seed (the authors' scripts set 0).

    A figure of the paper is one draw of its workload, and some of its numbers move by several per cent between draws.

    Raises:
        ConfigError: If `rate` or `duration_s` is not above 0 and finite, there are more than MOST_REQUESTS or
            MOST_SLICES, or the rate is so high that numpy draws in another way.
    """
    _check(rate, duration_s)
    if rate * QUANTUM_S >= _OTHER_METHOD:
        raise ConfigError("rate", rate, f"below {_OTHER_METHOD / QUANTUM_S:g} with the artifact's arrivals")
    if duration_s / QUANTUM_S > MOST_SLICES:
        allowed = f"at most {MOST_SLICES} of {QUANTUM_S:g} s in the artifact's arrivals: lower the duration"
        raise ConfigError("slices", round(duration_s / QUANTUM_S), allowed)
    rng = _legacy_generator(seed)
    least = math.exp(-rate * QUANTUM_S)
    times = []
    for number in range(int(duration_s * (1 / QUANTUM_S))):
        # Knuth's method: multiply uniform numbers until the product falls to the probability of no arrival.
        product = rng.random()
        while product > least:
            times.append(number * QUANTUM_S)
            product *= rng.random()
        _check_count(len(times))
    return times


def _legacy_generator(seed: int) -> Random:
    """A Mersenne Twister seeded as numpy's `seed` does it: Knuth's recurrence from the 32-bit seed (Matsumoto and
    Nishimura 1998, the generator's `init_genrand`). Python's own seeding mixes differently; the generator is the same.
    """
    words = [seed & 0xFFFFFFFF]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ (words[-1] >> 30)) + i) & 0xFFFFFFFF)
    rng = Random()
    rng.setstate((3, (*words, 624), None))
    return rng


def from_trace(times_s: Sequence[float], duration_s: float, rate: float | None = None) -> list[float]:
    """Arrivals as they were recorded, from the first one on, for `duration_s`.

    Args:
        times_s: Recorded times, in order, from any origin.
        rate: Mean rate to stretch or shrink all gaps to; None keeps the recorded one.

    A trace shorter than `duration_s` begins again, one mean gap after its last arrival.

    Raises:
        ConfigError: If `rate` or `duration_s` is not above 0 and finite, the trace holds no two different times
            but must be rescaled or repeated, or there would be more than MOST_REQUESTS.
    """
    _check_positive("rate", 1.0 if rate is None else rate)
    _check_positive("duration_s", duration_s)
    span = times_s[-1] - times_s[0] if times_s else 0.0
    if span <= 0:
        raise ConfigError("arrivals", list(times_s[:3]), "at least two times that differ")
    mean_gap = span / (len(times_s) - 1)
    stretch = 1.0 if rate is None else 1 / (rate * mean_gap)
    lap_s = (span + mean_gap) * stretch
    _check_count(len(times_s) * duration_s / lap_s)
    once = [(time - times_s[0]) * stretch for time in times_s]
    laps = math.ceil(duration_s / lap_s)
    return [
        start + time for start in (lap * lap_s for lap in range(laps)) for time in once if start + time < duration_s
    ]


def _renewal(duration_s: float, first: float, gap: Callable[[], float]) -> list[float]:
    times = []
    now = first
    while now < duration_s:
        times.append(now)
        _check_count(len(times))
        now += gap()
    return times


def _check(rate: float, duration_s: float) -> None:
    _check_positive("rate", rate)
    _check_positive("duration_s", duration_s)
    _check_count(rate * duration_s)


def _check_count(count: float) -> None:
    """Of expected arrivals, before they are drawn, and of those drawn: bursty ones may be many more."""
    if count > MOST_REQUESTS:
        raise ConfigError("requests", round(count), f"at most {MOST_REQUESTS} in a run: lower the rate or the duration")


def _check_positive(field: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(field, value, "above 0 and finite")
