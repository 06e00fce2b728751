"""EngineCore as its callers see it: what it refuses, emits, counts and frees."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo.core.step import PromptLogprobs, StepPlan, StepResult
from octavo.errors import ConfigError, ContextLengthError, InvariantError, RequestError
from octavo.messages import TokenLogprobs
from support.core_scripts import ScriptedExecutor, drain, engine, preempt, request, run, spec, tokens_of


def known(token: int) -> TokenLogprobs:
    return TokenLogprobs(token, -1.0, 1, [])


# ---- what is refused


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_num_seqs", 0), ("max_num_batched_tokens", 0), ("max_model_len", -1), ("depth", 0), ("depth", 3)],
)
def test_a_number_out_of_range_is_a_config_error(name: str, value: int) -> None:
    with pytest.raises(ConfigError, match=name):
        engine(**{name: value})


@pytest.mark.parametrize("name", ["eviction", "preemption", "admission"])
def test_an_unknown_policy_is_a_config_error_that_lists_those_there_are(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} = 'best'.*one of "):
        engine(**{name: "best"})


def test_a_pool_of_the_null_block_alone_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="num_blocks = 1"):
        engine(ScriptedExecutor(num_blocks=1))


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"token_ids": [], "num_prompt_tokens": 0}, "token_ids"),
        ({"num_prompt_tokens": 0}, "num_prompt_tokens"),
        ({"num_prompt_tokens": 6}, "num_prompt_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"first_index": -1}, "first_index"),
        ({"num_prompt_tokens": 1, "max_tokens": 4}, "max_tokens"),
        ({"num_prompt_tokens": 4, "max_tokens": 0}, "max_tokens"),
        ({"request_id": 9, "first_index": 1}, "request_id"),
    ],
)
def test_a_contradiction_is_refused_by_name_and_changes_nothing(changes: dict[str, Any], param: str) -> None:
    core = engine()
    core.add(request(9, n=2))
    before = core.stats()
    bad = msgspec.structs.replace(request(), **changes)
    with pytest.raises(RequestError) as refused:
        core.add(bad)
    assert refused.value.param == param
    assert core.stats() == before


@pytest.mark.parametrize(
    ("changes", "param", "allowed"),
    [
        ({"token_ids": [1, 2, 3], "num_prompt": 2}, "token_ids", "the prompt alone"),
        ({"max_tokens": 0}, "max_tokens", "at least 1 with beam_width"),
        ({"beam_width": 5, "n": 5}, "beam_width", "at most max_num_seqs"),
    ],
)
def test_a_search_that_cannot_be_made_is_refused(changes: dict[str, Any], param: str, allowed: str) -> None:
    core = engine()
    with pytest.raises(RequestError, match=allowed) as refused:
        core.add(request(**{"beam_width": 2, **changes}))
    assert refused.value.param == param and not core.has_work


def test_a_search_too_large_for_the_pool_is_refused_with_the_sum() -> None:
    core = engine(ScriptedExecutor(num_blocks=1 + 13))
    core.add(request(1, num_prompt=6, max_tokens=10, beam_width=3))  # 1 + 3 * (3 + 1)
    with pytest.raises(ContextLengthError, match="shared by 3 beams of 11 tokens take up to 16 KV blocks"):
        core.add(request(2, num_prompt=6, max_tokens=11, beam_width=3))


def test_an_id_in_use_takes_other_indices() -> None:
    """After a crash the children of a request come back one by one."""
    core = engine()
    core.add(request(1, max_tokens=2, first_index=2))
    core.add(request(1, max_tokens=2, n=2))
    assert {d.index for d in drain(core)} == {0, 1, 2}


def test_too_long_for_the_context_is_refused_with_the_sum() -> None:
    core = engine(max_model_len=10)
    core.add(request(1, num_prompt=6, max_tokens=4))
    with pytest.raises(ContextLengthError, match=r"7 prompt tokens \+ 4 answer tokens = 11.* holds 10 tokens"):
        core.add(request(2, num_prompt=7, max_tokens=4))


def test_too_long_for_the_pool_is_refused_with_the_sum() -> None:
    core = engine(ScriptedExecutor(num_blocks=1 + 3))
    core.add(request(1, num_prompt=9, max_tokens=4))  # 12 tokens with KV: the last one is never computed
    with pytest.raises(ContextLengthError, match="= 14, which take 4 KV blocks of 4 tokens, but the pool has 3"):
        core.add(request(2, num_prompt=9, max_tokens=5))
    assert len(tokens_of(drain(core))) == 4


def test_a_window_makes_room_for_longer_requests() -> None:
    long = request(1, num_prompt=20, max_tokens=30)
    whole = engine(ScriptedExecutor(spec(4, (None, None)), num_blocks=1 + 18), max_num_batched_tokens=4)
    with pytest.raises(ContextLengthError):
        whole.add(long)
    windowed = engine(ScriptedExecutor(spec(4, (None, 4)), num_blocks=1 + 18), max_num_batched_tokens=4)
    windowed.add(long)
    assert len(tokens_of(drain(windowed))) == 30


# ---- how an answer ends


@pytest.mark.parametrize(
    ("wishes", "tokens", "finish", "stop"),
    [
        ({}, 4, "length", None),
        ({"eos_token_ids": (5,)}, 1, "stop", None),
        ({"eos_token_ids": (5,), "ignore_eos": True}, 4, "length", None),
        ({"stop_token_ids": (5,)}, 1, "stop", 5),
        ({"stop_token_ids": (5,), "eos_token_ids": (5,)}, 1, "stop", None),
        ({"stop_token_ids": (5,), "eos_token_ids": (5,), "ignore_eos": True}, 1, "stop", 5),
        ({"stop_token_ids": (5,), "min_tokens": 2}, 3, "stop", 5),
        ({"stop_token_ids": (5,), "min_tokens": 4}, 4, "length", None),
        ({"stop_token_ids": (6,)}, 4, "length", None),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_how_an_answer_ends(wishes: dict[str, Any], tokens: int, finish: str, stop: int | None, depth: int) -> None:
    core = engine(ScriptedExecutor(token=5), depth=depth)
    core.add(request(**wishes))
    deltas = drain(core)
    assert tokens_of(deltas) == [5] * tokens
    assert [d.finish_reason for d in deltas] == [None] * (tokens - 1) + [finish]
    assert deltas[-1].stop_reason == stop


def test_a_resumed_answer_counts_what_it_had() -> None:
    core = engine()
    core.add(
        request(token_ids=[10, 11, 12, 5, 5], num_prompt_tokens=3, max_tokens=4, min_tokens=3, stop_token_ids=(5,))
    )
    deltas = drain(core)
    assert tokens_of(deltas) == [5, 5] and deltas[-1].finish_reason == "stop", "the third is too early to stop"


@pytest.mark.parametrize("depth", [1, 2])
def test_no_tokens_asked_runs_the_prompt_and_emits_none(depth: int) -> None:
    executor = ScriptedExecutor()
    core = engine(executor, depth=depth, max_num_batched_tokens=4)
    core.add(request(num_prompt=6, max_tokens=0))
    (delta,) = drain(core)
    assert (delta.token_ids, delta.finish_reason, delta.logprobs) == ([], "length", None)
    assert sum(sum(plan.num_new_tokens) for plan in executor.plans) == 6
    assert core.stats().num_generated_tokens == 0 and core.stats().num_prompt_tokens == 6


def test_n_sequences_are_drawn_apart() -> None:
    executor = ScriptedExecutor()
    core = engine(executor)
    core.add(request(n=3, num_prompt=4, max_tokens=1, first_index=1))
    assert sorted(d.index for d in drain(core)) == [1, 2, 3]
    (setup,) = executor.plans[0].setups
    assert (setup.seed, setup.sequence_index) == (7, 1)
    assert [(fork.source_row, fork.sequence_index) for fork in executor.plans[0].forks] == [
        (setup.row, 2),
        (setup.row, 3),
    ]
    assert core.stats().num_prompt_tokens == 4, "one request, one prompt"


# ---- logprobs


def test_logprobs_go_to_whoever_asked() -> None:
    executor = ScriptedExecutor()
    executor.answer = lambda plan: StepResult(
        plan.step_id, [5] * len(plan.sample_rows), logprobs=[known(5), None][: len(plan.sample_rows)]
    )
    core = engine(executor)
    core.add(request(1, max_tokens=1, logprobs=0))
    core.add(request(2, max_tokens=1))
    first, second = core.step(0.0)
    assert (first.logprobs, second.logprobs) == ([known(5)], None)


def prompt_scores(plan: StepPlan, start: int, tokens: list[int]) -> StepResult:
    found = [PromptLogprobs(plan.rows[0], start, [known(t) for t in tokens])]
    return StepResult(plan.step_id, [5] * len(plan.sample_rows), prompt_logprobs=found)


def test_prompt_logprobs_begin_with_none_and_come_once() -> None:
    executor = ScriptedExecutor(num_blocks=1 + 2)
    core = engine(executor, max_num_batched_tokens=4)
    core.add(request(num_prompt=6, max_tokens=3, prompt_logprobs=0))
    executor.answer = lambda plan: prompt_scores(plan, 1, [11, 12, 13, 14])
    deltas = core.step(0.0)
    preempt(core, 1)
    assert core.step(0.0) == [], "the same positions again"
    executor.answer = lambda plan: prompt_scores(plan, 4, [14, 15])
    deltas += core.step(0.0)
    preempt(core, 1)
    executor.answer = lambda plan: prompt_scores(plan, 1, [11]) if plan.rows else StepResult(plan.step_id, [])
    deltas += drain(core)
    asked = [setup.sampling.prompt_logprobs for plan in executor.plans for setup in plan.setups]
    assert asked == [0, 0, None], "once all are known nobody asks again"
    found = [position for d in deltas for position in d.prompt_logprobs or []]
    assert found == [None, *map(known, [11, 12, 13, 14, 15])]
    assert tokens_of(deltas) == [5, 5, 5]


def test_a_prompt_of_one_token_has_one_unknown_position() -> None:
    core = engine()
    core.add(request(num_prompt=1, max_tokens=1, n=2, prompt_logprobs=0))
    deltas = drain(core)
    assert [(d.index, d.prompt_logprobs) for d in deltas if d.prompt_logprobs] == [(0, [None])]


def test_prompt_logprobs_nobody_asked_for_are_dropped() -> None:
    executor = ScriptedExecutor()
    executor.answer = lambda plan: prompt_scores(plan, 1, [11]) if plan.rows else StepResult(plan.step_id, [])
    core = engine(executor)
    core.add(request(max_tokens=1))
    assert [d.prompt_logprobs for d in drain(core)] == [None]


def test_a_hole_in_prompt_logprobs_is_an_invariant_error() -> None:
    executor = ScriptedExecutor()
    executor.answer = lambda plan: prompt_scores(plan, 3, [13])
    core = engine(executor)
    core.add(request(prompt_logprobs=0))
    with pytest.raises(InvariantError, match="skip 2 positions"):
        core.step(0.0)


# ---- failures


@pytest.mark.parametrize("depth", [1, 2])
def test_a_row_that_fails_fails_alone(depth: int) -> None:
    executor = ScriptedExecutor()

    def answer(plan: StepPlan) -> StepResult:
        tokens = [-1 if row == 0 else 5 for row in plan.sample_rows]
        return StepResult(plan.step_id, tokens, row_errors=[(0, "not finite")] if 0 in plan.rows else None)

    executor.answer = answer
    core = engine(executor, depth=depth)
    core.add(request(1))
    core.add(request(2))
    deltas = drain(core)
    (error,) = [d for d in deltas if d.request_id == 1]
    assert (error.token_ids, error.finish_reason, error.error) == ([], "error", "not finite")
    assert tokens_of(deltas, 2) == [5] * 4
    assert core.stats().num_errors == 1


def test_what_the_executor_raises_comes_through_again_and_again() -> None:
    executor = ScriptedExecutor()

    def fail(plan: StepPlan) -> StepResult:
        raise MemoryError("device")

    executor.answer = fail
    core = engine(executor)
    core.add(request())
    for _ in range(2):
        with pytest.raises(MemoryError, match="device"):
            core.step(0.0)
    assert len(executor.plans) == 1, "a step that failed is not planned over"


@pytest.mark.parametrize("answer", [(9, [5]), (1, []), (1, [5, 5])])
def test_another_plans_result_is_an_invariant_error(answer: tuple[int, list[int]]) -> None:
    executor = ScriptedExecutor()
    executor.answer = lambda plan: StepResult(*answer)
    core = engine(executor)
    core.add(request())
    with pytest.raises(InvariantError, match="step 1 with 1 sampled rows was answered"):
        core.step(0.0)


# ---- aborts, work, accounts


@pytest.mark.parametrize("depth", [1, 2])
def test_an_abort_frees_blocks_within_two_steps_and_emits_nothing(depth: int) -> None:
    core = engine(depth=depth, max_num_seqs=2, enable_prefix_caching=False)
    core.add(request(1, n=3, max_tokens=20))
    core.step(0.0)
    core.step(0.0)
    core.abort(1)
    core.abort(1)
    core.abort(77, 0)
    assert core.step(0.0) == [] and core.step(0.0) == []
    stats = core.stats()
    assert (stats.num_free_blocks, stats.num_running, stats.num_waiting) == (stats.num_blocks, 0, 0)
    assert drain(core) == [] and not core.has_work


def test_one_of_n_sequences_can_be_dropped() -> None:
    core = engine()
    core.add(request(n=2, max_tokens=3))
    core.step(0.0)
    core.abort(1, 5)
    core.abort(1, 0)
    assert {d.index for d in drain(core)} == {1}


def test_an_idle_engine_has_no_work_and_does_nothing() -> None:
    executor = ScriptedExecutor()
    core = engine(executor)
    assert not core.has_work and core.step(0.0) == [] and executor.plans == []
    core.add(request(max_tokens=1))
    assert core.has_work
    core.step(0.0)
    assert core.has_work, "the worker must still hear of the released row"
    core.step(0.0)
    assert not core.has_work and executor.plans[-1].released_rows == [0]


def test_accounts_are_kept_per_tenant_and_add_up() -> None:
    core = engine(max_num_batched_tokens=10)
    core.add(request(1, num_prompt=6, tenant="red"))
    core.add(request(2, num_prompt=14, tenant="blue"))
    core.step(0.0)
    red, blue = core.accounts
    assert (red.tenant, red.num_held_blocks, red.num_promised_blocks) == ("red", 2, 0)
    assert (blue.tenant, blue.num_held_blocks, blue.num_promised_blocks) == ("blue", 1, 3)
    stats = core.stats()
    assert (stats.num_held_blocks, stats.num_promised_blocks, stats.num_free_blocks) == (3, 3, 61)
    assert (stats.num_blocks, stats.block_size, stats.num_running) == (64, 4, 2)
    drain(core)
    assert (red.num_held_blocks, blue.num_held_blocks, blue.num_promised_blocks) == (0, 0, 0)
    assert (red.num_allocation_faults, blue.num_allocation_faults) == (3, 5)
    assert core.stats().num_allocation_faults == 8
    assert core.stats().num_generated_tokens == 8


def test_an_idle_engine_is_told_the_time() -> None:
    core = engine()
    run(core, request(num_prompt=9))
    core.tell_time(7.5)
    ages = {block.age_s for block in core.kv_blocks() if block.state == "cached"}
    assert ages == {7.5}
