"""How a model is best served on given memory and arithmetic, and how much that carries: a search over simulations.

The sustainable rate is the highest at which a share of the requests (90 %, say) sees its first token and the tokens
after it soon enough. It is found by bisection (`octavo.sim.trials`). Settings are searched one after another, each with
the best of the others so far. Nothing here reads a clock or a file: whoever calls says where trials run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.sim.closed_loop import simulate_closed_loop
from octavo.sim.request import TimedRequest
from octavo.sim.trials import CONFIRMS, TOLERANCE, Candidate, Objectives, Outcome, confirmed, guess_rate, sustained

_ALONE = 12
"""Requests served one after another to see why the objectives cannot be met."""


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One setting with its alternatives, made from the best candidate so far. Those that do not fit make an error with
    the reason."""

    name: str
    values: tuple[Any, ...]
    change: Callable[[Candidate, Any], Candidate]


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """An alternative of the search."""

    setting: str
    value: Any
    outcome: Outcome | None
    why_not: str = ""
    """Why it could not be tried."""
    chosen: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    best: Outcome
    """Confirmed in a longer trial."""
    tried: list[Tried]
    num_steps: int
    """Simulated in all."""


Jobs = Sequence[Callable[[], Outcome]]
RunAll = Callable[[str, Jobs], list[Outcome]]
"""Runs jobs that do not depend on each other, and gives their results in order. The text says what they find out."""


def run_here(what: str, jobs: Jobs) -> list[Outcome]:
    """One after another."""
    return [job() for job in jobs]


class _Search:
    """The best so far, and what was tried."""

    def __init__(
        self,
        requests: Sequence[TimedRequest],
        objectives: Objectives,
        horizon_s: float,
        run_all: RunAll,
        tolerance: float,
    ) -> None:
        self.best: Outcome | None = None
        self.tried: list[Tried] = []
        self.num_steps = 0
        self._requests, self._objectives = requests, objectives
        self._longest = max((len(r.token_ids) + r.num_output_tokens for r in requests), default=0)
        self._horizon_s, self._run_all, self._tolerance = horizon_s, run_all, tolerance

    def vary(self, axis: Axis, current: Candidate) -> Candidate:
        """Try all values of a setting; returns the best candidate so far."""
        candidates, refused = _alternatives(axis, current, self._longest)
        best = self.best
        known = None if best is None else best.candidate.settings
        new = [(value, one) for value, one in candidates if one.settings != known]
        outcomes = self._run_all(axis.name, [self._job(one) for _, one in new])
        self._count(outcomes)
        here = [(value, outcome) for (value, _), outcome in zip(new, outcomes, strict=True)]
        if best is not None:
            here += [(value, best) for value, one in candidates if one.settings == known]
        self.best = chosen = _better(best, [outcome for _, outcome in here], self._tolerance)
        found = [Tried(setting=axis.name, value=v, outcome=o, chosen=o is chosen) for v, o in here]
        order = {str(value): i for i, value in enumerate(axis.values)}
        self.tried += sorted(found + refused, key=lambda one: order[str(one.value)])
        return chosen.candidate

    def confirm(self) -> Plan:
        """Run the best for longer."""
        assert self.best is not None, "there is at least one axis"
        job = partial(confirmed, self.best, self._requests, self._objectives, CONFIRMS * self._horizon_s)
        (final,) = self._run_all("sustained rate", [job])
        self._count([final])
        return Plan(best=final, tried=self.tried, num_steps=self.num_steps)

    def _count(self, outcomes: list[Outcome]) -> None:
        self.num_steps += sum(point.num_steps for outcome in outcomes for point in outcome.points)

    def _job(self, candidate: Candidate) -> Callable[[], Outcome]:
        """What a candidate sustains, beginning with a guess: from the best so far, scaled as the two differ by Little's
        law. Not more exactly than to know that it is no better."""
        best, requests, objectives = self.best, self._requests, self._objectives
        guess, enough = guess_rate(candidate, requests, objectives), 0.0
        if best is not None:
            enough = best.rate_per_device * candidate.num_devices * (1 + self._tolerance)
            guess = max(enough, best.rate * guess / guess_rate(best.candidate, requests, objectives))
        return partial(sustained, candidate, requests, objectives, guess, self._horizon_s, self._tolerance, enough)


def search(
    start: Candidate,
    axes: Iterable[Axis],
    requests: Sequence[TimedRequest],
    objectives: Objectives,
    *,
    horizon_s: float,
    run_all: RunAll = run_here,
    tolerance: float = TOLERANCE,
) -> Plan:
    """Find the candidate with the highest sustainable rate per device, in short trials, and confirm its rate in a
    longer one.

    Args:
        start: To begin with; the first values of the axes need not be its own.
        axes: Searched in this order, each once.
        requests: In order of arrival, one a second on average.
        horizon_s: Of a trial of the search.
        run_all: Where jobs run.
        tolerance: Width of the bracket in which a bisection ends, as a share of the rate.

    Raises:
        ConfigError: If nothing on an axis fits, or the objectives cannot be met with any value of the first one.
    """
    state = _Search(requests, objectives, horizon_s, run_all, tolerance)
    current = start
    for axis in axes:
        current = state.vary(axis, current)
        if state.best is None or not state.best.rate:
            raise why_unreachable(current, requests, objectives)
    plan = state.confirm()
    if not plan.best.rate:
        raise why_unreachable(current, requests, objectives)
    return plan


def why_unreachable(candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives) -> ConfigError:
    """Why no rate was sustained: what requests see that have the system to themselves, if that is too long already."""
    some = requests[:: max(1, len(requests) // _ALONE)][:_ALONE]
    result = simulate_closed_loop(candidate.system, candidate.cost, some, in_flight=1)
    percent = objectives.percent
    for field, found, wanted, what in (
        ("ttft_ms", result.ttft_s(percent), objectives.ttft_s, "the first token comes after"),
        ("tpot_ms", result.tpot_s(percent), objectives.tpot_s, "each further one takes"),
    ):
        if wanted < found < math.inf:
            allowed = (
                f"at least {found * 1e3:.3g}: for {percent:g} % of requests served one at a time, {what} up to that"
            )
            return ConfigError(field, wanted * 1e3, allowed)
    both = f"{objectives.ttft_s * 1e3:g} ms, {objectives.tpot_s * 1e3:g} ms"
    return ConfigError(
        "ttft_ms, tpot_ms", both, "longer: requests one at a time meet them, and no rate that was tried did"
    )


def _better(best: Outcome | None, outcomes: list[Outcome], tolerance: float) -> Outcome:
    """The best of them all; what was best before stays unless another is better by more than the search can tell."""
    found = max(outcomes, key=lambda outcome: outcome.rate_per_device)
    if best is None or found.rate_per_device > best.rate_per_device * (1 + tolerance):
        return found
    return best


def _able(candidate: Candidate, longest: int) -> Candidate:
    """The candidate; ConfigError if its memory does not hold the longest request."""
    most = candidate.system.max_model_len
    if most < longest:
        raise ConfigError("max_model_len", most, f"at least {longest}: so many tokens has the longest request")
    return candidate


def _alternatives(axis: Axis, current: Candidate, longest: int) -> tuple[list[tuple[Any, Candidate]], list[Tried]]:
    """Those that can serve requests of up to `longest` tokens, and the others with the reason."""
    fitting, refused, first = [], [], None
    for value in axis.values:
        try:
            fitting.append((value, _able(axis.change(current, value), longest)))
        except ConfigError as error:
            first = first or error
            refused.append(Tried(setting=axis.name, value=value, outcome=None, why_not=str(error)))
    if not fitting:
        assert first is not None, "an axis has values"
        raise first
    return fitting, refused
