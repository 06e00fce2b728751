"""Draft slots: who gets them, from what, and what is left of them when the step is applied."""

from __future__ import annotations

import re
from typing import Any

import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.step import Drafted, StepPlan, StepResult
from octavo.errors import ConfigError, InvariantError
from octavo.messages import TokenDelta, TokenLogprobs
from support.core_scripts import ScriptedExecutor, drain, engine, request, spec, tokens_of


class Guessing(ScriptedExecutor):
    """Samples 5 everywhere, and makes as many drafts as it is granted, or `num_drafts`; the first `good` are right."""

    def __init__(self, good: int = 99, num_drafts: int = 99, **settings: Any) -> None:
        super().__init__(**settings)
        self.good, self.num_drafts = good, num_drafts
        self.answer = self._answer

    def _answer(self, plan: StepPlan) -> StepResult:
        drafted = []
        for row, granted in zip(plan.rows, plan.num_drafts, strict=False):
            count = min(granted, self.num_drafts)
            if count:
                drafted.append(Drafted(row, count, [5] * min(count, self.good)))
        return StepResult(plan.step_id, [5] * len(plan.sample_rows), drafted=drafted)


def guessing_engine(executor: ScriptedExecutor, num_draft_tokens: int = 3, **settings: Any) -> EngineCore:
    return engine(executor, num_draft_tokens=num_draft_tokens, drafting="always", **settings)


def step_by_step(core: EngineCore) -> list[TokenDelta]:
    """Everything that is said, the books being right after each step."""
    deltas = []
    while core.has_work:
        deltas += core.step(0.0)
        assert core.audit() == []
    return deltas


def counters(core: EngineCore) -> tuple[int, int, int]:
    stats = core.stats()
    return stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens


def test_a_decoding_row_is_granted_drafts_and_moves_past_those_that_were_right() -> None:
    executor = Guessing(good=2)
    core = guessing_engine(executor)
    core.add(request(num_prompt=5, max_tokens=9))
    deltas = step_by_step(core)
    computing = [plan for plan in executor.plans if plan.rows]
    assert [plan.num_new_tokens for plan in computing] == [[5], [1], [1], [1]]
    # Not beside the prompt; then as many as fit before the last token, which nothing follows.
    assert [plan.num_drafts for plan in computing] == [[], [3], [3], [1]]
    assert [len(delta.token_ids) for delta in deltas] == [1, 3, 3, 2]
    assert tokens_of(deltas) == [5] * 9 and deltas[-1].finish_reason == "length"
    assert counters(core) == (3, 7, 5)
    assert core.stats().num_generated_tokens == 9


def test_slots_of_rejected_drafts_go_back_at_once() -> None:
    executor = Guessing(good=0, kv_spec=spec(block_size=2))
    core = guessing_engine(executor, num_draft_tokens=6)
    core.add(request(num_prompt=4, max_tokens=12))
    core.step(0.0)
    core.step(0.0)
    assert executor.plans[1].num_drafts == [6]
    assert len(executor.plans[1].table_growth) == 4, "slots for tokens 4 to 10 of blocks of 2"
    assert core.stats().num_held_blocks == 3, "for five computed tokens"
    assert tokens_of(step_by_step(core)) == [5] * 10
    assert counters(core)[2] == 0


def test_a_worker_that_guesses_nothing_costs_nothing() -> None:
    core = guessing_engine(Guessing(num_drafts=0))
    core.add(request(num_prompt=5, max_tokens=6))
    assert tokens_of(step_by_step(core)) == [5] * 6
    assert counters(core) == (0, 0, 0)


def test_drafts_take_only_tokens_that_the_step_has_left() -> None:
    executor = Guessing()
    core = guessing_engine(executor, max_num_batched_tokens=4)
    for i in (1, 2):
        core.add(request(i, num_prompt=1, max_tokens=9))
    deltas = core.step(0.0) + core.step(0.0)
    assert executor.plans[1].num_drafts == [2, 0]
    core.add(request(3, num_prompt=9, max_tokens=1))
    deltas += core.step(0.0)
    assert executor.plans[2].num_drafts == [], "the prompt takes what is left"
    deltas += step_by_step(core)
    assert [tokens_of(deltas, i) for i in (1, 2, 3)] == [[5] * 9, [5] * 9, [5]]


def test_drafts_take_only_blocks_that_are_there_and_preempt_nobody() -> None:
    executor = Guessing(num_blocks=1 + 3)  # blocks of 4
    core = guessing_engine(executor, num_draft_tokens=8)
    core.add(request(1, num_prompt=4, max_tokens=5))
    core.add(request(2, num_prompt=1, max_tokens=2))
    core.step(0.0)
    assert core.stats().num_running == 2
    core.step(0.0)
    assert executor.plans[1].num_drafts == [3, 0], "what fits the block it has; the other one has one token to come"
    step_by_step(core)
    assert core.stats().num_preemptions == 0


def test_a_full_block_in_a_full_pool_gets_none() -> None:
    executor = Guessing(num_blocks=1 + 2)
    core = guessing_engine(executor)
    core.add(request(1, num_prompt=3, max_tokens=6, token_ids=[1, 2, 3]))
    core.step(0.0)
    core.add(request(2, num_prompt=3, max_tokens=1, token_ids=[7, 8, 9]))
    core.step(0.0)
    assert executor.plans[1].num_drafts == [0, 0] or executor.plans[1].num_drafts == []
    assert tokens_of(step_by_step(core), 1)[-1] == 5


def test_an_answer_that_ends_inside_the_drafts_takes_nothing_after_it() -> None:
    executor = Guessing()
    core = guessing_engine(executor, num_draft_tokens=8)

    def answer(plan: StepPlan) -> StepResult:
        drafted = [
            Drafted(row, count, [6, 7, 8, 9][:count]) for row, count in zip(plan.rows, plan.num_drafts, strict=False)
        ]
        return StepResult(plan.step_id, [5] * len(plan.sample_rows), drafted=drafted)

    executor.answer = answer
    core.add(request(num_prompt=5, max_tokens=20, stop_token_ids=(7,), min_tokens=3))
    deltas = step_by_step(core)
    assert tokens_of(deltas) == [5, 5, 6, 7], "the fourth token may stop, the third could not have"
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", 7)
    assert counters(core) == (1, 8, 2)


def test_a_stop_token_before_min_tokens_does_not_stop_inside_drafts() -> None:
    core = guessing_engine(Guessing())
    core.add(request(num_prompt=5, max_tokens=9, stop_token_ids=(5,), min_tokens=6))
    deltas = step_by_step(core)
    assert tokens_of(deltas) == [5] * 7 and deltas[-1].finish_reason == "stop"


def test_logprobs_come_with_every_token() -> None:
    executor = Guessing()

    def entry(n: int) -> TokenLogprobs:
        return TokenLogprobs(5, -float(n), 1, [])

    def answer(plan: StepPlan) -> StepResult:
        drafted = [
            Drafted(row, count, [5] * count, [entry(i + 1) for i in range(count)])
            for row, count in zip(plan.rows, plan.num_drafts, strict=False)
        ]
        tokens = [5] * len(plan.sample_rows)
        return StepResult(plan.step_id, tokens, [entry(0) for _ in tokens], drafted=drafted)

    executor.answer = answer
    core = guessing_engine(executor, num_draft_tokens=2)
    core.add(request(num_prompt=5, max_tokens=6, logprobs=0))
    deltas = step_by_step(core)
    assert [[e.logprob for e in delta.logprobs or []] for delta in deltas] == [[0], [0, -1, -2], [0, -1]]


def test_blocks_that_drafts_complete_can_be_found() -> None:
    executor = Guessing()
    core = guessing_engine(executor, num_draft_tokens=8)
    core.add(request(1, num_prompt=4, max_tokens=12))
    first = tokens_of(step_by_step(core))
    core.add(request(2, max_tokens=1, token_ids=executor.plans[0].setups[0].token_ids + first))
    core.step(0.0)
    assert core.stats().num_prefix_hit_tokens == 15, "all that was computed, to the token"


def test_without_a_prefix_cache() -> None:
    core = guessing_engine(Guessing(), enable_prefix_caching=False)
    core.add(request(1, num_prompt=4, max_tokens=12))
    assert tokens_of(step_by_step(core)) == [5] * 12


def test_a_row_that_fails_takes_its_drafts_with_it() -> None:
    executor = Guessing()
    core = guessing_engine(executor)
    core.add(request(num_prompt=5, max_tokens=9))
    core.step(0.0)
    executor.answer = lambda plan: StepResult(
        plan.step_id, [-1] * len(plan.sample_rows), row_errors=[(0, "no numbers")]
    )
    [delta] = core.step(0.0)
    assert delta.finish_reason == "error" and core.audit() == []
    executor.answer = executor._answer
    drain(core)
    assert core.stats().num_held_blocks == 0


def test_beams_and_grammars_are_not_guessed_and_the_unborn_come_first() -> None:
    executor = ScriptedExecutor()
    executor.answer = lambda plan: StepResult(
        plan.step_id,
        [5] * len(plan.sample_rows),
        [TokenLogprobs(5, -1.0, 1, [(5, -1.0), (6, -2.0), (7, -3.0), (8, -4.0)])] * len(plan.sample_rows),
    )
    core = guessing_engine(executor)
    core.add(request(1, num_prompt=3, max_tokens=4, beam_width=2))
    core.add(request(2, num_prompt=3, max_tokens=4, grammar_id=1))
    step_by_step(core)
    assert not any(plan.num_drafts for plan in executor.plans)
    executor = Guessing()
    core = guessing_engine(executor, max_num_batched_tokens=8)
    core.add(request(1, num_prompt=1, max_tokens=9))
    core.step(0.0)
    core.add(request(2, num_prompt=9, max_tokens=2, n=2))
    core.step(0.0)
    core.step(0.0)
    assert [plan.num_drafts for plan in executor.plans] == [[], [], []], "a sibling waits to be born"
    step_by_step(core)
    assert any(plan.num_drafts for plan in executor.plans)


@pytest.mark.parametrize(("num_drafts", "num_tokens"), [(4, 0), (1, 2), (0, 0)])
def test_a_worker_that_claims_too_much_is_broken(num_drafts: int, num_tokens: int) -> None:
    executor = Guessing()
    core = guessing_engine(executor)
    core.add(request(num_prompt=5, max_tokens=9))
    core.step(0.0)
    executor.answer = lambda plan: StepResult(
        plan.step_id, [5], drafted=[Drafted(plan.rows[0], num_drafts, [5] * num_tokens)]
    )
    with pytest.raises(InvariantError, match=re.escape("row 0 was granted 3 draft tokens")):
        core.step(0.0)


def test_drafts_need_depth_1_and_a_policy_that_exists() -> None:
    with pytest.raises(ConfigError, match="depth = 2: must be 1 with drafts"):
        guessing_engine(Guessing(), depth=2)
    with pytest.raises(ConfigError, match="drafting = 'never': must be one of auto, always"):
        engine(Guessing(), drafting="never")
