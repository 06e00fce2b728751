"""Beam search on blocks: forked and dropped by reference, preempted whole, and always the same answers."""

from __future__ import annotations

from itertools import product

import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.step import StepPlan, StepResult
from octavo.errors import InvariantError
from octavo.messages import EngineRequest, TokenDelta, TokenLogprobs
from support.core_scripts import ScriptedExecutor, drain, engine, preempt_next, publish, request, run, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_beams, expected_tokens


def search(
    request_id: int = 1, num_prompt: int = 7, max_tokens: int = 8, width: int = 4, n: int = 4, **changes: object
) -> EngineRequest:
    return request(request_id, num_prompt=num_prompt, max_tokens=max_tokens, beam_width=width, n=n, **changes)


def start(depth: int = 1, num_blocks: int = 90, num_host_blocks: int = 0, **settings: object) -> EngineCore:
    executor = PagedExecutor(spec(4, (None, 6)), num_blocks=num_blocks, num_host_blocks=num_host_blocks)
    return engine(executor, depth=depth, **{"max_num_seqs": 6, "erase_freed_blocks": True, **settings})


def assert_found(deltas: list[TokenDelta], source: EngineRequest) -> None:
    found = sorted((d for d in deltas if d.request_id == source.request_id), key=lambda d: d.index)
    expected = expected_beams(source)
    assert [d.token_ids for d in found] == [hypothesis.token_ids for hypothesis in expected]
    assert [d.score for d in found] == [hypothesis.score for hypothesis in expected]
    assert [(d.finish_reason, d.stop_reason) for d in found] == [(h.finish_reason, h.stop_reason) for h in expected]
    if source.sampling.logprobs is not None:
        assert [d.logprobs for d in found] == [hypothesis.logprobs for hypothesis in expected]


def assert_nothing_left(core: EngineCore) -> None:
    stats = core.stats()
    assert stats.num_held_blocks == stats.num_pinned_blocks == core._scheduler.rows.num_reserved == 0
    assert core._scheduler.slots.num_free == core._scheduler.slots.count
    assert len(core._scheduler.rows.free) == core._scheduler.rows.count


STOPS = tuple(range(0, 40, 5))


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("width", [1, 2, 4, 6])
@pytest.mark.parametrize(
    "wishes",
    [
        {},
        {"eos_token_ids": STOPS, "logprobs": 2},
        {"stop_token_ids": STOPS, "early_stopping": True},
        {"eos_token_ids": STOPS, "early_stopping": "never", "length_penalty": 2.0},
        {"max_tokens": 1},
        {"num_prompt": 1, "n": 1},
    ],
)
def test_the_answers_are_those_of_the_search_alone(wishes: dict[str, object], width: int, depth: int) -> None:
    core = start(depth)
    source = search(width=width, **{"n": width, **wishes})
    other = request(2, num_prompt=3, max_tokens=20)
    deltas = run(core, source, other)
    assert_found(deltas, source)
    assert tokens_of(deltas, 2) == expected_tokens(other)
    assert core.stats().num_generated_tokens == sum(len(d.token_ids) for d in deltas)
    assert_nothing_left(core)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [1, 2, 3, 5])
def test_a_budget_below_the_width_takes_turns(budget: int, depth: int) -> None:
    """Beams that have reported stand still until the others have."""
    core = start(depth, max_num_batched_tokens=budget, num_blocks=60)
    sources = [search(1), request(2, num_prompt=3, max_tokens=9), search(3, width=2, n=2)]
    deltas = run(core, *sources)
    assert_found(deltas, sources[0])
    assert_found(deltas, sources[2])
    assert tokens_of(deltas, 2) == expected_tokens(sources[1])
    assert_nothing_left(core)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [2, 3, 16])
@pytest.mark.parametrize("num_steps", range(1, 8))
def test_preempted_at_any_step_the_search_chooses_the_same(
    num_steps: int, budget: int, depth: int, preemption: str
) -> None:
    core = start(depth, num_host_blocks=60, preemption=preemption, max_num_batched_tokens=budget)
    source = search(eos_token_ids=STOPS)
    core.add(source)
    deltas = [delta for _ in range(num_steps) for delta in core.step(0.0)]
    preempt_next(core, 1)
    deltas += drain(core)
    assert_found(deltas, source)
    assert core.stats().num_preemptions > 0
    assert_nothing_left(core)


@pytest.mark.parametrize("moment", ["put", "get"])
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_search_that_lost_a_block_begins_again(depth: int, which: int, moment: str) -> None:
    core = start(depth, num_host_blocks=60, preemption="swap")
    executor = core._executor
    assert isinstance(executor, PagedExecutor)
    executor.fail = lambda plan: (
        [slot for _, slot in plan.swap_out][which:][:1] if moment == "put" else [],
        [block for _, block in plan.swap_in][which:][:1] if moment == "get" else [],
        [],
    )
    source = search()
    core.add(source)
    deltas = [delta for _ in range(5) for delta in core.step(0.0)]
    preempt_next(core, 1)
    deltas += drain(core)
    assert_found(deltas, source)
    assert core.stats().num_swap_preemptions > 0
    assert_nothing_left(core)


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [5, 16])
def test_searches_that_do_not_fit_together_are_all_answered(budget: int, depth: int, preemption: str) -> None:
    core = start(
        depth,
        max_num_seqs=9,
        num_blocks=1 + 33,
        num_host_blocks=60,
        preemption=preemption,
        max_num_batched_tokens=budget,
    )
    sources = [search(i, num_prompt=4 + i, width=3, n=3, max_tokens=14) for i in (1, 2)]
    others = [request(i, num_prompt=9, max_tokens=12) for i in (3, 4)]
    deltas = run(core, *sources, *others)
    for source in sources:
        assert_found(deltas, source)
    for source in others:
        assert tokens_of(deltas, source.request_id) == expected_tokens(source)
    assert core.stats().num_preemptions > 0
    assert_nothing_left(core)


@pytest.mark.parametrize("depth", [1, 2])
def test_two_searches_that_come_back_together_go_on_in_order(depth: int) -> None:
    plans = []
    for _ in range(5):
        core = start(depth, num_host_blocks=60, preemption="swap", max_num_batched_tokens=32)
        sources = [search(i, width=2, n=2) for i in (1, 2, 3)]
        for source in sources:
            core.add(source)
        deltas = [delta for _ in range(3) for delta in core.step(0.0)]
        preempt_next(core, 1, 2, 3)
        deltas += drain(core)
        for source in sources:
            assert_found(deltas, source)
        plans.append(core._executor.plans)  # type: ignore[attr-defined]
    assert all(other == plans[0] for other in plans[1:]), "the same plans, whatever the addresses of objects"


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_search_in_turns_gives_way_whole(depth: int, preemption: str) -> None:
    """The budget lets one or two beams go on at a time, so that some stand still when a block is missing."""
    num_preemptions = 0
    for num_blocks, num_prompt in product(range(22, 26), range(6, 9)):
        executor = PagedExecutor(spec(4), num_blocks=1 + num_blocks, num_host_blocks=60)
        core = engine(executor, depth=depth, preemption=preemption, max_num_batched_tokens=3, max_num_seqs=5)
        source = search(3, num_prompt=5, width=3, n=3, max_tokens=14)
        others = [request(i, num_prompt=num_prompt + i, max_tokens=30) for i in (1, 2)]
        deltas = run(core, *others, source)
        assert_found(deltas, source)
        for other in others:
            assert tokens_of(deltas, other.request_id) == expected_tokens(other)
        assert_nothing_left(core)
        num_preemptions += core.stats().num_preemptions
    assert num_preemptions > 0


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("num_steps", range(8))
@pytest.mark.parametrize("swapped", [False, True])
def test_aborted_at_any_moment_it_leaves_nothing(num_steps: int, swapped: bool, depth: int) -> None:
    core = start(depth, num_host_blocks=60, preemption="swap")
    core.add(search(1, max_tokens=20))
    other = request(2, num_prompt=3, max_tokens=14)
    core.add(other)
    deltas = [delta for _ in range(4 if swapped else 0) for delta in core.step(0.0)]
    if swapped:
        preempt_next(core, 1)
    deltas += [delta for _ in range(num_steps) for delta in core.step(0.0)]
    core.abort(1, 2)
    assert 1 in core._scheduler.requests, "one of several answers cannot leave before the others"
    core.abort(1)
    assert core.audit() == []
    deltas += drain(core)
    assert {d.request_id for d in deltas} == {2} and tokens_of(deltas, 2) == expected_tokens(other)
    assert_nothing_left(core)


def test_the_only_answer_of_a_search_may_leave_by_its_index() -> None:
    core = start()
    core.add(search(n=1))
    core.step(0.0)
    core.abort(1, 0)
    assert not core._scheduler.requests and drain(core) == []


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step_id", range(1, 6))
def test_a_beam_that_fails_fails_the_search(step_id: int, depth: int) -> None:
    core = start(depth)
    executor = core._executor
    assert isinstance(executor, PagedExecutor)
    executor.fail = lambda plan: ([], [], plan.rows[-1:] if plan.step_id == step_id else [])
    deltas = run(core, search(n=2))
    assert [(d.index, d.token_ids, d.error) for d in deltas] == [(0, [], "not finite"), (1, [], "not finite")]
    assert core.stats().num_errors == 1
    assert_nothing_left(core)


def test_a_search_that_finds_nothing_says_so() -> None:
    """A worker that reports an empty list of candidates ends it."""
    core = start()
    executor = core._executor
    assert isinstance(executor, PagedExecutor)
    perform = executor.answer

    def silent(plan: StepPlan) -> StepResult:
        result = perform(plan)
        result.logprobs = [TokenLogprobs(0, 0.0, 1, []) for _ in result.token_ids]
        return result

    executor.answer = silent
    deltas = run(core, search())
    assert [(d.index, d.token_ids, d.finish_reason) for d in deltas] == [(i, [], "stop") for i in range(4)]


def test_beams_share_the_prompt_and_copy_only_the_last_block() -> None:
    core = start()
    core.add(search(num_prompt=16, max_tokens=9))
    for _ in range(4):
        core.step(0.0)
    assert len(core._scheduler.running) == 4
    shared = [sequence.block_tables[0][:4] for sequence in core._scheduler.running.values()]
    assert all(table == shared[0] for table in shared)


@pytest.mark.parametrize("max_tokens", [1, 5])
def test_what_a_search_found_of_its_prompt_is_said_once(max_tokens: int) -> None:
    core = start()
    run(core, request(1, num_prompt=7, max_tokens=1))
    source = search(1, max_tokens=max_tokens)
    deltas = run(core, source)
    assert_found(deltas, source)
    assert [d.num_cached_tokens for d in sorted(deltas, key=lambda d: d.index)] == [6, 0, 0, 0]


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_search_that_no_longer_fits_is_refused(depth: int, preemption: str) -> None:
    executor = PagedExecutor(spec(4), num_blocks=1 + 26, num_host_blocks=60)
    core = engine(executor, depth=depth, preemption=preemption)
    source = search(num_prompt=4, max_tokens=20, width=4, n=2)
    run(core, publish(9, list(range(60)), "a"), publish(8, list(range(200, 224)), "b"))
    deltas = run(core, source)
    assert [(d.request_id, d.index, d.refusal) for d in deltas if d.error] == [(1, 0, "length"), (1, 1, "length")]
    assert "taken by published prefixes" in str(next(d.error for d in deltas if d.error))


def test_answers_that_cannot_be_are_empty() -> None:
    """Where one token only is possible there is one answer; a client that asked for three is not left waiting."""
    executor = ScriptedExecutor()
    top = [(5, -0.5), (6, float("-inf")), (7, float("-inf"))]
    executor.answer = lambda plan: StepResult(
        plan.step_id, [5] * len(plan.sample_rows), [TokenLogprobs(5, -0.5, 1, top) for _ in plan.sample_rows]
    )
    core = engine(executor)
    core.add(search(max_tokens=2, width=3, n=3))
    found = drain(core)
    assert [(d.index, d.token_ids, d.finish_reason) for d in found] == [
        (0, [5, 5], "length"),
        (1, [], "stop"),
        (2, [], "stop"),
    ]
    assert [d.score for d in found] == [-0.5, None, None]


def test_a_worker_that_reports_no_candidates_is_at_fault() -> None:
    """It must not look as if the search had found nothing."""
    executor = PagedExecutor(spec(4))
    core, perform = engine(executor), executor.answer

    def silent(plan: StepPlan) -> StepResult:
        result = perform(plan)
        result.logprobs = None
        return result

    executor.answer = silent
    with pytest.raises(InvariantError, match="beam 0 of request 1 got no candidates"):
        run(core, request(1, beam_width=2, max_tokens=4))


def test_a_search_lacks_what_all_its_beams_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beams grow one after another: with 0, 1, 1 and 2 blocks needed, those that are there count once."""
    core = start()
    core.add(search(max_tokens=6, width=4))
    for _ in range(3):
        core.step(0.0)
    scheduler = core._scheduler
    (group,) = scheduler.beam_groups()
    available = scheduler.kv.num_available_blocks
    assert len(group.beams) == 4
    needs = dict(zip(group.beams, (0, 1, 1, 2), strict=True))
    monkeypatch.setattr(scheduler.kv, "shortage", lambda beam, end: needs[beam] - available)
    assert scheduler.beams.shortage(group) == 4 - available
