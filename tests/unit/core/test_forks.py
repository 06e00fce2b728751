"""n answers from one prompt: one prefill, blocks shared by reference, copied at the first write that differs."""

from __future__ import annotations

import pytest

from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import drain, engine, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_tokens


def assert_answers(deltas: list[TokenDelta], source: EngineRequest, indices: range | None = None) -> None:
    for index in indices or range(source.first_index, source.first_index + source.sampling.n):
        assert tokens_of(deltas, source.request_id, index) == expected_tokens(source, index), f"answer {index}"


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_prompt", range(1, 10))
def test_the_prompt_is_computed_once_and_its_last_block_copied_for_all_but_one(num_prompt: int, depth: int) -> None:
    executor = PagedExecutor(spec(4, (None, None)))
    core = engine(executor, depth=depth)
    source = request(1, num_prompt=num_prompt, max_tokens=6, n=3)
    deltas = run(core, source)
    assert_answers(deltas, source)
    (plan,) = [plan for plan in executor.plans if plan.forks]
    assert len(plan.rows) == 1 and plan.sample_rows == [0, 1, 2] and plan.sample_sources == [0, 0, 0]
    assert sum(len(p.setups) for p in executor.plans) == 1
    stats = core.stats()
    assert stats.num_copy_faults == (2 * 2 if num_prompt % 4 else 0)
    columns = -(-(num_prompt + 5) // 4)
    shared = -(-num_prompt // 4)
    assert stats.num_allocation_faults == 2 * (shared + 3 * (columns - shared))
    assert stats.num_prompt_tokens == num_prompt and stats.num_generated_tokens == 18


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_in_chunks_forks_when_it_is_whole(depth: int) -> None:
    executor = PagedExecutor(spec(4, (None, 5)))
    core = engine(executor, depth=depth, max_num_batched_tokens=4)
    source = request(1, num_prompt=14, n=2, first_index=3)
    assert_answers(run(core, source), source)
    assert [bool(plan.forks) for plan in executor.plans[:4]] == [False, False, False, True]


def test_children_without_a_row_come_later_through_the_cache() -> None:
    executor = PagedExecutor(spec(4))
    core = engine(executor, max_num_seqs=2)
    source = request(1, num_prompt=10, n=5)
    deltas = run(core, source)
    assert_answers(deltas, source)
    late = [setup for plan in executor.plans for setup in plan.setups][1:]
    assert [setup.num_computed_tokens for setup in late] == [9, 9, 9]
    assert core.stats().num_prompt_tokens == 10 and {d.num_cached_tokens for d in deltas} == {0}


def test_children_without_a_block_come_later() -> None:
    core = engine(PagedExecutor(spec(4), num_blocks=1 + 5))
    source = request(1, num_prompt=10, n=4, max_tokens=4)
    assert_answers(run(core, source), source)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", range(5))
@pytest.mark.parametrize("leaving", [(0,), (1,), (0, 1), (1, 0), (2, 1, 0), (None,)])
def test_any_of_them_may_leave_at_any_time(leaving: tuple[int | None, ...], num_steps: int, depth: int) -> None:
    """When the one that computes the prompt leaves, the next one goes on with it."""
    core = engine(PagedExecutor(spec(4)), depth=depth, max_num_batched_tokens=5)
    source = request(1, num_prompt=11, n=3, max_tokens=6)
    core.add(source)
    deltas = [delta for _ in range(num_steps) for delta in core.step(0.0)]
    for index in leaving:
        core.abort(1, index)
        assert core.audit() == []
    deltas += drain(core)
    gone = range(3) if None in leaving else leaving
    for index in range(3):
        if index not in gone:
            assert tokens_of(deltas, 1, index) == expected_tokens(source, index)
    assert core.stats().num_held_blocks == 0 and not core._scheduler.requests


@pytest.mark.parametrize("depth", [1, 2])
def test_a_leader_that_fails_hands_its_prompt_on(depth: int) -> None:
    executor = PagedExecutor(spec(4))
    executor.fail = lambda plan: ([], [], plan.rows if plan.step_id == 1 else [])
    core = engine(executor, depth=depth, max_num_batched_tokens=5)
    source = request(1, num_prompt=11, n=3)
    deltas = run(core, source)
    assert [(d.index, d.error) for d in deltas if d.error] == [(0, "not finite")]
    assert_answers(deltas, source, range(1, 3))


def test_a_child_that_fails_at_its_birth_fails_alone() -> None:
    executor = PagedExecutor(spec(4))
    executor.fail = lambda plan: ([], [], [1] if plan.step_id == 1 else [])
    core = engine(executor)
    source = request(1, num_prompt=6, n=3)
    deltas = run(core, source)
    assert [(d.index, d.error) for d in deltas if d.error] == [(1, "not finite")]
    assert_answers(deltas, source, range(1))
    assert_answers(deltas, source, range(2, 3))


def test_n_answers_for_no_tokens_end_together() -> None:
    core = engine(PagedExecutor(spec(4)))
    deltas = run(core, request(1, num_prompt=6, n=3, max_tokens=0))
    assert sorted((d.index, d.token_ids, d.finish_reason) for d in deltas) == [(i, [], "length") for i in range(3)]
    assert core.stats().num_generated_tokens == 0


def test_more_answers_under_an_id_whose_prompt_is_being_computed() -> None:
    """After a crash the children of a request come back in parts."""
    core = engine(PagedExecutor(spec(4), num_blocks=60), max_num_seqs=6)
    first, second = request(1, num_prompt=7, n=3), request(1, num_prompt=7, n=2, first_index=3)
    core.add(first)
    core.add(second)
    deltas = drain(core)
    assert_answers(deltas, first, range(3))
    assert_answers(deltas, second, range(3, 5))


@pytest.mark.parametrize("chunk", [64, 8])
def test_nobody_is_admitted_into_the_room_of_siblings_to_be_born(chunk: int) -> None:
    """A sibling that is not born with the others would compute the prompt again."""
    executor = PagedExecutor(spec(4), num_blocks=1 + 12)
    core = engine(executor, enable_prefix_caching=False, max_num_batched_tokens=chunk, preemption="swap")
    runs, family, other = request(1, num_prompt=4, max_tokens=4), request(2, num_prompt=18, n=4), request(3, 9)
    deltas = run(core, runs, family, other)
    for source in (runs, family, other):
        assert_answers(deltas, source)
    assert [len(plan.forks) for plan in executor.plans if plan.forks] == [3]
    assert sum(setup.row >= 0 for plan in executor.plans for setup in plan.setups) == 3
    (born,) = [plan.step_id for plan in executor.plans if plan.forks]
    (late,) = [plan.step_id for plan in executor.plans for setup in plan.setups if setup.num_prompt_tokens == 9]
    assert late > born


def test_a_family_waits_for_rows_but_one_that_has_never_room_goes_ahead() -> None:
    executor = PagedExecutor(spec(4))
    core = engine(executor, enable_prefix_caching=False, max_num_seqs=4)
    runs, family, too_many = request(1, max_tokens=6), request(2, n=4), request(3, n=5)
    deltas = run(core, runs, family, too_many)
    for source in (runs, family, too_many):
        assert_answers(deltas, source)
    first, second, *_ = [plan for plan in executor.plans if plan.forks]
    assert len(first.forks) == 3 and len(second.forks) == 3
    assert first.step_id >= 6, "the one that ran had to end first"
