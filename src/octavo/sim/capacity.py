"""How much a system sustains: the highest rate whose latency is still bearable."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.errors import ConfigError

LIMIT_S_PER_TOKEN = 0.5
"""The paper compares rates "at similar latencies" and names none. At this one its figures give its text's ratios."""


def crossing(points: Iterable[tuple[float, float]], limit: float = LIMIT_S_PER_TOKEN) -> float | None:
    """The rate at which a measured curve of (rate, normalised latency) first passes a limit, by linear interpolation.

    None if it never passes it, or starts above it.
    """
    before: tuple[float, float] | None = None
    for rate, latency in sorted(points):
        if latency > limit:
            if before is None:
                return None
            share = (limit - before[1]) / (latency - before[1]) if latency != float("inf") else 0.0
            return before[0] + share * (rate - before[0])
        before = (rate, latency)
    return None


def sustained_rate(
    latency: Callable[[float], float],
    first_guess: float,
    *,
    limit: float = LIMIT_S_PER_TOKEN,
    tolerance: float = 0.02,
    most_runs: int = 16,
) -> float:
    """The highest rate whose latency is at most `limit`: doubled or halved to a bracket, then bisected.

    Args:
        latency: Runs the system at a rate; rises with it.
        first_guess: A rate to begin with.
        limit: In the unit of `latency`.
        tolerance: Relative width of the last bracket.
        most_runs: Runs at most.

    Returns:
        A rate that was run and is sustained; 0 if none was.

    Raises:
        ConfigError: For a first guess that is not above 0.
    """
    if not first_guess > 0:
        raise ConfigError("first_guess", first_guess, "a rate above 0")
    good, bad, rate = 0.0, 0.0, first_guess
    for _ in range(most_runs):
        if latency(rate) <= limit:
            good = rate
        else:
            bad = rate
        if not bad:
            rate = 2 * good
        elif not good:
            rate = bad / 2
        elif bad - good <= tolerance * good:
            break
        else:
            rate = (good + bad) / 2
    return good
