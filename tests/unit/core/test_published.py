"""Prefixes shared across tenants on purpose: published, found by everyone, withdrawn."""

from __future__ import annotations

import pytest

from octavo.core.engine_core import EngineCore
from octavo.errors import RequestError
from octavo.messages import PUBLIC_TENANT, TokenDelta
from support.core_scripts import drain, engine, preempt_next, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_tokens

TEXT = list(range(100, 122))
WHOLE = 20


def start(num_blocks: int = 80, **settings: object) -> EngineCore:
    return engine(PagedExecutor(spec(4, (None, 6)), num_blocks=num_blocks), **settings)


def cached(core: EngineCore, request_id: int, token_ids: list[int], **changes: object) -> int:
    source = request(request_id, token_ids=token_ids, **changes)
    deltas = run(core, source)
    assert tokens_of(deltas, request_id) == expected_tokens(source)
    return deltas[0].num_cached_tokens


@pytest.mark.parametrize("depth", [1, 2])
def test_every_tenant_finds_its_whole_blocks_and_goes_on_alone(depth: int) -> None:
    core = start(depth=depth)
    (delta,) = run(core, publish(1, TEXT, "system"))
    assert (delta.token_ids, delta.finish_reason) == ([], "length")
    (prefix,) = core.published()
    assert (prefix.name, prefix.num_tokens) == ("system", WHOLE) and prefix.num_blocks <= 2 * WHOLE // 4
    more = [*TEXT[:WHOLE], 7, 8, 9, 10, 11, 12]
    assert cached(core, 2, more, tenant="red") == WHOLE
    assert cached(core, 3, more, tenant="blue") == WHOLE, "what comes after it is the tenant's own"
    assert cached(core, 4, more, tenant="red") == len(more) - 1
    assert cached(core, 5, more, tenant="red", cache_salt="s") == WHOLE
    assert cached(core, 6, more, tenant="red", adapter="lora") == 0
    core.reset_prefix_cache()
    assert cached(core, 7, more, tenant="red") == WHOLE


def test_a_prompt_that_ends_inside_it_copies_the_block() -> None:
    core = start()
    run(core, publish(1, TEXT, "system"))
    for i, length in enumerate(range(17, WHOLE + 1), 2):
        assert cached(core, i, TEXT[:length], tenant=f"t{i}") == length - 1


def test_where_a_window_leaves_too_early_nothing_can_be_taken() -> None:
    """Only the blocks that the end of the text reads are kept in a group with a window."""
    core = start(max_num_batched_tokens=4)
    run(core, publish(1, list(range(40)), "system"))
    assert cached(core, 2, [*range(40), 7], tenant="red") == 40
    assert cached(core, 3, [*range(12), 7], tenant="blue") in (0, 12)


def test_it_stays_when_everything_else_is_evicted() -> None:
    core = start(num_blocks=1 + 22)
    run(core, publish(1, TEXT, "system"))
    for i in range(2, 6):
        cached(core, i, list(range(1000 * i, 1000 * i + 14)))
    assert core.stats().num_evictions > 0
    assert cached(core, 9, [*TEXT[:WHOLE], 3], tenant="red") == WHOLE
    assert core.kv_stats().num_published_blocks == core.published()[0].num_blocks


def test_a_withdrawn_prefix_is_found_by_nobody_and_kept_by_who_uses_it() -> None:
    core = start()
    run(core, publish(1, TEXT, "system"))
    source = request(2, token_ids=[*TEXT[:WHOLE], 7, 8], max_tokens=12, tenant="red")
    core.add(source)
    deltas: list[TokenDelta] = core.step(0.0)
    assert core.withdraw("system") and not core.withdraw("system") and core.published() == []
    assert core.audit() == []
    deltas += drain(core)
    assert tokens_of(deltas, 2) == expected_tokens(source)
    assert cached(core, 3, [*TEXT, 1], tenant="blue") == 0
    assert core.stats().num_held_blocks == 0


def test_prefixes_that_begin_alike_are_withdrawn_one_by_one() -> None:
    core = start()
    run(core, publish(1, TEXT, "short"))
    run(core, publish(2, [*TEXT[:WHOLE], *range(200, 220)], "long"))
    assert core.kv_stats().num_published_blocks < sum(p.num_blocks for p in core.published())
    core.withdraw("short")
    assert cached(core, 3, [*TEXT[:WHOLE], *range(200, 220), 1], tenant="red") == 40
    core.withdraw("long")
    core.reset_prefix_cache()
    drain(core)
    assert core.stats().num_free_blocks == core.stats().num_blocks


def test_who_waits_with_a_public_beginning_survives_its_withdrawal() -> None:
    core = start(max_num_seqs=1, depth=2)
    run(core, publish(1, TEXT, "system"))
    sources = [request(i, token_ids=[*TEXT[:WHOLE], *range(300, 309)], seed=i, tenant="red") for i in (2, 3)]
    for source in sources:
        core.add(source)
    deltas = core.step(0.0)
    core.withdraw("system")
    deltas += drain(core)
    for source in sources:
        assert tokens_of(deltas, source.request_id) == expected_tokens(source)


def test_a_text_published_twice_at_once_is_kept_once() -> None:
    core = start()
    run(core, publish(1, TEXT, "system"), publish(2, TEXT, "system"), publish(3, [1, 2], "tiny"))
    assert [(p.name, p.num_tokens) for p in core.published()] == [("system", WHOLE), ("tiny", 0)]
    assert cached(core, 4, [*TEXT[:WHOLE], 7], tenant="red") == WHOLE


def test_two_texts_are_not_published_at_once_under_one_name() -> None:
    """Or the second would be told that it is published, and what the name stands for would be the first."""
    core = start()
    core.add(publish(1, TEXT, "system"))
    with pytest.raises(RequestError, match="not in use"):
        core.add(publish(2, [*TEXT, 7], "system"))
    drain(core)
    assert cached(core, 3, [*TEXT[:WHOLE], 7], tenant="red") == WHOLE


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("num_steps", range(12))
@pytest.mark.parametrize("max_num_batched_tokens", [4, 16, 32])
def test_what_is_published_is_whole_whoever_needs_its_blocks_meanwhile(
    preemption: str, num_steps: int, max_num_batched_tokens: int
) -> None:
    """Older requests grow into the pool while the text is computed, its last step in flight included."""
    executor = PagedExecutor(spec(4), num_blocks=1 + 13, num_host_blocks=20)
    core = engine(executor, depth=2, preemption=preemption, max_num_batched_tokens=max_num_batched_tokens)
    core.add(request(1, num_prompt=3, max_tokens=30))
    core.add(request(4, num_prompt=6, max_tokens=26))
    for _ in range(num_steps):
        core.step(0.0)
    run(core, publish(2, TEXT[:WHOLE], "system"))
    assert core.stats().num_preemptions > 0
    assert [(p.num_tokens, p.num_blocks) for p in core.published()] == [(WHOLE, WHOLE // 4)]
    assert cached(core, 3, [*TEXT[:WHOLE], 7], tenant="red") == WHOLE


def test_a_text_that_lost_its_blocks_in_its_last_step_is_not_published_at_all() -> None:
    core = start(depth=2, max_num_batched_tokens=32)
    core.add(publish(1, TEXT, "system"))
    core.step(0.0)
    preempt_next(core, 1)
    (delta,) = drain(core)
    assert delta.finish_reason == "error" and "publish it again" in str(delta.error)
    assert core.published() == [] and core.stats().num_held_blocks == 0 and core.stats().num_errors == 1
    assert cached(core, 2, TEXT, tenant="red") == 0


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"tenant": "red"}, PUBLIC_TENANT),
        ({"max_tokens": 1}, "for no tokens"),
        ({"n": 2}, "for no tokens"),
        ({"publish": "system"}, "not in use"),
        ({"cache_salt": "s"}, "nobody else would find it"),
        ({"adapter": "lora"}, "nobody else would find it"),
    ],
)
def test_what_cannot_be_published_is_refused(changes: dict[str, object], allowed: str) -> None:
    core = start()
    run(core, publish(1, TEXT, "system"))
    wishes: dict[str, object] = {"publish": "other", "tenant": PUBLIC_TENANT, "max_tokens": 0, **changes}
    with pytest.raises(RequestError) as refused:
        core.add(request(2, **wishes))  # type: ignore[arg-type]
    assert refused.value.param == "publish" and allowed in str(refused.value)


def test_an_idle_block_that_is_promised_to_somebody_is_not_taken() -> None:
    """The text's end is cached in a block that nobody holds, and a request that runs may still need it."""
    executor = PagedExecutor(spec(4), num_blocks=1 + 4)
    core = engine(executor, depth=2, max_num_batched_tokens=4)
    run(core, request(1, token_ids=TEXT[:8], max_tokens=1, tenant=PUBLIC_TENANT))
    other = request(3, num_prompt=8, max_tokens=1)
    deltas = run(core, publish(2, TEXT[:8], "system"), other)
    assert tokens_of(deltas, 3) == expected_tokens(other)
    (failed,) = [d for d in deltas if d.request_id == 2]
    assert failed.finish_reason == "error" and "publish it again" in str(failed.error) and core.published() == []
    run(core, publish(4, TEXT[:8], "system"))
    assert [(p.num_tokens, p.num_blocks) for p in core.published()] == [(8, 2)]


def test_a_gang_that_cannot_come_back_is_computed_again_or_refused() -> None:
    core = engine(PagedExecutor(spec(4), num_blocks=1 + 12, num_host_blocks=20), preemption="swap")
    core.add(request(1, num_prompt=20, max_tokens=9, n=2))
    for _ in range(3):
        core.step(0.0)
    preempt_next(core, 1)
    core.step(0.0)
    held = core._pool.acquire(9, core.accounts.open("somebody"))
    deltas = [delta for _ in range(3) for delta in core.step(0.0)]
    assert [(d.index, d.refusal) for d in deltas] == [(0, "length"), (1, "length")]
    assert core._scheduler.slots.num_free == 20
    core._pool.release(held)
    assert drain(core) == [] and core.stats().num_held_blocks == 0


def test_without_a_cache_nothing_is_published() -> None:
    core = start(enable_prefix_caching=False)
    with pytest.raises(RequestError, match="prefix caching is off"):
        core.add(publish(1, TEXT, "system"))
    assert core.published() == [] and not core.withdraw("system")
    core.add(request(2))
    core.step(0.0)
    assert not core._scheduler.published.keep("system", core._scheduler.running[0])


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_prompt", [3, 20])
def test_a_request_that_no_longer_fits_is_refused_not_hung(num_prompt: int, depth: int, preemption: str) -> None:
    """Before its first token, or, its answer grown into what is left, after."""
    executor = PagedExecutor(spec(4), num_blocks=1 + 12, num_host_blocks=20)
    core = engine(executor, depth=depth, preemption=preemption)
    run(core, publish(1, list(range(32)), "system"))
    sources = [request(2, num_prompt=num_prompt, max_tokens=28, n=2), request(3, num_prompt=2, max_tokens=3)]
    deltas = run(core, *sources)
    errors = [(d.request_id, d.index, d.finish_reason, d.refusal) for d in deltas if d.error]
    assert errors == [(2, 0, "error", "length"), (2, 1, "error", "length")]
    assert "8 of the pool's 12 are taken by published prefixes" in str(next(d.error for d in deltas if d.error))
    answer = tokens_of(deltas, 2)
    assert answer == expected_tokens(sources[0])[: len(answer)] and bool(answer) == (num_prompt == 3)
    assert tokens_of(deltas, 3) == expected_tokens(sources[1])


def test_a_text_that_would_leave_no_room_for_who_runs_is_not_published() -> None:
    """8 blocks of 4: the answer that is being written may need all of them."""
    core = engine(PagedExecutor(spec(4), num_blocks=1 + 8))
    source = request(1, num_prompt=3, max_tokens=29)
    core.add(source)
    core.step(0.0)
    deltas = run(core, publish(2, TEXT, "system"))
    (refused,) = [d for d in deltas if d.request_id == 2]
    assert refused.finish_reason == "error" and "may need 8 KV blocks at once" in (refused.error or "")
    assert tokens_of(deltas, 1) == expected_tokens(source)[1:] and core.published() == []
    (again,) = run(core, publish(3, TEXT, "system"))
    assert again.finish_reason == "length" and core.published()[0].num_tokens == WHOLE


def test_the_same_text_under_another_name_takes_no_more_room() -> None:
    """8 blocks of 4, 5 of them published: the second name shares them."""
    core = engine(PagedExecutor(spec(4), num_blocks=1 + 8))
    run(core, publish(1, TEXT, "system"))
    (delta,) = run(core, publish(2, TEXT, "again"))
    assert delta.finish_reason == "length" and len(core.published()) == 2
