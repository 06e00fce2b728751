"""Guess as much as pays: by what was accepted, by what steps cost, and with a try now and then."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from octavo.core.accounts import Accounts
from octavo.core.draft_policy import Acceptance, AlwaysDraft, DraftWhereItPays, Outcome, StepCost
from octavo.core.request import Sequence, make_sequences
from octavo.core.step import StepPlan, StepResult
from support.core_scripts import request


def sequences(count: int) -> list[Sequence]:
    account = Accounts().open("a")
    return [make_sequences(request(i), i, 1, account)[0] for i in range(count)]


def plan(rows: int, **changes: Any) -> StepPlan:
    made = StepPlan(1, list(range(rows)), [1] * rows, list(range(rows)), [], [], [])
    for name, value in changes.items():
        setattr(made, name, value)
    return made


class Machine:
    """Steps that cost `base + token * n`, and drafts of which so many are accepted."""

    def __init__(self, base_s: float, token_s: float, rate: float, draft_s: float = 0.0) -> None:
        self.policy = DraftWhereItPays()
        self.base_s, self.token_s, self.rate, self.draft_s = base_s, token_s, rate, draft_s
        self._debt = 0.0

    def step(self, running: list[Sequence], most: int = 6) -> list[int]:
        rows = len(running)
        chosen = self.policy.choose(running, [most] * rows, rows)
        assert all(0 <= count <= most for count in chosen)
        outcomes = [Outcome(s, n, self._accepted(n)) for s, n in zip(running, chosen, strict=True) if n]
        total = rows + sum(chosen)
        spent = self.draft_s * sum(chosen)
        result = StepResult(1, [], forward_s=self.base_s + self.token_s * total + spent, draft_s=spent)
        self.policy.observe(plan(rows), result, outcomes)
        return chosen

    def _accepted(self, num_drafts: int) -> int:
        """A fixed share, spread evenly; a rejected one ends the run."""
        for accepted in range(num_drafts):
            self._debt += 1.0 - self.rate
            if self._debt >= 1.0:
                self._debt -= 1.0
                return accepted
        return num_drafts


def test_one_stream_whose_drafts_are_right_guesses_all_it_may() -> None:
    machine, running = Machine(8e-3, 5e-4, rate=0.95), sequences(1)
    chosen = [machine.step(running)[0] for _ in range(128)]
    assert sorted(chosen[64:]) == [0, 0] + [6] * 62, "but for the steps that show what plain ones cost"


def test_drafts_that_are_never_right_stop_and_are_tried_ever_more_rarely() -> None:
    machine, running = Machine(8e-3, 1e-3, rate=0.0), sequences(1)
    chosen = [machine.step(running)[0] for _ in range(2000)]
    tried = [i for i, count in enumerate(chosen) if count]
    gaps = [b - a for a, b in pairwise(tried)]
    assert sum(chosen[50:]) < 60
    assert gaps[1] < gaps[2] < gaps[3] and max(gaps) < Acceptance.LAST_PROBE * 1.1, "plain steps come on top"


def test_who_begins_to_repeat_is_noticed() -> None:
    machine, running = Machine(8e-3, 1e-3, rate=0.0), sequences(1)
    for _ in range(100):
        machine.step(running)
    machine.rate = 1.0
    assert [machine.step(running) for _ in range(200)][-30:].count([6]) >= 29


def test_a_full_batch_guesses_only_what_is_nearly_certain() -> None:
    machine, running = Machine(1e-3, 1e-3, rate=0.6), sequences(16)
    chosen = [machine.step(running) for _ in range(100)]
    assert sum(map(sum, chosen[60:])) < 16 * 40 * 0.3
    alone = Machine(16e-3, 1e-3, rate=0.6)
    assert sum([alone.step(running[:1])[0] for _ in range(100)][60:]) > 40


def test_a_dear_drafter_guesses_less() -> None:
    running = sequences(1)
    cheap, dear = Machine(8e-3, 2e-4, rate=0.7), Machine(8e-3, 2e-4, rate=0.7, draft_s=6e-3)
    counts = [sum(machine.step(running)[0] for _ in range(200)) for machine in (cheap, dear)]
    assert counts[1] < counts[0] / 3


def test_what_all_have_shown_is_expected_of_a_new_one() -> None:
    machine, first = Machine(8e-3, 1e-3, rate=0.0), sequences(1)
    for _ in range(300):
        machine.step(first)
    assert machine.step(sequences(1)) == [0]


def test_each_sequence_is_judged_by_itself() -> None:
    policy, (good, bad) = DraftWhereItPays(), sequences(2)
    for i in range(20):
        policy.observe(
            plan(2),
            StepResult(1, [], forward_s=8e-3 + 1e-3 * (i % 2)),
            [Outcome(good, 2 + i % 2, 2 + i % 2), Outcome(bad, 2, 0)],
        )
    chosen = policy.choose([good, bad], [4, 4], 2)
    assert chosen[0] == 4 and chosen[1] == 0


def test_nothing_is_known_before_steps_of_two_sizes() -> None:
    policy, running = DraftWhereItPays(), sequences(2)
    assert [policy.choose(running, [3, 2], 2) for _ in range(4)] == [[3, 2], [0, 0], [3, 2], [0, 0]]
    policy.observe(plan(2), StepResult(1, [], forward_s=1e-3), [])
    assert policy.choose(running, [3, 2], 2) == [3, 2]


@pytest.mark.parametrize("changes", [{"num_new_tokens": []}, {"num_new_tokens": [1, 9]}])
def test_steps_with_prompts_or_without_rows_say_nothing_of_costs(changes: dict[str, Any]) -> None:
    policy = DraftWhereItPays()
    policy.observe(plan(len(changes["num_new_tokens"]), **changes), StepResult(1, [], forward_s=1.0), [])
    policy.observe(plan(2), StepResult(1, [], forward_s=0.0), [])
    assert policy.cost.at(4) == 0.0


def test_a_line_through_steps() -> None:
    cost = StepCost()
    for i in range(200):
        n = 1 + i % 7
        cost.add(n, 5e-3 + 1e-3 * n)
    assert cost.token_s == pytest.approx(1e-3) and cost.at(4) == pytest.approx(9e-3)
    cost.add(4, 10.0)
    assert cost.at(4) < 12e-3, "one step that something else held up"


def test_costs_are_never_below_nothing() -> None:
    cost = StepCost()
    for n in (1, 8, 1, 8):
        cost.add(n, 1e-3 / n)
    assert cost.token_s == 0.0 and cost.base_s > 0
    cost = StepCost()
    for n in (1, 8, 1, 8):
        cost.add(n, 1e-3 * max(1, n * n))
    assert cost.base_s == 0.0


def test_always_is_always() -> None:
    policy = AlwaysDraft()
    assert policy.choose(sequences(2), [3, 1], 2) == [3, 1]
    policy.observe(plan(2), StepResult(1, []), [])
    assert policy.choose(sequences(2), [3, 1], 2) == [3, 1]
