"""FasterTransformer's batches: who is in one, when the next begins, and that nobody is answered before everybody."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.accounts import Accounts
from octavo.core.engine_core import EngineCore
from octavo.core.request import Sequence, SequenceStatus, make_sequences
from octavo.core.request_level import WholeBatches
from octavo.messages import EngineRequest, TokenDelta
from support.core_scripts import drain, engine, request, spec, tokens_of
from support.paged_executor import PagedExecutor, expected_tokens

ACCOUNT = Accounts().open("red")


def start(batch: int = 3, num_blocks: int = 1 + 16 * 6, **settings: Any) -> EngineCore:
    executor = PagedExecutor(spec(4, (None,)), num_blocks=num_blocks)
    return engine(executor, kv_policy="fastertransformer", max_num_seqs=batch, **settings)


def running(core: EngineCore) -> list[int]:
    return [s.request_id for s in core.scheduler.running.values()]


def until(core: EngineCore, request_id: int) -> list[TokenDelta]:
    """Step until a request runs."""
    deltas: list[TokenDelta] = []
    for _ in range(200):
        if request_id in running(core):
            return deltas
        deltas += core.step(0.0)
        assert core.audit() == []
    raise AssertionError(f"request {request_id} never runs")


def test_nobody_joins_a_batch_that_runs() -> None:
    core = start(max_num_batched_tokens=64)
    for request_id in (1, 2):
        core.add(request(request_id, max_tokens=4 + request_id))
    core.step(0.0)
    core.add(request(3))
    core.step(0.0)
    assert running(core) == [1, 2]
    until(core, 3)
    assert running(core) == [3]
    drain(core)


def test_answers_come_together_when_the_longest_has_ended() -> None:
    core = start(max_num_batched_tokens=64)
    sources = [request(i, max_tokens=3 * i) for i in (1, 2, 3, 4)]
    for source in sources:
        core.add(source)
    batches = []
    while core.has_work:
        if deltas := core.step(0.0):
            batches.append((core.stats().num_steps, deltas))
    (first_step, first), (second_step, second) = batches
    assert {d.request_id for d in first} == {1, 2, 3} and {d.request_id for d in second} == {4}
    assert first_step == 9 and second_step >= 9 + 12
    for source in sources:
        assert tokens_of([*first, *second], source.request_id) == expected_tokens(source)


@pytest.mark.parametrize("depth", [1, 2])
def test_prompts_that_take_several_steps_are_one_batch(depth: int) -> None:
    core = start(max_num_batched_tokens=6, depth=depth)
    sources = [request(i, num_prompt=11, max_tokens=1 + i) for i in range(1, 5)]
    for source in sources:
        core.add(source)
    deltas = until(core, 4)
    assert sorted({d.request_id for d in deltas if d.finish_reason}) == [1, 2, 3], "the fourth is the next batch"
    deltas += drain(core)
    for source in sources:
        assert tokens_of(deltas, source.request_id) == expected_tokens(source)


def test_a_batch_is_what_finds_room() -> None:
    core = start(batch=4, num_blocks=1 + 16 * 2, max_num_batched_tokens=64)
    for request_id in (1, 2, 3):
        core.add(request(request_id))
    core.step(0.0)
    assert running(core) == [1, 2]
    until(core, 3)
    assert running(core) == [3]
    drain(core)


# ---- who belongs together


def put(policy: WholeBatches, *sources: EngineRequest) -> list[Sequence]:
    made: list[Sequence] = []
    for source in sources:
        for sequence in make_sequences(source, len(made), 1, ACCOUNT):
            policy.put(sequence)
            made.append(sequence)
    return made


def admitted(policy: WholeBatches) -> list[int]:
    """Whom the next plan admits, where there is room for all."""
    found = []
    for sequence in policy.candidates():
        policy.remove(sequence)
        sequence.status = SequenceStatus.RUNNING
        found.append(sequence.request_id)
    return found


def batches(policy: WholeBatches, made: list[Sequence]) -> list[list[int]]:
    """All of them, one after the other."""
    found = []
    while len(policy):
        found.append(admitted(policy))
        assert admitted(policy) == [] and not policy.is_over
        for sequence in made:
            if sequence.status is SequenceStatus.RUNNING:
                sequence.status = SequenceStatus.FINISHED
        assert policy.is_over
    return found


def test_a_batch_has_b_requests_at_most() -> None:
    policy = WholeBatches(3, 64)
    assert batches(policy, put(policy, *(request(i) for i in range(1, 8)))) == [[1, 2, 3], [4, 5, 6], [7]]


def test_the_longest_prompt_and_the_longest_answer_fit_the_context_together() -> None:
    """2040 of 2048: requests of 1000 + 1040 make a batch; with one of 1001 + 10 they would take 2041."""
    policy = WholeBatches(8, 2048)
    sources = [(1000, 10), (10, 1040), (1000, 1040), (1001, 10), (1, 1), (2000, 48), (3, 3)]
    made = put(policy, *(request(i, num_prompt=p, max_tokens=m) for i, (p, m) in enumerate(sources)))
    assert batches(policy, made) == [[0, 1, 2], [3, 4], [5], [6]]


def test_requests_for_other_numbers_of_answers_wait_for_a_batch_of_their_own() -> None:
    policy = WholeBatches(5, 64)
    made = put(policy, request(1), request(2), request(3, n=2), request(4, n=2), request(5, n=2), request(6, n=9))
    assert batches(policy, made) == [[1, 2], [3, 3, 4, 4], [5, 5], [6] * 9]


def test_who_ends_before_it_was_let_in_holds_nobody_up() -> None:
    policy = WholeBatches(3, 64)
    made = put(policy, *(request(i) for i in range(1, 5)))
    places = policy.candidates()
    assert next(places) is made[0]
    policy.remove(made[0])
    made[0].status = SequenceStatus.RUNNING
    policy.remove(made[1])  # aborted
    assert next(places) is made[2]
    policy.remove(made[2])
    made[2].status = SequenceStatus.RUNNING
    assert next(places, None) is None and list(policy) == [made[3]] and not policy.is_over


# ---- ends in the middle


def test_an_aborted_request_is_answered_no_more() -> None:
    core = start(max_num_batched_tokens=64)
    sources = [request(i, max_tokens=3 * i) for i in (1, 2, 3)]
    for source in sources:
        core.add(source)
    for _ in range(5):
        assert core.step(0.0) == []
    core.abort(1)  # which has ended, untold
    deltas = drain(core)
    assert {d.request_id for d in deltas} == {2, 3}


@pytest.mark.parametrize("depth", [1, 2])
def test_when_the_last_is_aborted_the_others_are_answered_before_the_next_batch_runs(depth: int) -> None:
    core = start(batch=2, max_num_batched_tokens=64, depth=depth)
    sources = [request(1, max_tokens=2), request(2, max_tokens=30), request(3, max_tokens=30)]
    for source in sources:
        core.add(source)
    for _ in range(6):
        assert core.step(0.0) == []
    core.abort(2)
    assert core.has_work
    deltas = core.step(0.0)
    assert tokens_of(deltas) == expected_tokens(sources[0]) and {d.request_id for d in deltas} == {1}
    assert tokens_of(drain(core), 3) == expected_tokens(sources[2])


def test_of_several_answers_one_may_be_given_up() -> None:
    core = start(batch=2, max_num_batched_tokens=64)
    source = request(1, max_tokens=6, n=2)
    core.add(source)
    core.step(0.0)
    core.abort(1, 0)
    deltas = drain(core)
    assert tokens_of(deltas, 1, 1) == expected_tokens(source, 1) and not tokens_of(deltas, 1, 0)
