"""Plans, seen from outside: what is in each, in which order, and who gives way."""

from __future__ import annotations

import pytest

from support.core_scripts import ScriptedExecutor, drain, engine, prompt, request, spec, tokens_of


def test_a_prompt_is_computed_and_then_one_token_per_step() -> None:
    executor = ScriptedExecutor()
    core = engine(executor)
    core.add(request(num_prompt=5, max_tokens=3))
    deltas = drain(core)
    assert [plan.num_new_tokens for plan in executor.plans] == [[5], [1], [1], []]
    assert [plan.sample_rows for plan in executor.plans] == [[0], [0], [0], []]
    assert tokens_of(deltas) == [5, 5, 5]
    assert executor.plans[3].released_rows == [0]
    setup = executor.plans[0].setups[0]
    assert (setup.row, setup.token_ids, setup.num_prompt_tokens, setup.num_computed_tokens) == (
        0,
        prompt(1, 5),
        5,
        0,
    )
    assert [plan.setups for plan in executor.plans[1:]] == [[], [], []]


def test_a_long_prompt_is_cut_and_decodes_go_with_it() -> None:
    executor = ScriptedExecutor()
    core = engine(executor, max_num_batched_tokens=8)
    core.add(request(1, num_prompt=3, max_tokens=5))
    core.add(request(2, num_prompt=14, max_tokens=1))
    drain(core)
    assert [plan.num_new_tokens for plan in executor.plans[:3]] == [[3, 5], [1, 7], [1, 2]]
    assert [plan.sample_rows for plan in executor.plans[:3]] == [[0], [0], [0, 1]]


def test_arrivals_are_admitted_in_order_and_nobody_passes() -> None:
    executor = ScriptedExecutor(num_blocks=1 + 4)
    core = engine(executor)
    core.add(request(1, num_prompt=8, max_tokens=2))
    core.add(request(2, num_prompt=12, max_tokens=1))  # needs 3 blocks, 2 are left
    core.add(request(3, num_prompt=4, max_tokens=1))
    core.step(0.0)
    assert [len(setup.token_ids) for setup in executor.plans[0].setups] == [8]
    drain(core)
    assert [len(setup.token_ids) for plan in executor.plans for setup in plan.setups] == [8, 12, 4]


def test_rows_bound_what_runs_and_are_used_again() -> None:
    executor = ScriptedExecutor()
    core = engine(executor, max_num_seqs=2)
    for i in range(4):
        core.add(request(i, num_prompt=2, max_tokens=2))
    drain(core)
    assert [[setup.row for setup in plan.setups] for plan in executor.plans[:3]] == [[0, 1], [], [1, 0]]
    assert sorted(executor.plans[2].released_rows) == [0, 1], "released and set up again in one plan"


def test_the_latest_arrival_gives_way_and_a_step_that_preempted_admits_nobody() -> None:
    executor = ScriptedExecutor(num_blocks=1 + 4)
    core = engine(executor)
    for i in (1, 2):
        core.add(request(i, num_prompt=8, max_tokens=6))
    core.add(request(3, num_prompt=1, max_tokens=1))
    deltas = [*core.step(0.0), *core.step(0.0)]
    plan = executor.plans[1]
    assert (plan.rows, plan.released_rows, plan.setups) == ([0], [1], [])
    assert core.stats().num_preemptions == 1 and core.stats().num_waiting == 2
    deltas += drain(core)
    again = next(plan for plan in executor.plans[2:] if plan.setups).setups[0]
    assert (again.token_ids, again.num_prompt_tokens) == ([*prompt(2, 8), 5], 8), "prompt and the token it had"
    assert [tokens_of(deltas, i) for i in (1, 2, 3)] == [[5] * 6, [5] * 6, [5]]
    stats = core.stats()
    assert stats.num_recomputed_tokens == 8 and stats.num_recompute_faults == 2


def test_at_depth_2_a_plan_is_made_before_the_last_is_known() -> None:
    executor = ScriptedExecutor()
    core = engine(executor, depth=2)
    core.add(request(num_prompt=5, max_tokens=3))
    assert core.step(0.0) == [] and len(executor.plans) == 1
    assert len(core.step(0.0)) == 1 and len(executor.plans) == 2
    deltas = drain(core)
    assert [plan.num_new_tokens for plan in executor.plans] == [[5], [1], [1], []]
    assert tokens_of(deltas) == [5, 5] and core.stats().num_wasted_slots == 0, "no step is planned past max_tokens"


def test_at_depth_2_a_surprising_end_wastes_one_slot() -> None:
    executor = ScriptedExecutor(token=2)
    core = engine(executor, depth=2)
    core.add(request(num_prompt=5, max_tokens=9, eos_token_ids=(2,)))
    deltas = drain(core)
    assert tokens_of(deltas) == [2] and deltas[-1].finish_reason == "stop"
    assert [plan.num_new_tokens for plan in executor.plans] == [[5], [1], []]
    assert core.stats().num_wasted_slots == 1


def test_at_depth_2_rows_and_blocks_wait_for_the_plan_in_flight() -> None:
    executor = ScriptedExecutor()
    core = engine(executor, depth=2)
    core.add(request(1, num_prompt=5, max_tokens=9))
    core.step(0.0)
    core.step(0.0)
    core.abort(1)
    assert (core.stats().num_held_blocks, core.stats().num_pinned_blocks) == (0, 2) and core.audit() == []
    core.add(request(2, num_prompt=2, max_tokens=1))
    core.step(0.0)
    assert executor.plans[2].setups[0].row == 1 and executor.plans[2].released_rows == []
    assert core.stats().num_held_blocks == 1
    drain(core)
    assert 0 in executor.plans[3].released_rows


def test_at_depth_2_an_older_sequence_waits_for_blocks_on_their_way_back() -> None:
    """The victim's blocks come back only when the plan in flight is applied; until then nobody else is preempted."""
    executor = ScriptedExecutor(num_blocks=1 + 4)
    core = engine(executor, depth=2)
    for i in (1, 2):
        core.add(request(i, num_prompt=8, max_tokens=6))
    deltas = [*core.step(0.0), *core.step(0.0)]
    assert len(executor.plans) == 1, "one gave way, the other waits: the second plan is empty"
    assert core.stats().num_preemptions == 1
    deltas += drain(core)
    assert [tokens_of(deltas, i) for i in (1, 2)] == [[5] * 6, [5] * 6]
    assert core.stats().num_preemptions == 1


def test_at_depth_2_a_preempted_sequence_may_finish_while_it_waits() -> None:
    executor = ScriptedExecutor(num_blocks=1 + 4, token=2)
    core = engine(executor, depth=2)
    core.add(request(1, num_prompt=8, max_tokens=6))
    core.add(request(2, num_prompt=8, max_tokens=6, eos_token_ids=(2,)))
    deltas = [*core.step(0.0), *core.step(0.0)]
    assert core.stats().num_preemptions == 1
    assert [d.finish_reason for d in deltas if d.request_id == 2] == ["stop"]
    assert core.stats().num_waiting == 0
    drain(core)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_window_returns_blocks_while_the_answer_grows(depth: int) -> None:
    """A pool that could never hold the whole sequence twice serves it, because one group keeps only its window."""
    executor = ScriptedExecutor(spec(4, (None, 4)), num_blocks=1 + 13 + 4)
    core = engine(executor, depth=depth, max_num_batched_tokens=4)
    core.add(request(num_prompt=20, max_tokens=33))
    assert len(tokens_of(drain(core))) == 33
    entries = [entry for plan in executor.plans for entry in plan.table_growth]
    assert all(g == 1 for g, _, _, block in entries if block == 0) and any(block == 0 for *_, block in entries)


def test_with_priorities_the_least_urgent_gives_way_though_it_came_first() -> None:
    executor = ScriptedExecutor(num_blocks=1 + 4)
    core = engine(executor, admission="priority")
    core.add(request(1, num_prompt=8, max_tokens=6, priority=2))
    core.add(request(2, num_prompt=8, max_tokens=6, priority=1))
    core.add(request(3, num_prompt=1, max_tokens=1, priority=3))
    deltas = core.step(0.0)
    rows = {setup.token_ids[0]: setup.row for setup in executor.plans[0].setups}
    first, second = (rows[prompt(i, 8)[0]] for i in (1, 2))
    assert executor.plans[0].rows == [second, first]
    deltas += core.step(0.0)
    assert (executor.plans[1].rows, executor.plans[1].released_rows) == ([second], [first])
    deltas += drain(core)
    ends = [delta.request_id for delta in deltas if delta.finish_reason is not None]
    assert ends[0] == 2 and [tokens_of(deltas, i) for i in (1, 2, 3)] == [[5] * 6, [5] * 6, [5]]


def test_an_urgent_arrival_is_admitted_before_those_that_wait() -> None:
    executor = ScriptedExecutor()
    core = engine(executor, admission="priority", max_num_seqs=1)
    for i, priority in enumerate((0, 0, 1, -1)):
        core.add(request(i, num_prompt=2 + i, max_tokens=2, priority=priority))
        if i == 0:
            core.step(0.0)
    drain(core)
    assert [len(setup.token_ids) for plan in executor.plans for setup in plan.setups] == [2, 5, 3, 4]
