"""Trials of a way to serve: the same requests, closer together or further apart, until their latencies are too long.

A trial runs the real core under a virtual clock for some time, beginning with about as many requests under way as
Little's law expects, so that it need not wait until the system has filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.messages import TokenDelta
from octavo.sim.cost_model import Chunk, CostModel, StepCost, StepWork
from octavo.sim.request import TimedRequest
from octavo.sim.result import percentile
from octavo.sim.simulator import Simulation
from octavo.sim.system import System

WARM_UP = 0.2
"""Share of the requests, the first ones, whose latencies do not count: they come to a system that is settling."""

WAITING = 0.05
"""Share of a trial's requests that may wait for their first token at its end."""

TOLERANCE = 0.05
"""Width of the bracket in which a bisection ends, as a share of the rate."""

MOST_TRIALS = 9
"""Of one bisection."""

FEWEST = 100
"""Requests of a trial."""

CONFIRMS = 2
"""Times as long as the trials of the search lasts the trial that confirms its result."""

_STRIDES = (1.1, 1.3, 2.0, 4.0, 8.0)
"""Factors by which a search moves away from a guess that was wrong, one after another."""

_OTHERS = 1 << 30
"""Added to a prompt's own tokens (not to 0 and 1, which fill prompts and common prefixes), so that what is under way
shares nothing with the same request when it comes."""


class Objectives(msgspec.Struct, frozen=True, kw_only=True):
    """What is soon enough.

    Raises:
        ConfigError: For a time that is not above 0, or a percentage that is not from 1 to 100.
    """

    ttft_s: float
    """From arrival to the first token."""
    tpot_s: float
    """For each token after it, on average over an answer."""
    percent: float = 90.0
    """Share of requests for which each must hold."""

    def __post_init__(self) -> None:
        for name in ("ttft_s", "tpot_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(name, getattr(self, name), "seconds above 0")
        if not 1 <= self.percent <= 100:
            raise ConfigError("percent", self.percent, "from 1 to 100")


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A way to serve."""

    num_devices: int
    """Over which heads and matrices are split."""
    kv_dtype: str
    system: System
    cost: Any
    """A CostModel without state."""

    @property
    def settings(self) -> dict[str, int | str]:
        """What was searched, by name."""
        system = self.system
        return {
            "num_devices": self.num_devices,
            "kv_cache_dtype": self.kv_dtype,
            "block_size": system.block_size,
            "max_num_batched_tokens": system.max_num_batched_tokens,
        }


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One trial. Times are percentiles at `Objectives.percent`; None where the trial was given up because so many
    requests were late already that the objectives could no longer be met."""

    rate: float
    holds: bool
    num_steps: int
    ttft_s: float | None = None
    tpot_s: float | None = None
    ttft_p50_s: float | None = None
    tpot_p50_s: float | None = None
    mean_running: float | None = None
    num_preemptions: int | None = None


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a candidate sustains: the best of its trials, and all of them."""

    candidate: Candidate
    rate: float
    """Requests a second; 0 if no trial met the objectives."""
    points: list[Point]
    """By rate."""

    @property
    def below(self) -> float:
        """The lowest rate that broke the objectives; infinite if none did."""
        return min((point.rate for point in self.points if not point.holds), default=math.inf)

    @property
    def best(self) -> Point | None:
        """The trial at `rate`."""
        return next((point for point in self.points if point.holds and point.rate == self.rate), None)

    @property
    def rate_per_device(self) -> float:
        return self.rate / self.candidate.num_devices


class _Hopeless(Exception):
    """So many requests are late that a trial cannot meet its objectives any more."""


class _Trial(Simulation):
    """A simulation that is given up as soon as its objectives are out of reach."""

    def __init__(
        self, system: System, cost: CostModel, requests: Sequence[TimedRequest], objectives: Objectives, first: int
    ) -> None:
        super().__init__(system, cost, requests)
        self._objectives = objectives
        self._first = first
        allowed = (len(requests) - first) * (1 - objectives.percent / 100)
        self._late, self._slow, self._allowed = 0, 0, math.floor(allowed) + 1
        self._num_due = 0
        """Requests, in order of arrival, whose first token is there or late."""
        self.num_steps = 0

    def _note(self, deltas: list[TokenDelta], now_s: float) -> None:
        super()._note(deltas, now_s)
        self.num_steps += 1
        records, ttft_s = self._records, self._objectives.ttft_s
        while self._num_due < len(records) and records[self._num_due].arrival_s + ttft_s < now_s:
            record = records[self._num_due]
            self._late += self._num_due >= self._first and (record.first_token_s is None or record.ttft_s > ttft_s)
            self._num_due += 1
        for delta in deltas:
            if delta.finish_reason is None or delta.request_id < self._first:
                continue
            record = records[delta.request_id]
            if len(record.finishes_s) == record.num_sequences:
                self._slow += record.tpot_s > self._objectives.tpot_s
        if max(self._late, self._slow) > self._allowed:
            raise _Hopeless


def at_rate(requests: Sequence[TimedRequest], rate: float) -> list[TimedRequest]:
    """The same requests, so many a second.

    Args:
        requests: In order of arrival, one a second on average.
    """
    return [msgspec.structs.replace(request, arrival_s=request.arrival_s / rate) for request in requests]


def trial(
    candidate: Candidate,
    requests: Sequence[TimedRequest],
    objectives: Objectives,
    rate: float,
    horizon_s: float,
    *,
    gives_up: bool = True,
) -> Point:
    """Serve requests at a rate for some time and see whether the objectives are met.

    A queue that holds more than `WAITING` of all requests at the end has grown: the objectives would be broken later.
    Who has no first token at the end counts with the time since its arrival; tokens after it count where all have come.

    Args:
        requests: In order of arrival, one a second on average; as many are taken as arrive in time.
        horizon_s: For how long; longer if fewer than `FEWEST` would arrive.
        gives_up: End as soon as the objectives cannot be met any more.
    """
    timed = at_rate(requests[: max(FEWEST, math.ceil(rate * horizon_s))], rate)
    under_way = population(candidate, requests, objectives, rate)
    first = len(under_way) + int(len(timed) * WARM_UP)
    everyone = [*under_way, *timed]
    cost = _FreeStart(candidate.cost, sum(len(request.token_ids) for request in under_way))
    simulation = _Trial(candidate.system, cost, everyone, objectives, first if gives_up else len(everyone))
    try:
        result = simulation.run(until_s=timed[-1].arrival_s)
    except _Hopeless:
        return Point(rate=rate, holds=False, num_steps=simulation.num_steps)
    counted = result.records[first:]
    ttft = [r.ttft_s if r.first_token_s is not None else result.end_s - r.arrival_s for r in counted]
    tpot = [r.tpot_s for r in counted if r.is_finished and r.num_output_tokens > 1] or [0.0]
    found = {"ttft_s": percentile(ttft, objectives.percent), "tpot_s": percentile(tpot, objectives.percent)}
    num_waiting = sum(record.first_token_s is None for record in result.records)
    is_soon = found["ttft_s"] <= objectives.ttft_s and found["tpot_s"] <= objectives.tpot_s
    return Point(
        rate=rate,
        holds=is_soon and num_waiting <= WAITING * len(timed),
        num_steps=result.num_steps,
        ttft_p50_s=percentile(ttft, 50),
        tpot_p50_s=percentile(tpot, 50),
        mean_running=result.mean_running,
        num_preemptions=result.num_preemptions,
        **found,
    )


def sustained(
    candidate: Candidate,
    requests: Sequence[TimedRequest],
    objectives: Objectives,
    guess: float,
    horizon_s: float,
    tolerance: float = TOLERANCE,
    enough: float = 0.0,
) -> Outcome:
    """Find the highest rate that meets the objectives, within `tolerance`, beginning with a guess; see `trial`.

    Args:
        enough: A rate at which it does not matter any more: once it is known that not more than this is sustained, the
            search ends.
    """
    low, high, rate = 0.0, math.inf, guess
    points: list[Point] = []
    strides = iter(_STRIDES)
    while len(points) < MOST_TRIALS:
        point = trial(candidate, requests, objectives, rate, horizon_s)
        points.append(point)
        low, high = (rate, high) if point.holds else (low, rate)
        if high <= low * (1 + tolerance) or high <= enough:
            break
        if low and high < math.inf:
            rate = math.sqrt(low * high)
        else:
            stride = next(strides, _STRIDES[-1])
            rate = low * stride if low else high / stride
    return Outcome(candidate=candidate, rate=low, points=sorted(points, key=lambda point: point.rate))


def population(
    candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives, rate: float
) -> list[TimedRequest]:
    """Requests that are under way when a trial begins, so that it need not wait until the system has filled: as many
    as Little's law expects at this rate, each somewhere within its answer. What is answered stands in the prompt.

    A request is met with a probability proportional to its answer's length. Requests with several answers are not
    begun midway; with them a trial begins empty.
    """
    if any(request.n > 1 or request.beam_width for request in requests):
        return []
    sustained_rate, at_once = _guess_load(candidate, requests, objectives)
    count = int(min(at_once, at_once * rate / sustained_rate))
    rng = Random(count)
    found = []
    for request in rng.choices(requests, [request.num_output_tokens for request in requests], k=count):
        num_done = rng.randrange(request.num_output_tokens)
        found.append(
            msgspec.structs.replace(
                request,
                arrival_s=0.0,
                token_ids=[token + _OTHERS if token > 1 else token for token in request.token_ids] + [0] * num_done,
                num_output_tokens=request.num_output_tokens - num_done,
            )
        )
    return found


class _FreeStart:
    """A cost model that takes no time until so many tokens of prompts are computed, or there are none to compute."""

    def __init__(self, cost: CostModel, num_tokens: int) -> None:
        self._cost, self._left = cost, num_tokens

    def step(self, work: StepWork) -> StepCost:
        if self._left > 0 and work.chunks:
            self._left -= sum(chunk.num_tokens for chunk in work.chunks)
            return StepCost(forward_s=0.0)
        self._left = 0
        return self._cost.step(work)


def measured_at(
    candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives, rate: float, horizon_s: float
) -> Outcome:
    """One trial, to its end whatever becomes of the objectives."""
    point = trial(candidate, requests, objectives, rate, horizon_s, gives_up=False)
    return Outcome(candidate=candidate, rate=rate if point.holds else 0.0, points=[point])


def confirmed(outcome: Outcome, requests: Sequence[TimedRequest], objectives: Objectives, horizon_s: float) -> Outcome:
    """The outcome over a longer time than the search had: its rate, taken back in small steps until it holds there."""
    rate, points = outcome.rate, list[Point]()
    while rate and len(points) < MOST_TRIALS:
        points.append(trial(outcome.candidate, requests, objectives, rate, horizon_s))
        if points[-1].holds:
            break
        rate *= 1 - 1.5 * TOLERANCE
    held = [point.rate for point in points if point.holds]
    found = sorted(points, key=lambda point: point.rate)
    return Outcome(candidate=outcome.candidate, rate=max(held, default=0.0), points=found)


def guess_rate(candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives) -> float:
    """About what a candidate sustains, by Little's law: as many sequences at once as memory holds and the time per
    token allows, each step with its share of prompts."""
    return _guess_load(candidate, requests, objectives)[0]


def residence_s(candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives) -> float:
    """About how long a request is in the system then."""
    rate, at_once = _guess_load(candidate, requests, objectives)
    return at_once / rate


def _guess_load(candidate: Candidate, requests: Sequence[TimedRequest], objectives: Objectives) -> tuple[float, int]:
    system, cost = candidate.system, candidate.cost
    num_input, num_output = mean_lengths(requests)
    held = num_input + num_output / 2
    most = max(1, min(system.max_num_seqs, int(system.num_blocks * system.block_size / system.held_slots(held))))
    reach = system.reach
    attended = reach.attended([held])
    best, at_once, count = 0.0, 1, 1
    while True:
        prompts = count * num_input / num_output
        steps = max(1.0, (count + prompts) / system.max_num_batched_tokens)
        chunk = int(prompts / steps)
        work = StepWork(
            num_tokens=count + chunk,
            num_decodes=count,
            decode_context_tokens=int(count * attended),
            chunks=[Chunk(chunk, 0, reach)] if chunk else [],
            num_sampled=count,
        )
        step_s = cost.step(work).forward_s * steps
        rate = count / (num_output * step_s)
        if count == 1 or (step_s <= objectives.tpot_s and rate > best):
            best, at_once = rate, count
        if count == most:
            return best, at_once
        count = min(most, math.ceil(count * 1.3))


def mean_lengths(requests: Sequence[TimedRequest]) -> tuple[float, float]:
    """(prompt, answer) tokens of a request; answers of all its sequences together."""
    count = len(requests)
    outputs = sum(request.num_output_tokens * (request.beam_width or request.n) for request in requests)
    return sum(len(request.token_ids) for request in requests) / count, outputs / count
