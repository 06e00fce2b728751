"""Orca's reservations: how large, when, for whom; and that nothing is shared, preempted or lost."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.contiguous import ContiguousKVManager, exact, next_power, whole_context
from octavo.core.engine_core import EngineCore
from octavo.core.kv_policies import KV_POLICIES
from octavo.errors import ConfigError, ContextLengthError, RequestError
from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import ScriptedExecutor, drain, engine, preempt, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_beams, expected_tokens

CONTIGUOUS = [name for name in KV_POLICIES if name != "paged"]
ORCA = [name for name in CONTIGUOUS if name.startswith("orca")]


def start(kv_policy: str, num_blocks: int = 65, **settings: Any) -> EngineCore:
    """Blocks of 4 tokens, a context of 64: the largest chunk has 16 blocks."""
    executor = PagedExecutor(spec(4, (None,)), num_blocks=num_blocks)
    return engine(executor, **{"kv_policy": kv_policy, "max_num_seqs": 8, **settings})


def manager_of(core: EngineCore) -> ContiguousKVManager:
    kv = core.scheduler.kv
    assert isinstance(kv, ContiguousKVManager)
    return kv


def running(core: EngineCore) -> list[tuple[int, int]]:
    """(request id, blocks) of whoever runs."""
    return [(s.request_id, s.num_held_blocks) for s in core.scheduler.running.values()]


@pytest.mark.parametrize(
    ("num_prompt", "max_tokens", "oracle", "pow2", "longest"),
    [(10, 25, 35, 42, 2048), (10, 32, 42, 42, 2048), (10, 1, 11, 11, 2048), (1500, 500, 2000, 2012, 2048),
     (1500, 548, 2048, 2048, 2048), (7, 0, 7, 8, 2048)],
)  # fmt: skip
def test_how_much_each_reserves(num_prompt: int, max_tokens: int, oracle: int, pow2: int, longest: int) -> None:
    found = [reserve(num_prompt, max_tokens, 2048) for reserve in (exact, next_power, whole_context)]
    assert found == [oracle, pow2, longest]


@pytest.mark.parametrize(
    ("max_model_len", "num_prompt", "num_tokens", "never_used"), [(2048, 7, 3, 2038), (512, 3, 2, 507)]
)
def test_the_slots_of_figure_3_are_never_used(
    max_model_len: int, num_prompt: int, num_tokens: int, never_used: int
) -> None:
    """Figure 3: request A has a context of 2048 and uses 10 slots, request B one of 512 and uses 5."""
    core = engine(ScriptedExecutor(spec(16), num_blocks=1 + 128), kv_policy="orca-max", max_model_len=max_model_len)
    core.add(request(num_prompt=num_prompt, max_tokens=max_model_len - num_prompt, stop_token_ids=(5,),
                     min_tokens=num_tokens - 1))  # fmt: skip
    core.step(0.0)
    (sequence,) = core.scheduler.running.values()
    num_slots = sequence.num_slots
    assert num_slots == max_model_len and core.kv_stats().num_unfilled_slots == max_model_len - num_prompt
    deltas = drain(core)
    num_used = num_prompt + 1 + len(tokens_of(deltas))
    assert deltas[-1].finish_reason == "stop" and num_slots - num_used == never_used


@pytest.mark.parametrize(("name", "blocks"), [("orca-oracle", 8), ("orca-pow2", 16), ("orca-max", 16)])
def test_the_whole_chunk_is_held_from_admission_to_the_end(name: str, blocks: int) -> None:
    """10 prompt tokens and 17 of the answer: 27 tokens, or 42, or the context of 64, in blocks of 4."""
    core = start(name)
    core.add(request(num_prompt=10, max_tokens=17))
    deltas: list[TokenDelta] = []
    while core.has_work and not any(d.finish_reason for d in deltas):
        deltas += core.step(0.0)
        assert core.audit() == []
        stats = core.kv_stats()
        assert stats.num_held_blocks == (0 if any(d.finish_reason for d in deltas) else blocks)
    assert tokens_of(deltas) == expected_tokens(request(num_prompt=10, max_tokens=17))
    assert core.stats().num_allocation_faults == blocks


def test_a_worker_is_told_of_what_may_be_written_and_no_more() -> None:
    executor = ScriptedExecutor(spec(4), num_blocks=17)
    core = engine(executor, kv_policy="orca-oracle", max_model_len=50)  # 13 columns; the largest chunk has 16
    core.add(request(num_prompt=10, max_tokens=40))
    core.step(0.0)
    (plan,) = executor.plans
    assert plan.table_growth == [(0, plan.rows[0], column, column + 1) for column in range(13)]
    assert running(core) == [(1, 16)]


@pytest.mark.parametrize("name", ORCA)
def test_the_first_in_the_queue_is_passed_by_nobody(name: str) -> None:
    """32 blocks: the third has its chunk beside 8 and 16 blocks, and none beside twice 16."""
    core = start(name, num_blocks=1 + 32, max_num_batched_tokens=64)
    for request_id, max_tokens in ((1, 20), (2, 44), (3, 2)):
        core.add(request(request_id, num_prompt=8, max_tokens=max_tokens))
    core.step(0.0)
    sizes = {"orca-oracle": (8, 16), "orca-pow2": (16, 16), "orca-max": (16, 16)}[name]
    first = [(1, sizes[0]), (2, sizes[1])]
    assert running(core) == (first if name != "orca-oracle" else [*first, (3, 4)])
    drain(core)


def test_head_of_line_blocks_a_small_request_that_would_fit() -> None:
    core = start("orca-oracle", num_blocks=1 + 24, max_num_batched_tokens=64)  # 16 and 8
    for request_id, max_tokens in ((1, 50), (2, 50), (3, 2)):
        core.add(request(request_id, num_prompt=8, max_tokens=max_tokens))
    core.step(0.0)
    assert running(core) == [(1, 16)] and core.stats().num_free_blocks == 8
    drain(core)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", CONTIGUOUS)
def test_each_answer_computes_the_prompt_in_a_chunk_of_its_own(name: str, depth: int) -> None:
    core = start(name, depth=depth, max_num_batched_tokens=64)
    source = request(num_prompt=10, max_tokens=6, n=3)
    core.add(source)
    deltas = core.step(0.0)
    assert len(running(core)) == 3 and len({s.block_tables[0][0] for s in core.scheduler.running.values()}) == 3
    assert core.stats().num_free_blocks == 64 - sum(size for _, size in running(core))
    deltas += drain(core)
    for index in range(3):
        assert tokens_of(deltas, 1, index) == expected_tokens(source, index)
    stats = core.stats()
    assert stats.num_prompt_tokens == 10 and stats.num_copy_faults == 0 and stats.num_free_blocks == 64


def search(width: int, **changes: Any) -> EngineRequest:
    return request(7, num_prompt=9, max_tokens=8, beam_width=width, n=width, **changes)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", CONTIGUOUS)
@pytest.mark.parametrize("erase", [False, True])
def test_beams_are_copied_into_chunks_that_were_reserved_for_them(name: str, depth: int, erase: bool) -> None:
    core = start(name, depth=depth, erase_freed_blocks=erase, num_blocks=1 + 80)
    source = search(4)
    size = manager_of(core).chunk_blocks(9, 8)
    core.add(source)
    deltas = core.step(0.0)
    assert core.audit() == [] and core.stats().num_held_blocks == 4 * size, "all chunks are held from the first step"
    other = request(2, num_prompt=3, max_tokens=12)
    core.add(other)
    while not deltas and core.has_work:
        deltas += core.step(0.0)
        assert core.audit() == []
        if not any(d.finish_reason for d in deltas):
            held = core.stats().num_held_blocks + core.stats().num_pinned_blocks
            assert held >= 4 * size, "what is reserved is not lent"
    deltas += drain(core)
    found = sorted((d for d in deltas if d.request_id == 7), key=lambda d: d.index)
    assert [d.token_ids for d in found] == [hypothesis.token_ids for hypothesis in expected_beams(source)]
    assert tokens_of(deltas, 2) == expected_tokens(other)
    stats = core.stats()
    # At least the first turn forks three times, over a prompt of 9 tokens in 3 blocks.
    assert stats.num_copy_faults >= 9 and stats.num_free_blocks == 80
    assert list(core.scheduler.kv.spare_blocks()) == []


@pytest.mark.parametrize("step", range(1, 12))
@pytest.mark.parametrize("depth", [1, 2])
def test_a_search_may_end_at_any_time_and_leaves_nothing(depth: int, step: int) -> None:
    core = start("orca-oracle", depth=depth)
    core.add(search(4))
    core.add(request(2, num_prompt=3, max_tokens=12))
    deltas: list[TokenDelta] = []
    for _ in range(step):
        deltas += core.step(0.0)
    core.abort(7)
    assert core.audit() == []
    deltas += drain(core)
    assert tokens_of(deltas, 2) == expected_tokens(request(2, num_prompt=3, max_tokens=12))
    assert core.stats().num_free_blocks == 64 and list(core.scheduler.kv.spare_blocks()) == []


def test_a_search_waits_until_all_its_beams_have_room() -> None:
    core = start("orca-max", num_blocks=1 + 64)
    core.add(request(1, num_prompt=3, max_tokens=12))
    core.add(search(4))
    core.step(0.0)
    assert [request_id for request_id, _ in running(core)] == [1]
    deltas = drain(core)
    assert len([d for d in deltas if d.request_id == 7]) == 4


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_what_can_never_fit_is_refused_at_once(name: str) -> None:
    core = start(name, num_blocks=1 + 24)
    with pytest.raises(ContextLengthError, match="the context holds 64"):
        core.add(request(num_prompt=60, max_tokens=5))
    with pytest.raises(ContextLengthError, match="in each of 4 beams of 30 tokens take up to 64 KV blocks"):
        core.add(request(num_prompt=20, max_tokens=30, beam_width=4))
    assert core.stats().num_waiting == 0
    deltas = run(core, request(1, num_prompt=60, max_tokens=4))
    assert len(tokens_of(deltas)) == 4


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_somebody_preempted_by_hand_gets_a_chunk_again(name: str) -> None:
    """Nothing preempts, but the books bear it."""
    core = start(name)
    source = request(num_prompt=10, max_tokens=17)
    core.add(source)
    for _ in range(4):
        core.step(0.0)
    deltas = core.step(0.0)
    preempt(core, 1)
    assert core.audit() == [] and core.stats().num_free_blocks == 64
    drain(core)
    assert (core.stats().num_free_blocks == 64 and not deltas) or name != "fastertransformer"


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_a_repair_finds_a_table_that_is_no_chunk(name: str) -> None:
    core = start(name)
    source = request(num_prompt=10, max_tokens=6)
    core.add(source)
    core.add(search(2, seed=3))
    deltas = core.step(0.0)
    (first, *_) = core.scheduler.running.values()
    table = first.block_tables[0]
    table[0], table[1] = table[1], table[0]
    assert any("has no chunk but blocks" in sentence for sentence in core.audit())
    core.audit(repair=True)
    assert core.audit() == []
    deltas += drain(core)
    assert tokens_of(deltas) == expected_tokens(source)
    assert len([d for d in deltas if d.request_id == 7]) == 2 and core.stats().num_free_blocks == 64


# ---- settings that contradict each other


@pytest.mark.parametrize("name", CONTIGUOUS)
@pytest.mark.parametrize(
    ("settings", "field", "allowed"),
    [
        ({"enable_prefix_caching": True}, "enable_prefix_caching", "off with kv_policy"),
        ({"num_draft_tokens": 2}, "num_draft_tokens", "0 with kv_policy"),
        ({"max_model_len": 2000}, "num_blocks", "at least 513 with kv_policy"),
    ],
)
def test_contradictions_are_named(name: str, settings: dict[str, Any], field: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed) as caught:
        engine(kv_policy=name, **settings)
    assert caught.value.field == field


@pytest.mark.parametrize("windows", [(None, None), (8,), (None, 8)])
def test_layers_that_keep_kv_apart_need_pages(windows: tuple[int | None, ...]) -> None:
    with pytest.raises(ConfigError, match=r"kv_policy.*orca-max.*paged") as caught:
        engine(ScriptedExecutor(spec(4, windows)), kv_policy="orca-max")
    assert caught.value.field == "kv_policy"


def test_unknown_policies_are_named() -> None:
    with pytest.raises(ConfigError, match=r"orca-min.*paged, orca-oracle, orca-pow2, orca-max, fastertransformer"):
        engine(kv_policy="orca-min")
    with pytest.raises(ConfigError, match=r"admission.*skip.*fcfs with kv_policy fastertransformer"):
        engine(kv_policy="fastertransformer", admission="skip")


@pytest.mark.parametrize("name", CONTIGUOUS)
def test_nothing_is_published(name: str) -> None:
    core = start(name)
    with pytest.raises(RequestError, match="publish"):
        core.add(publish(1, [1, 2, 3, 4, 5], "text"))
    assert core.stats().num_cached_blocks == 0 and core.reset_prefix_cache() == 0
