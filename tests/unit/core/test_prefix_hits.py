"""What is computed once is not computed again, to the token; and nobody reads what is not theirs."""

from __future__ import annotations

import random

import pytest

from octavo.core import prefix_index
from octavo.core.engine_core import EngineCore
from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import drain, engine, prompt, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_tokens

BLOCK = 4
PROMPT = prompt(1, 12)


def cached_tokens(deltas: list[TokenDelta], request_id: int, index: int = 0) -> int:
    return next(d.num_cached_tokens for d in deltas if (d.request_id, d.index) == (request_id, index))


def answered(core: EngineCore, source: EngineRequest) -> int:
    """Run a request, see that it is answered right, and return how much of its prompt was there."""
    deltas = run(core, source)
    for index in range(source.sampling.n):
        assert tokens_of(deltas, source.request_id, index) == expected_tokens(source, index)
    return cached_tokens(deltas, source.request_id)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("common", range(13))
def test_a_hit_ends_at_the_token_where_the_texts_part(common: int, depth: int) -> None:
    executor = PagedExecutor(spec(BLOCK, (None, None)))
    core = engine(executor, depth=depth)
    answered(core, request(1, token_ids=PROMPT))
    num_plans, before = len(executor.plans), core.stats()
    assert answered(core, request(2, token_ids=[*PROMPT[:common], 7, 8])) == common
    plan = executor.plans[num_plans]
    assert plan.num_new_tokens[0] == 2 and plan.setups[0].num_computed_tokens == common
    assert len(plan.copies) == (2 if common % BLOCK else 0)
    after = core.stats()
    assert after.num_copy_faults - before.num_copy_faults == len(plan.copies)
    assert after.num_prefix_hit_tokens == common and after.num_prefix_query_tokens == 12 + common + 2


@pytest.mark.parametrize("num_prompt", range(1, 13))
def test_of_a_prompt_that_is_all_there_the_last_token_is_computed(num_prompt: int) -> None:
    executor = PagedExecutor(spec(BLOCK))
    core = engine(executor)
    answered(core, request(1, token_ids=PROMPT))
    assert answered(core, request(2, token_ids=PROMPT[:num_prompt])) == num_prompt - 1


def test_the_next_turn_of_a_chat_finds_the_answer_too() -> None:
    core = engine(PagedExecutor(spec(BLOCK)))
    first = request(1, token_ids=PROMPT, max_tokens=7)
    answered(core, first)
    turn = [*PROMPT, *expected_tokens(first), 8, 9]
    assert answered(core, request(2, token_ids=turn)) == len(turn) - 2 - 1, "an answer's last token is never computed"


def test_what_an_aborted_or_preempted_request_computed_is_found() -> None:
    core = engine(PagedExecutor(spec(BLOCK)), max_num_batched_tokens=6)
    core.add(request(1, token_ids=PROMPT))
    core.step(0.0)
    core.abort(1)
    assert answered(core, request(2, token_ids=PROMPT)) == 6


@pytest.mark.parametrize(
    "stranger", [{"tenant": "blue"}, {"cache_salt": "s"}, {"adapter": "lora"}, {"prompt_logprobs": 0}]
)
def test_strangers_and_those_who_need_every_logit_find_nothing(stranger: dict[str, object]) -> None:
    core = engine(PagedExecutor(spec(BLOCK)))
    answered(core, request(1, token_ids=PROMPT))
    assert answered(core, request(2, token_ids=PROMPT, **stranger)) == 0
    assert answered(core, request(3, token_ids=PROMPT)) == 11


def test_nothing_is_found_where_caching_is_off() -> None:
    core = engine(PagedExecutor(spec(BLOCK)), enable_prefix_caching=False)
    for i in (1, 2):
        assert answered(core, request(i, token_ids=PROMPT)) == 0
    assert core.stats().num_free_blocks == core.stats().num_blocks and core.reset_prefix_cache() == 0
    assert core.stats().num_prefix_query_tokens == 0


def test_a_window_needs_only_what_the_next_token_reads() -> None:
    executor = PagedExecutor(spec(BLOCK, (None, 6)))
    core = engine(executor, max_num_batched_tokens=5)
    answered(core, request(1, num_prompt=30))
    num_plans = len(executor.plans)
    assert answered(core, request(2, token_ids=[*prompt(1, 30), 7, 8])) == 30
    entries = [entry for entry in executor.plans[num_plans].table_growth if entry[0] == 1]
    assert [entry[3] for entry in entries[:6]] == [0] * 6, "tokens 25 to 30 are read, block 6 holds 24 to 27"


def test_where_the_window_is_gone_less_is_found() -> None:
    """Blocks that fell out of the window have made room; what ends there cannot be gone on from."""
    executor = PagedExecutor(spec(BLOCK, (None, 6)), num_blocks=1 + 16)
    core = engine(executor, max_num_batched_tokens=5)
    answered(core, request(1, num_prompt=30))
    assert answered(core, request(2, num_prompt=24)) == 0
    core.reset_prefix_cache("nobody")
    found = answered(core, request(3, token_ids=[*prompt(1, 20), 7]))
    assert found < 20 and core.stats().num_evictions > 0


def test_eviction_takes_the_tail_first() -> None:
    core = engine(PagedExecutor(spec(BLOCK), num_blocks=1 + 6))
    answered(core, request(1, token_ids=PROMPT, max_tokens=1))
    answered(core, request(2, num_prompt=15, max_tokens=1))
    assert core.stats().num_evictions == 1
    assert answered(core, request(3, token_ids=PROMPT, max_tokens=1)) == 8


def test_a_hit_that_costs_more_than_there_is_is_taken_in_part() -> None:
    """The block to copy from is the one that is missing: the copy would need one more."""
    core = engine(PagedExecutor(spec(BLOCK), num_blocks=1 + 4))
    answered(core, request(1, num_prompt=14, max_tokens=2))
    assert answered(core, request(2, token_ids=[*prompt(1, 13), 7, 8], max_tokens=1)) == 12


def test_resetting_forgets_one_tenant_or_all() -> None:
    core = engine(PagedExecutor(spec(BLOCK)))
    for i, tenant in enumerate(("red", "blue"), 1):
        answered(core, request(i, token_ids=PROMPT, tenant=tenant))
    core.add(request(3, num_prompt=9, tenant="red", max_tokens=9))
    core.step(0.0)
    assert core.reset_prefix_cache("red") == 4, "what runs keeps its blocks"
    drain(core)
    assert answered(core, request(4, token_ids=PROMPT, tenant="red")) == 0
    assert answered(core, request(5, token_ids=PROMPT, tenant="blue")) == 11
    assert core.reset_prefix_cache() > 0 and core.stats().num_cached_blocks == 0
    assert answered(core, request(6, token_ids=PROMPT, tenant="blue")) == 0


def test_many_ways_to_go_on_are_remembered_up_to_a_bound() -> None:
    core = engine(PagedExecutor(spec(BLOCK), num_blocks=200))
    ends = [[5, 100 + i, 101, 102, 103] for i in range(prefix_index.MAX_CHILDREN + 1)]
    for i, end in enumerate(ends):
        answered(core, request(2 + i, token_ids=[*PROMPT, *end], max_tokens=1))
    oldest, newest = ends[0], ends[-1]
    assert answered(core, request(50, token_ids=[*PROMPT, *oldest[:2], 200, 201], max_tokens=1)) == 13
    assert answered(core, request(51, token_ids=[*PROMPT, *newest[:2], 200, 201], max_tokens=1)) == 14
    core.reset_prefix_cache()
    assert core.audit() == [] and core.stats().num_cached_blocks == 0


def play_random_texts(everyone_is_a_tenant: bool) -> EngineCore:
    rng = random.Random(3)
    core = engine(PagedExecutor(spec(2, (None, 5)), num_blocks=120), max_num_seqs=8)
    sources = [
        request(
            i,
            token_ids=[rng.randrange(3) for _ in range(rng.randint(1, 24))],
            max_tokens=rng.randint(1, 9),
            tenant=f"t{i}" if everyone_is_a_tenant else "red",
        )
        for i in range(150)
    ]
    deltas: list[TokenDelta] = []
    for source in sources:
        core.add(source)
        deltas += core.step(0.0)
    deltas += drain(core)
    for source in sources:
        assert tokens_of(deltas, source.request_id) == expected_tokens(source)
    return core


@pytest.mark.parametrize("everyone_is_a_tenant", [False, True])
def test_keys_of_eight_bits_cost_hits_and_never_an_answer(
    monkeypatch: pytest.MonkeyPatch, everyone_is_a_tenant: bool
) -> None:
    """Content is compared token by token, back to the scope, so two contents under one key are never mixed up."""
    collisions = 0
    is_registered = prefix_index.PrefixIndex.is_registered

    def watch(index: prefix_index.PrefixIndex, content: prefix_index.Content) -> bool:
        nonlocal collisions
        collisions += not is_registered(index, content)
        return is_registered(index, content)

    monkeypatch.setattr(prefix_index.PrefixIndex, "is_registered", watch)
    for name in ("root_key", "block_key"):
        whole = getattr(prefix_index, name)
        monkeypatch.setattr(prefix_index, name, lambda *args, whole=whole: whole(*args)[:1])
    core = play_random_texts(everyone_is_a_tenant)
    hits = core.stats().num_prefix_hit_tokens
    assert hits == 0 if everyone_is_a_tenant else hits > 100
    assert collisions > 20


# ---- the same prompt at the same time


@pytest.mark.parametrize("depth", [1, 2])
def test_identical_prompts_are_computed_once(depth: int) -> None:
    executor = PagedExecutor(spec(BLOCK))
    core = engine(executor, depth=depth, max_num_batched_tokens=7)
    for i in (1, 2, 3):
        core.add(request(i, token_ids=PROMPT, seed=i))
    core.add(request(4, num_prompt=3))
    deltas = drain(core)
    for i in (1, 2, 3):
        assert tokens_of(deltas, i) == expected_tokens(request(i, token_ids=PROMPT, seed=i))
    assert [cached_tokens(deltas, i) for i in (1, 2, 3)] == [0, 11, 11]
    assert core.stats().num_shared_waits == 2 and core.stats().num_takeovers == 0
    order = [setup.token_ids[0] for plan in executor.plans for setup in plan.setups]
    assert order[1] == prompt(4, 1)[0], "who waits for another lets others pass"


def test_when_the_first_is_aborted_the_next_goes_on_from_what_it_did() -> None:
    core = engine(PagedExecutor(spec(BLOCK)), depth=2)
    for i in (1, 2, 3):
        core.add(request(i, token_ids=PROMPT, seed=i))
    core.step(0.0)
    assert core.stats().num_shared_waits == len(core._scheduler.in_flight) == 2
    core.abort(1)
    assert core.audit() == [] and core.stats().num_takeovers == 1
    deltas = drain(core)
    for i in (2, 3):
        assert tokens_of(deltas, i) == expected_tokens(request(i, token_ids=PROMPT, seed=i))
        assert cached_tokens(deltas, i) == 11


@pytest.mark.parametrize("depth", [1, 2])
def test_when_the_first_fails_the_next_computes_it_all(depth: int) -> None:
    """Nothing of a failed row is reused."""
    executor = PagedExecutor(spec(BLOCK))
    executor.fail = lambda plan: ([], [], [0] if plan.step_id == 1 else [])
    core = engine(executor, depth=depth)
    for i in (1, 2, 3):
        core.add(request(i, token_ids=PROMPT, seed=i))
    deltas = drain(core)
    assert [d.finish_reason for d in deltas if d.request_id == 1] == ["error"]
    for i in (2, 3):
        assert tokens_of(deltas, i) == expected_tokens(request(i, token_ids=PROMPT, seed=i))
    assert [cached_tokens(deltas, i) for i in (2, 3)] == [0, 11]
    assert core.stats().num_takeovers == 1 and core.stats().num_shared_waits == 3


@pytest.mark.parametrize("leaving", [(2,), (3,), (2, 3), (3, 2), (1, 2, 3), (3, 1)])
def test_those_who_wait_may_leave(leaving: tuple[int, ...]) -> None:
    core = engine(PagedExecutor(spec(BLOCK)), depth=2)
    sources = [request(i, token_ids=PROMPT, seed=i) for i in (1, 2, 3)]
    for source in sources:
        core.add(source)
    deltas = core.step(0.0)
    assert set(core._scheduler.in_flight) == {core._scheduler.requests[i].sequences[0] for i in (2, 3)}
    for i in leaving:
        core.abort(i)
        assert core.audit() == []
    deltas += drain(core)
    for source in sources:
        if source.request_id not in leaving:
            assert tokens_of(deltas, source.request_id) == expected_tokens(source)
    assert len(core._scheduler.in_flight) == core._scheduler.in_flight.num_computing == 0


def test_a_prompt_that_begins_alike_waits_only_for_what_it_shares() -> None:
    core = engine(PagedExecutor(spec(BLOCK)))
    core.add(request(1, token_ids=PROMPT))
    core.add(request(2, token_ids=[*PROMPT[:8], 7, 8]))
    core.add(request(3, token_ids=PROMPT, prompt_logprobs=0, max_tokens=1))
    deltas = core.step(0.0)
    assert core.stats().num_shared_waits == 1 and {d.request_id for d in deltas} == {1, 3}
    deltas += drain(core)
    assert cached_tokens(deltas, 2) == 8
