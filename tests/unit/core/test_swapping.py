"""Preemption loses nothing: by swap or by recomputation, at every step, whole requests at a time."""

from __future__ import annotations

import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.step import StepPlan
from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import drain, engine, preempt_next, prompt, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_tokens

WINDOWS = (None, 6)


def start(depth: int, num_host_blocks: int = 40, **settings: object) -> tuple[EngineCore, PagedExecutor]:
    executor = PagedExecutor(spec(4, WINDOWS), num_host_blocks=num_host_blocks)
    settings = {"preemption": "swap", "max_num_batched_tokens": 5, "erase_freed_blocks": True, **settings}
    return engine(executor, depth=depth, **settings), executor


def steps(core: EngineCore, count: int) -> list[TokenDelta]:
    deltas = []
    for _ in range(count):
        deltas += core.step(0.0)
        assert core.audit() == []
    return deltas


def assert_answers(deltas: list[TokenDelta], source: EngineRequest) -> None:
    for index in range(source.sampling.n):
        assert tokens_of(deltas, source.request_id, index) == expected_tokens(source, index)


def assert_nothing_left(core: EngineCore) -> None:
    stats = core.stats()
    assert (stats.num_held_blocks, stats.num_pinned_blocks, stats.num_swapped) == (0, 0, 0)
    assert core._scheduler.slots.num_free == core._scheduler.slots.count
    assert core.accounts.total("num_host_blocks") == 0


@pytest.mark.parametrize("preemption", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", range(1, 10))
def test_preempted_at_any_step_the_answer_is_the_same(num_steps: int, depth: int, preemption: str) -> None:
    core, executor = start(depth, preemption=preemption)
    sources = [request(1, num_prompt=9, max_tokens=8), request(2, num_prompt=6, max_tokens=8, n=2)]
    for source in sources:
        core.add(source)
    deltas = steps(core, num_steps)
    there = {s.request_id for s in core._scheduler.running.values()}
    for source in sources:
        preempt_next(core, source.request_id)
        deltas += steps(core, 1)
    deltas += drain(core)
    for source in sources:
        assert_answers(deltas, source)
    stats = core.stats()
    assert stats.num_preemptions >= len(there) > 0
    assert (stats.num_swap_preemptions > 0) == (preemption != "recompute" and stats.num_preemptions > 0)
    assert (stats.num_swap_faults > 0) == any(plan.swap_in for plan in executor.plans)
    assert_nothing_left(core)


@pytest.mark.parametrize("depth", [1, 2])
def test_what_the_sequences_of_a_request_share_leaves_and_comes_back_once(depth: int) -> None:
    core, executor = start(depth, max_num_batched_tokens=16)
    source = request(1, num_prompt=13, max_tokens=9, n=3)
    core.add(source)
    deltas = steps(core, 3)
    held = core.stats().num_held_blocks
    preempt_next(core, 1)
    deltas += drain(core)
    assert_answers(deltas, source)
    (out,), (back,) = ([plan for plan in executor.plans if plan.swap_out], [p for p in executor.plans if p.swap_in])
    assert len(out.swap_out) == len(back.swap_in) == core.stats().num_swap_faults <= held
    assert len(back.setups) == 3 and back.rows == [], "computed by a later plan, when it is known to be there"
    assert core.stats().num_swap_preemptions == core.stats().num_preemptions == 3


@pytest.mark.parametrize("depth", [1, 2])
def test_without_room_on_the_host_it_is_computed_again(depth: int) -> None:
    core, _ = start(depth, num_host_blocks=1)
    source = request(1, num_prompt=9, max_tokens=8)
    core.add(source)
    deltas = steps(core, 4)
    preempt_next(core, 1)
    deltas += drain(core)
    assert_answers(deltas, source)
    assert core.stats().num_preemptions == 1 and core.stats().num_swap_preemptions == 0


@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("which", ["first", "last", "all"])
@pytest.mark.parametrize("moment", ["put", "get"])
@pytest.mark.parametrize("depth", [1, 2])
def test_what_the_host_loses_is_computed_again(depth: int, moment: str, which: str, caching: bool) -> None:
    core, executor = start(depth, max_num_batched_tokens=16, enable_prefix_caching=caching)
    source = request(1, num_prompt=13, max_tokens=9, n=3)

    def fail(plan: StepPlan) -> tuple[list[int], list[int], list[int]]:
        lost = [entry[1] for entry in (plan.swap_out if moment == "put" else plan.swap_in)]
        lost = lost[:1] if which == "first" else lost[-1:] if which == "last" else lost
        return (lost, [], []) if moment == "put" else ([], lost, [])

    executor.fail = fail
    core.add(source)
    deltas = steps(core, 3)
    preempt_next(core, 1)
    deltas += drain(core)
    assert_answers(deltas, source)
    assert core.stats().num_swap_preemptions == 3
    setups = [setup for plan in executor.plans for setup in plan.setups]
    assert any(setup.num_computed_tokens < 12 for setup in setups[1:]) or caching
    assert_nothing_left(core)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize("leaving", [(0,), (2,), (0, 1, 2), (None,)])
def test_aborted_on_any_leg_of_the_way(leaving: tuple[int | None, ...], num_steps: int, depth: int) -> None:
    """Leaving, on the host, arriving, there again."""
    core, _ = start(depth, max_num_batched_tokens=16)
    source = request(1, num_prompt=13, max_tokens=12, n=3)
    core.add(source)
    core.add(request(2, num_prompt=3, max_tokens=12))
    deltas = steps(core, 3)
    preempt_next(core, 1)
    deltas += steps(core, num_steps)
    places = {s.status.value for s in core._scheduler.requests[1].sequences.values()}
    assert num_steps == 0 or places == ({"swapped"} if num_steps < depth + 1 else {"running"})
    arriving = len(core._scheduler.swapping.arriving)
    assert arriving == (3 if (depth, num_steps) == (2, 3) else 0)
    for index in leaving:
        core.abort(1, index)
        assert core.audit() == []
    deltas += drain(core)
    gone = range(3) if None in leaving else leaving
    for index in range(3):
        if index not in gone:
            assert tokens_of(deltas, 1, index) == expected_tokens(source, index)
    assert tokens_of(deltas, 2) == expected_tokens(request(2, num_prompt=3, max_tokens=12))
    assert_nothing_left(core)


@pytest.mark.parametrize("preemption", ["swap", "recompute", "auto"])
@pytest.mark.parametrize("eviction", ["lru", "cost"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_pool_that_is_too_small_for_all_serves_all(depth: int, eviction: str, preemption: str) -> None:
    executor = PagedExecutor(spec(4, WINDOWS), num_blocks=1 + 20, num_host_blocks=16)
    core = engine(
        executor, depth=depth, max_num_seqs=6, preemption=preemption, eviction=eviction, erase_freed_blocks=True
    )
    sources = [request(i, num_prompt=3 + 2 * i, max_tokens=14, n=1 + i % 2) for i in range(1, 7)]
    for source in sources:
        core.add(source)
    deltas = drain(core)
    for source in sources:
        assert_answers(deltas, source)
    stats = core.stats()
    assert stats.num_preemptions > 3 and stats.num_evictions > 0
    assert (stats.num_swap_preemptions > 0) == (preemption != "recompute")
    assert stats.num_recompute_faults > 0 or preemption != "recompute"
    assert_nothing_left(core)


def test_who_comes_back_waits_until_those_that_run_can_go_on() -> None:
    """Otherwise the next step would push it out again."""
    executor = PagedExecutor(spec(4), num_blocks=1 + 8, num_host_blocks=8)
    core = engine(executor, preemption="swap", enable_prefix_caching=False)
    sources = [request(1, num_prompt=12, max_tokens=14), request(2, num_prompt=8, max_tokens=14)]
    for source in sources:
        core.add(source)
    deltas = drain(core)
    for source in sources:
        assert_answers(deltas, source)
    assert core.stats().num_swap_preemptions == 1


def test_the_sequence_that_stops_while_it_is_swapped_out_does_not_come_back() -> None:
    core, executor = start(2)
    source = request(1, num_prompt=3, max_tokens=9)
    stop = expected_tokens(source)[3]
    source = request(1, num_prompt=3, max_tokens=9, stop_token_ids=(stop,))
    answer = expected_tokens(source)
    core.add(source)
    deltas = steps(core, len(answer))
    assert tokens_of(deltas) == answer[:-1]
    preempt_next(core, 1)
    deltas += drain(core)
    assert tokens_of(deltas) == answer and not any(plan.swap_in for plan in executor.plans)
    assert_nothing_left(core)


@pytest.mark.parametrize("num_steps", [1, 2, 3])
@pytest.mark.parametrize("max_num_batched_tokens", [8, 16])
def test_what_left_its_window_before_it_was_committed_is_not_in_the_index(
    num_steps: int, max_num_batched_tokens: int
) -> None:
    """Swapped out with a plan in flight, a sequence commits what that plan computed only when it is back."""
    executor = PagedExecutor(spec(4, (5,)), num_blocks=40, num_host_blocks=20)
    core = engine(executor, depth=2, preemption="swap", max_num_batched_tokens=max_num_batched_tokens)
    source = request(1, num_prompt=17, max_tokens=12)
    core.add(source)
    deltas = [delta for _ in range(num_steps) for delta in core.step(0.0)]
    preempt_next(core, 1)
    deltas += drain(core)
    assert tokens_of(deltas) == expected_tokens(source) and core.stats().num_swap_preemptions == 1


@pytest.mark.parametrize("depth", [1, 2])
def test_a_reader_of_a_published_text_is_computed_again(depth: int) -> None:
    """Back from the host it would have copies of the published blocks, and might not fit beside them."""
    core, _ = start(depth)
    run(core, publish(9, prompt(9, 9), "rules"))
    source = request(1, token_ids=[*prompt(9, 9)[:8], 1, 2, 3], max_tokens=6)
    core.add(source)
    deltas = steps(core, 4)
    preempt_next(core, 1)
    deltas += drain(core)
    assert_answers(deltas, source)
    stats = core.stats()
    assert (stats.num_preemptions, stats.num_swap_preemptions) == (1, 0)
