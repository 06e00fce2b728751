"""The accounts as they go out: what each block is, whose, and that it all adds up."""

from __future__ import annotations

import pytest

from octavo.core.engine_core import EngineCore
from octavo.messages import KVBlock
from support.core_scripts import drain, engine, preempt_next, publish, request, run, spec
from support.paged_executor import PagedExecutor


def start(depth: int = 1, windows: tuple[int | None, ...] = (None,), **settings: object) -> EngineCore:
    executor = PagedExecutor(spec(4, windows), num_blocks=60, num_host_blocks=20)
    return engine(executor, depth=depth, **{"preemption": "swap", **settings})


def assert_adds_up(core: EngineCore) -> None:
    stats, engine_stats = core.kv_stats(), core.stats()
    held, pinned, cached, free = (
        stats.num_held_blocks,
        stats.num_pinned_blocks,
        stats.num_cached_blocks,
        stats.num_free_blocks,
    )
    assert held + pinned + cached + free == stats.num_blocks
    states = [block.state for block in core.kv_blocks()]
    assert [states.count(state) for state in ("held", "pinned", "cached", "free")] == [held, pinned, cached, free]
    assert stats.num_published_blocks <= held <= stats.num_references
    assert sum(account.num_held_blocks for account in stats.accounts) == held + pinned
    assert sum(account.num_cached_blocks for account in stats.accounts) == cached
    assert sum(account.num_promised_blocks for account in stats.accounts) == stats.num_promised_blocks
    assert sum(account.num_host_blocks for account in stats.accounts) == stats.num_host_held_blocks
    for name in ("held", "pinned", "cached", "free", "promised"):
        assert getattr(stats, f"num_{name}_blocks") == getattr(engine_stats, f"num_{name}_blocks")


@pytest.mark.parametrize("depth", [1, 2])
def test_it_adds_up_at_every_step(depth: int) -> None:
    core = start(depth, (None, 6), max_num_batched_tokens=9, max_num_seqs=8)
    run(core, publish(9, list(range(9)), "system"))
    core.add(request(1, num_prompt=11, max_tokens=9, n=3, tenant="red"))
    core.add(request(2, num_prompt=20, max_tokens=5, tenant="blue"))
    core.add(request(3, num_prompt=6, max_tokens=7, beam_width=2, tenant="red"))
    seen: set[str] = set()
    for step in range(40):
        if step == 5:
            preempt_next(core, 1)
        if step == 9:
            core.abort(1, 0)
        core.step(float(step))
        assert_adds_up(core)
        seen |= {block.state for block in core.kv_blocks()}
    assert not core.has_work and core.stats().num_swap_preemptions == 3
    assert seen == {"held", "cached", "free"} | ({"pinned"} if depth == 2 else set())


def test_references_say_how_often_a_block_is_shared() -> None:
    core = start()
    core.add(request(1, num_prompt=13, max_tokens=9, n=3))
    core.step(0.0)
    stats = core.kv_stats()
    assert (stats.num_held_blocks, stats.num_references, stats.num_unfilled_slots) == (4, 12, 3)
    core.step(0.0)
    stats = core.kv_stats()
    assert (stats.num_held_blocks, stats.num_references, stats.num_unfilled_slots) == (6, 12, 6)
    assert (stats.block_size, stats.bytes_per_block, stats.num_host_blocks) == (4, 1, 20)
    assert not stats.erases_freed_blocks


def test_a_block_is_described() -> None:
    core = start()
    core.add(request(1, num_prompt=6, max_tokens=9, tenant="red"))
    core.step(10.0)
    whole, tail = (core.kv_blocks(block_id, 1)[0] for block_id in core._scheduler.running[0].block_tables[0])
    assert (whole.state, whole.owner, whole.references, whole.num_tokens, whole.num_hits) == ("held", "red", 1, 4, 0)
    assert whole.key is not None and len(whole.key) == 16 and int(whole.key, 16) >= 0
    assert (tail.state, tail.key, tail.num_tokens) == ("held", None, 0)
    core.step(12.5)
    assert core.kv_blocks(whole.block_id, 1)[0].age_s == 2.5
    drain(core)
    run(core, request(2, token_ids=[*request(1, 6).token_ids, 5, 5], tenant="red", max_tokens=1))
    again = core.kv_blocks(whole.block_id, 1)[0]
    assert (again.state, again.references, again.num_hits, again.key) == ("cached", 0, 1, whole.key)
    free = core.kv_blocks(59, 1)[0]
    assert free == KVBlock(
        block_id=59, state="free", owner=None, references=0, age_s=free.age_s, key=None, num_tokens=0, num_hits=0
    )


def test_blocks_come_in_pages_and_the_null_block_is_none() -> None:
    core = start()
    pages = [core.kv_blocks(first, 25) for first in (0, 25, 50, 75)]
    assert [block.block_id for page in pages for block in page] == list(range(1, 60))
    assert [len(page) for page in pages] == [24, 25, 10, 0]


@pytest.mark.parametrize("depth", [1, 2])
def test_faults_are_charged_by_cause_to_whoever_made_them(depth: int) -> None:
    core = start(depth)
    run(core, request(1, num_prompt=13, max_tokens=4, n=2, tenant="red"))
    core.add(request(2, num_prompt=9, max_tokens=9, tenant="blue"))
    for _ in range(3):
        core.step(0.0)
    preempt_next(core, 2)
    drain(core)
    red, blue = core.kv_stats().accounts
    assert (red.num_allocation_faults, red.num_copy_faults, red.num_swap_faults) == (4, 1, 0)
    assert (blue.num_allocation_faults, blue.num_copy_faults, blue.num_swap_faults) == (5, 0, 3)
    assert (red.num_prefix_query_tokens, blue.num_prefix_query_tokens) == (13, 9)
