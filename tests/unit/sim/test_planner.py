"""The search for a plan, on small systems whose capacity is known."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from octavo.core.kv_spec import KVGroup
from octavo.errors import ConfigError
from octavo.sim.planner import Axis, run_here, search
from octavo.sim.request import TimedRequest
from octavo.sim.trials import (
    FEWEST,
    Candidate,
    Objectives,
    confirmed,
    guess_rate,
    measured_at,
    population,
    residence_s,
    sustained,
    trial,
)
from support.simulations import LinearCost, small_system

LOOSE = Objectives(ttft_s=30.0, tpot_s=10.0)
STEP_S = 0.1


class Steady:
    """A step takes the same time whatever is in it."""

    def __init__(self, step_s: float = STEP_S) -> None:
        self.step_s = step_s

    def step(self, work: Any) -> Any:
        return LinearCost(self.step_s, 0.0).step(work)


def regular(count: int, num_input: int = 8, num_output: int = 20) -> list[TimedRequest]:
    """One a second, all alike but for their first token."""
    return [
        TimedRequest(arrival_s=i + 0.5, token_ids=[2 + i] + [0] * (num_input - 1), num_output_tokens=num_output)
        for i in range(count)
    ]


def candidate(cost: Any = None, num_devices: int = 1, **system: Any) -> Candidate:
    return Candidate(num_devices=num_devices, kv_dtype="bfloat16", system=small_system(**system), cost=cost or Steady())


def test_littles_law_is_the_first_guess() -> None:
    """16 rows, each of which a request holds for 20 steps of 0.1 s."""
    assert guess_rate(candidate(), regular(50), LOOSE) == pytest.approx(16 / (20 * STEP_S))
    assert residence_s(candidate(), regular(50), LOOSE) == pytest.approx(20 * STEP_S)


def test_memory_bounds_the_guess() -> None:
    """5 blocks of 16 slots: sequences of 18 tokens on average."""
    assert guess_rate(candidate(num_blocks=5), regular(50), LOOSE) == pytest.approx(4 / (20 * STEP_S))
    local, whole = KVGroup(layers=(0,), window=8), KVGroup(layers=(1,))
    # 18 tokens of one group and 8 of another, 26 slots of 80; two groups of 8 tokens, 16 slots.
    for groups, most in (((local, whole), 3), ((local, local), 5)):
        one = candidate(num_blocks=5, kv_groups=groups)
        assert guess_rate(one, regular(50), LOOSE) == pytest.approx(most / (20 * STEP_S))


def test_a_guess_reads_what_is_within_the_windows() -> None:
    cost = LinearCost()
    one = candidate(cost, kv_groups=(KVGroup(layers=(0,), window=6), KVGroup(layers=(1,))))
    guess_rate(one, regular(50), LOOSE)
    assert cost.works[0].decode_context_tokens == (6 + 18) / 2
    assert cost.works[-1].chunks[0].reach == one.system.reach


@pytest.mark.parametrize("ttft_s", [2.0, 1000.0])
@pytest.mark.parametrize("guess", [0.5, 7.0, 40.0])
def test_the_capacity_is_found_from_any_guess(guess: float, ttft_s: float) -> None:
    """Also where the first token may take longer than the trial: a queue that grows is no way to serve."""
    capacity = 16 / (20 * STEP_S)
    outcome = sustained(candidate(), regular(800), Objectives(ttft_s=ttft_s, tpot_s=1.0), guess, 20.0)
    assert 0.85 * capacity < outcome.rate < 1.15 * capacity
    assert outcome.best is not None and outcome.best.holds
    assert outcome.below > outcome.rate
    assert [point.rate for point in outcome.points] == sorted(point.rate for point in outcome.points)


def test_more_memory_never_carries_less() -> None:
    objectives = Objectives(ttft_s=2.0, tpot_s=0.5)
    rates = []
    for num_blocks in (6, 12, 24, 48):
        one = candidate(num_blocks=num_blocks)
        guess = guess_rate(one, regular(10), objectives)
        rates.append(sustained(one, regular(600), objectives, guess, 20.0).rate)
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]


def test_a_tighter_objective_carries_less() -> None:
    cost = LinearCost(step_s=0.05, token_s=0.01)
    found = [
        sustained(candidate(cost), regular(600), Objectives(ttft_s=5.0, tpot_s=tpot_s), 3.0, 20.0).rate
        for tpot_s in (0.1, 0.15, 0.4)
    ]
    assert 0 < found[0] < found[1] <= found[2]


def test_a_hopeless_trial_is_given_up() -> None:
    early = trial(candidate(), regular(800), Objectives(ttft_s=0.5, tpot_s=1.0), 50.0, 10.0)
    full = measured_at(candidate(), regular(800), Objectives(ttft_s=0.5, tpot_s=1.0), 50.0, 10.0).points[0]
    assert not early.holds and early.ttft_s is None
    assert not full.holds and full.ttft_s is not None and full.ttft_s > 0.5
    assert early.num_steps < full.num_steps / 2


def test_who_still_waits_at_the_end_counts_as_late() -> None:
    """One row: of 100 requests in 2 s hardly one is begun."""
    point = measured_at(candidate(max_num_seqs=1), regular(100), LOOSE, 50.0, 2.0).points[0]
    assert point.ttft_s is not None and 1.0 < point.ttft_s < 2.0
    assert not point.holds


def test_a_trial_begins_with_requests_midway() -> None:
    requests = regular(200)
    half = 0.5 * guess_rate(candidate(), requests, LOOSE)
    found = population(candidate(), requests, LOOSE, half)
    assert len(found) == 8
    for request in found:
        assert request.arrival_s == 0.0
        assert len(request.token_ids) + request.num_output_tokens == 8 + 20
        assert 1 <= request.num_output_tokens <= 20
        assert request.token_ids[0] > 1 << 29  # shares nothing with the request it was made from
    assert len({request.num_output_tokens for request in found}) > 3
    point = trial(candidate(enable_prefix_caching=True), requests, LOOSE, half, 20.0)
    assert point.mean_running == pytest.approx(8, rel=0.15)


def test_requests_with_several_answers_begin_empty() -> None:
    twice = [msgspec.structs.replace(request, n=2) for request in regular(50)]
    assert population(candidate(), twice, LOOSE, 1.0) == []
    assert trial(candidate(), twice, LOOSE, 1.0, 20.0).holds


def test_few_requests_are_never_too_few_for_a_percentile() -> None:
    point = trial(candidate(), regular(FEWEST), Objectives(ttft_s=1.0, tpot_s=1.0), 0.1, 5.0)
    assert point.holds and point.num_steps > 20 * (FEWEST // 2)


def test_a_rate_that_does_not_last_is_taken_back() -> None:
    one, objectives = candidate(), Objectives(ttft_s=2.0, tpot_s=1.0)
    hasty = sustained(one, regular(800), objectives, 10.0, 4.0)
    final = confirmed(hasty, regular(800), objectives, 60.0)
    assert 0 < final.rate <= hasty.rate
    assert final.best is not None


# ---- the search


def budgets(*values: int) -> Axis:
    def change(current: Candidate, value: int) -> Candidate:
        if value < 8:
            raise ConfigError("max_num_batched_tokens", value, "at least 8")
        return candidate(LinearCost(0.05, 0.002), max_num_batched_tokens=value)

    return Axis(name="max_num_batched_tokens", values=values, change=change)


def devices(*values: int) -> Axis:
    def change(current: Candidate, value: int) -> Candidate:
        return candidate(Steady(STEP_S / math.sqrt(value)), num_devices=value)

    return Axis(name="num_devices", values=values, change=change)


def plan(*axes: Axis, objectives: Objectives = LOOSE, **rest: Any) -> Any:
    return search(candidate(), list(axes), regular(600), objectives, horizon_s=15.0, **rest)


def test_the_best_rate_of_a_device_wins_and_all_alternatives_are_shown() -> None:
    """Two devices are 1.4 times as fast as one: not worth it."""
    found = plan(devices(1, 2, 4))
    assert found.best.candidate.num_devices == 1
    assert [(one.value, one.chosen) for one in found.tried] == [(1, True), (2, False), (4, False)]
    rates = [one.outcome.rate for one in found.tried]
    assert rates == sorted(rates)


def test_what_cannot_be_tried_says_why() -> None:
    found = plan(budgets(4, 16, 64))
    assert found.tried[0].value == 4 and found.tried[0].outcome is None
    assert found.tried[0].why_not == "max_num_batched_tokens = 4: must be at least 8"
    assert found.best.candidate.system.max_num_batched_tokens in (16, 64)


def test_an_axis_on_which_nothing_fits_is_the_error() -> None:
    with pytest.raises(ConfigError, match="max_num_batched_tokens = 4: must be at least 8"):
        plan(budgets(4, 2))


def test_alternatives_that_are_no_better_cost_one_trial() -> None:
    def same(current: Candidate, value: int) -> Candidate:
        return msgspec.structs.replace(current, system=small_system(block_size=value, num_blocks=1024 // value))

    found = plan(devices(1), Axis(name="block_size", values=(8, 16, 32), change=same))
    later = [one for one in found.tried if one.setting == "block_size"]
    assert [one.value for one in later if one.chosen] == [16]
    for one in later:
        if not one.chosen:
            assert len(one.outcome.points) == 1 and one.outcome.below > found.best.rate


def test_jobs_are_handed_to_whoever_runs_them() -> None:
    sizes = []

    def run_all(what: str, jobs: Any) -> Any:
        sizes.append((what, len(jobs)))
        return run_here(what, jobs)

    found = plan(devices(1, 2), budgets(16, 64), run_all=run_all)
    assert sizes == [("num_devices", 2), ("max_num_batched_tokens", 2), ("sustained rate", 1)]
    assert found.num_steps > 0


def test_a_search_is_bounded_in_steps() -> None:
    """What keeps the command within its 20 seconds: a trial lasts some residences, a bisection a few trials."""
    found = plan(devices(1, 2, 4), budgets(16, 64, 256))
    steps_of_a_trial = (15.0 + 20 * STEP_S) / 0.05
    assert found.num_steps < 7 * steps_of_a_trial * 7


@pytest.mark.parametrize(
    ("objectives", "said"),
    [
        (Objectives(ttft_s=30.0, tpot_s=0.05), "tpot_ms = 50.0: must be at least 100: for 90 % of requests served one"),
        (Objectives(ttft_s=0.05, tpot_s=10.0), "ttft_ms = 50.0: must be at least 100: .* the first token comes after"),
    ],
)
def test_objectives_out_of_reach_are_an_error_with_the_numbers(objectives: Objectives, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        plan(devices(1), objectives=objectives)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ttft_s": 0.0, "tpot_s": 1.0}, "ttft_s"),
        ({"ttft_s": 1.0, "tpot_s": math.nan}, "tpot_s"),
        ({"ttft_s": 1.0, "tpot_s": 1.0, "percent": 0.0}, "percent"),
    ],
)
def test_objectives_are_checked(fields: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Objectives(**fields)
