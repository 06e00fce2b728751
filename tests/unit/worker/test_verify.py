"""Drafts in the worker: what is sampled, what counts, and where the row stands afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.step import StepPlan
from octavo.messages import SamplingParams
from octavo.worker.batch_state import BatchState
from octavo.worker.model_runner import ModelRunner
from octavo.worker.verify import Drafts
from support.small_worker import VOCAB, Worker, admit, blocks_of

PROMPT = [3, 1, 4, 1, 5]
WISHES = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=20),
    "sampled": SamplingParams(temperature=1.0, max_tokens=20, logprobs=2),
    "penalised": SamplingParams(temperature=0.7, repetition_penalty=1.4, frequency_penalty=0.5, max_tokens=20),
    "banned": SamplingParams(temperature=1.0, min_tokens=6, stop_token_ids=(1, 2, 3, 4, 5, 6, 7), max_tokens=20),
}


class Told:
    """Guesses what it is told, by row."""

    def __init__(self, state: BatchState, guesses: dict[int, list[int]]) -> None:
        self.state = state
        self.guesses = guesses
        self.forgotten: list[int] = []

    def propose(self, rows: Any, most: Any) -> Any:
        counts = np.zeros(len(rows), np.int32)
        for i, row in enumerate(rows.tolist()):
            guess = self.guesses.get(row, [])[: most[i]]
            length = self.state.num_tokens[row]
            self.state.tokens[row, length : length + len(guess)] = guess
            counts[i] = len(guess)
        return counts

    def forget(self, row: int) -> None:
        self.forgotten.append(row)


def guessing_worker(guesses: dict[int, list[int]]) -> tuple[Worker, Told]:
    worker = Worker()
    told = Told(worker.state, guesses)
    worker.runner = ModelRunner(
        worker.backend, worker.runner._program, worker.kv, worker.state, worker.tier, drafter=told
    )
    return worker, told


def begin(worker: Worker, sampling: SamplingParams, rows: tuple[int, ...] = (0,)) -> Any:
    return worker.run(
        {row: len(PROMPT) for row in rows},
        list(rows),
        setups=[admit(row, PROMPT, sampling) for row in rows],
        table_growth=[entry for row in rows for entry in blocks_of(row)],
    )


def answer_alone(sampling: SamplingParams, count: int) -> tuple[list[int], list[Any]]:
    """Token by token."""
    worker = Worker()
    results = [begin(worker, sampling)] + [worker.run({0: 1}, [0]) for _ in range(count - 1)]
    return [r.token_ids[0] for r in results], [None if r.logprobs is None else r.logprobs[0] for r in results]


@pytest.mark.parametrize("wish", WISHES)
@pytest.mark.parametrize("good", range(5))
def test_as_many_tokens_as_were_guessed_right_and_one_more(wish: str, good: int) -> None:
    sampling = WISHES[wish]
    tokens, logprobs = answer_alone(sampling, 8)
    guess = [*tokens[1 : 1 + good], *((t + 1) % VOCAB for t in tokens[1 + good : 5])]
    worker, _ = guessing_worker({0: guess})
    begin(worker, sampling)
    result = worker.run({0: 1}, [0], num_drafts=[4])
    [found] = result.drafted
    assert (found.row, found.num_drafts) == (0, 4)
    assert [*result.token_ids, *found.token_ids] == tokens[1 : 2 + good]
    if sampling.logprobs is not None:
        assert [*result.logprobs, *(found.logprobs or [])] == logprobs[1 : 2 + good]
    assert worker.state.num_tokens[0] == len(PROMPT) + 2 + good
    assert worker.state.num_computed[0] == len(PROMPT) + 1 + good
    rest = [worker.run({0: 1}, [0]).token_ids[0] for _ in range(6 - good)]
    assert rest == tokens[2 + good : 8], "what rejected drafts wrote is never read"
    assert 0 <= result.draft_s <= result.forward_s


def test_rows_with_and_without_drafts_in_one_step() -> None:
    sampling = WISHES["sampled"]
    worker, _ = guessing_worker({})
    begin(worker, sampling, (0, 1, 2))
    expected = [worker.run({0: 1, 1: 1, 2: 1}, [0, 1, 2]).token_ids for _ in range(3)]
    worker, told = guessing_worker({})
    begin(worker, sampling, (0, 1, 2))
    told.guesses[1] = [expected[0][1], expected[1][1], 0]
    result = worker.run({0: 1, 1: 1, 2: 1}, [0, 1, 2], num_drafts=[0, 2, 3])
    assert result.token_ids == expected[0] and [found.row for found in result.drafted] == [1]
    assert result.drafted[0].token_ids == [expected[1][1], expected[2][1]]


def test_without_a_guess_or_a_drafter_a_step_is_as_always() -> None:
    tokens, _ = answer_alone(WISHES["greedy"], 2)
    for worker in (guessing_worker({})[0], Worker()):
        begin(worker, WISHES["greedy"])
        result = worker.run({0: 1}, [0], num_drafts=[3])
        assert result.token_ids == tokens[1:] and result.drafted == []


def test_beams_beside_drafts() -> None:
    sampling = WISHES["greedy"]
    tokens, _ = answer_alone(sampling, 4)
    worker, _ = guessing_worker({0: tokens[1:3]})
    setups = [admit(0, PROMPT, sampling), admit(1, PROMPT, sampling, num_candidates=3)]
    growth = blocks_of(0) + blocks_of(1)
    first = worker.run({0: 5, 1: 5}, [0, 1], setups=setups, table_growth=growth)
    beam = first.logprobs[1].top[0][0]
    result = worker.run({0: 1, 1: 1}, [0, 1], num_drafts=[2, 0], row_tokens=[(1, beam)])
    assert [result.token_ids[0], *result.drafted[0].token_ids] == tokens[1:4]
    assert len(result.logprobs[1].top) == 3
    assert worker.state.num_tokens[1] == len(PROMPT) + 1, "the core chooses for a beam"


def test_released_rows_are_forgotten() -> None:
    worker, told = guessing_worker({})
    begin(worker, WISHES["greedy"])
    worker.run({}, [], released_rows=[0])
    assert told.forgotten == [0]


@pytest.mark.parametrize(
    ("sampled", "kept"),
    [([7, 8, 9], [7, 8, 9]), ([7, 8, -1], [7, 8]), ([7, -1, 9], [7]), ([-1, 8, 9], []), ([6, 8, 9], [6])],
)
def test_a_token_without_a_number_ends_what_counts(sampled: list[int], kept: list[int]) -> None:
    state = BatchState(1, 16)
    state.set_up(admit(0, PROMPT))
    state.tokens[0, 5:7] = [7, 8]
    state.num_computed[0] = 7
    ones = np.array([2], np.int32)
    firsts, _, [found] = Drafts(ones, np.zeros(1, np.int32), ones).settle(state, sampled, None)
    assert firsts == sampled[:1] and found.token_ids == kept[1:]
    assert state.tokens[0, 5 : 5 + len(kept)].tolist() == kept and state.num_tokens[0] == 5 + len(kept)
    assert not kept or state.num_computed[0] == state.num_tokens[0] - 1


def test_a_plan_without_drafts_says_so() -> None:
    assert StepPlan(1, [], [], [], [], [], []).num_drafts == []
