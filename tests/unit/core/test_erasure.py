"""With erasure on, whatever is freed is listed for zeroing in the next plan, on an idle engine too."""

from __future__ import annotations

import pytest

from octavo.core.engine_core import EngineCore
from support.core_scripts import drain, engine, preempt_next, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_beams, expected_tokens


def start(depth: int = 1, **settings: object) -> tuple[EngineCore, PagedExecutor]:
    executor = PagedExecutor(spec(4, (None, 6)), num_blocks=50, num_host_blocks=30)
    return engine(executor, depth=depth, **{"erase_freed_blocks": True, **settings}), executor


def assert_zeroed(core: EngineCore, executor: PagedExecutor) -> None:
    """Every block that is free holds nothing, and neither does a host slot that nobody uses."""
    for block_id in core._pool.free_blocks():
        assert set(executor.memory[block_id]) == {None}, f"block {block_id} is free and was not erased"
    assert executor.host.keys() == core._scheduler.slots.ref_count.keys()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_an_idle_engine_has_erased_everything_that_is_free(depth: int, caching: bool, preemption: str) -> None:
    core, executor = start(depth, enable_prefix_caching=caching, preemption=preemption)
    sources = [request(1, num_prompt=9, max_tokens=12, n=2), request(2, num_prompt=18), request(3, num_prompt=5)]
    for source in sources:
        core.add(source)
    search = request(4, num_prompt=6, max_tokens=5, beam_width=2)
    core.add(search)
    deltas = [delta for _ in range(4) for delta in core.step(0.0)]
    for i in (1, 4):
        preempt_next(core, i)
        deltas += core.step(0.0)
    core.abort(3)
    deltas += drain(core)
    for source in sources[:2]:
        assert tokens_of(deltas, source.request_id) == expected_tokens(source)
    assert tokens_of(deltas, 4) == expected_beams(search)[0].token_ids
    assert_zeroed(core, executor)
    assert (core.stats().num_cached_blocks > 0) == caching
    core.reset_prefix_cache()
    assert core.has_work == caching, "an idle engine has blocks to erase"
    drain(core)
    assert_zeroed(core, executor)
    assert core.stats().num_free_blocks == core.stats().num_blocks


def test_a_plan_that_only_erases_is_submitted() -> None:
    core, executor = start()
    run(core, request(1, num_prompt=9))
    num_plans, num_cached = len(executor.plans), core.stats().num_cached_blocks
    core.reset_prefix_cache()
    assert core.step(0.0) == [] and len(executor.plans) == num_plans + 1
    assert len(executor.plans[-1].erases) == num_cached and executor.plans[-1].rows == []
    assert not core.has_work


def test_evicted_blocks_are_erased_by_the_plan_that_hands_them_out() -> None:
    core, executor = start()
    executor = PagedExecutor(spec(4), num_blocks=1 + 4)
    core = engine(executor, erase_freed_blocks=True)
    run(core, request(1, num_prompt=14, max_tokens=1))
    run(core, request(2, num_prompt=14, max_tokens=1))
    plan = next(plan for plan in executor.plans if plan.setups and plan.setups[0].token_ids[0] == 2010)
    assert sorted(plan.erases) == sorted(block for *_, block in plan.table_growth) and len(plan.erases) == 4


def test_a_withdrawn_prefix_is_erased() -> None:
    core, executor = start()
    run(core, publish(1, list(range(20)), "a"))
    assert core.withdraw("a") and core.has_work
    drain(core)
    assert_zeroed(core, executor)
    assert core.stats().num_free_blocks == core.stats().num_blocks


def test_without_erasure_nothing_is_listed() -> None:
    core, executor = start(erase_freed_blocks=False)
    run(core, request(1, num_prompt=9, n=2))
    core.reset_prefix_cache()
    assert not core.has_work and not any(plan.erases for plan in executor.plans)
