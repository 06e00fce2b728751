"""ModelRunner: rows that come, are computed, sampled and go."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.messages import SamplingParams
from octavo.worker.failures import NOT_FINITE
from support.small_worker import VOCAB, Worker, admit, blocks_of


def test_a_row_released_and_taken_in_one_plan_is_the_new_ones() -> None:
    worker = Worker()
    odd = SamplingParams(temperature=0.0, logit_bias={7: 50.0})
    worker.run({0: 1}, [0], setups=[admit(0, [1], odd)], table_growth=blocks_of(0))
    again = worker.run({0: 2}, [0], setups=[admit(0, [2, 3])], table_growth=blocks_of(0), released_rows=[0])
    fresh = Worker().run({0: 2}, [0], setups=[admit(0, [2, 3])], table_growth=blocks_of(0))
    assert again.token_ids == fresh.token_ids != [7]


def test_a_plan_without_rows_still_works() -> None:
    worker = Worker()
    result = worker.run({}, [], erases=[3], released_rows=[1])
    assert (result.step_id, result.token_ids, result.logprobs) == (1, [], None)
    assert [note[0] for note in worker.notes] == ["erase"]


def test_a_decoding_row_reads_the_token_it_was_given_last() -> None:
    worker, whole = Worker(), Worker()
    first = worker.run({0: 3}, [0], setups=[admit(0, [1, 2, 3])], table_growth=blocks_of(0)).token_ids
    second = worker.run({0: 1}, [0]).token_ids
    setups = [admit(0, [1, 2, 3, *first], num_prompt=3)]
    assert whole.run({0: 4}, [0], setups=setups, table_growth=blocks_of(0)).token_ids == second


def test_results_are_in_the_order_of_sample_rows_whatever_the_batch() -> None:
    prompts = {0: [1], 1: [2, 3, 4, 5, 6], 2: [7, 8], 3: [9, 9, 9]}
    alone = {}
    for row, tokens in prompts.items():
        setups = [admit(row, tokens)]
        alone[row] = Worker().run({row: len(tokens)}, [row], setups=setups, table_growth=blocks_of(row)).token_ids[0]
    worker = Worker()
    setups = [admit(row, tokens) for row, tokens in prompts.items()]
    growth = [entry for row in prompts for entry in blocks_of(row)]
    counts = {2: 2, 1: 4, 0: 1, 3: 3}  # row 1 is a chunk: one token is left
    result = worker.run(counts, [2, 0, 3], setups=setups, table_growth=growth)
    assert result.token_ids == [alone[2], alone[0], alone[3]]
    assert worker.run({1: 1, 0: 1}, [1]).token_ids == [alone[1]]


def test_rows_that_fail_fail_alone() -> None:
    table = np.random.default_rng(1).standard_normal((VOCAB, 16)).astype(np.float32)
    table[13] = np.nan
    worker = Worker(table)
    good = Worker().run({1: 2}, [1], setups=[admit(1, [4, 5])], table_growth=blocks_of(1)).token_ids
    result = worker.run(
        {0: 2, 1: 2},
        [0, 1],
        setups=[admit(0, [13, 1], SamplingParams(temperature=0.0, logprobs=1)), admit(1, [4, 5])],
        table_growth=blocks_of(0) + blocks_of(1),
    )
    assert result.token_ids == [-1, *good]
    assert result.row_errors == [(0, NOT_FINITE)]
    assert result.logprobs == [None, None]
    assert worker.state.num_tokens[:2].tolist() == [2, 3]


def test_logprobs_come_for_rows_that_asked() -> None:
    worker = Worker()
    asked = SamplingParams(temperature=0.0, logprobs=2)
    result = worker.run(
        {0: 1, 1: 1}, [0, 1], setups=[admit(0, [3]), admit(1, [4], asked)], table_growth=blocks_of(0) + blocks_of(1)
    )
    nothing, found = result.logprobs
    assert nothing is None
    assert (found.token_id, found.rank, len(found.top)) == (result.token_ids[1], 1, 2)
    assert found.top[0] == (found.token_id, found.logprob)


@pytest.mark.parametrize("sizes", [[9], [1] * 9, [4, 5], [8, 1], [2, 3, 4]])
def test_prompt_logprobs_do_not_depend_on_the_chunks(sizes: list[int]) -> None:
    prompt = [3, 1, 4, 1, 5, 9, 2, 6, 5]
    asked = SamplingParams(temperature=0.0, prompt_logprobs=3)

    def positions(sizes: list[int], *, beside: bool) -> list[Any]:
        worker, found = Worker(), []
        setups = [admit(2, prompt, asked)] + ([admit(0, [8] * 20)] if beside else [])
        growth = blocks_of(2) + blocks_of(0)
        for i, size in enumerate(sizes):
            rows = {0: 2, 2: size} if beside else {2: size}
            last = [2] if i == len(sizes) - 1 else []
            first = {"setups": setups, "table_growth": growth} if i == 0 else {}
            for entry in worker.run(rows, last, **first).prompt_logprobs or []:
                assert entry.row == 2
                assert entry.start == 1 + len(found), "positions in order, none skipped"
                found += entry.positions
        return found

    whole = positions([9], beside=False)
    assert [entry.token_id for entry in whole] == prompt[1:]
    assert all(len(entry.top) == 3 for entry in whole)
    assert positions(sizes, beside=False) == whole
    assert positions(sizes, beside=True) == whole


def test_a_prompt_recomputed_with_its_answer_scores_the_prompt_only() -> None:
    asked = SamplingParams(temperature=0.0, prompt_logprobs=0)
    result = Worker().run({0: 5}, [0], setups=[admit(0, [1, 2, 3, 4, 5], asked, 3)], table_growth=blocks_of(0))
    (entry,) = result.prompt_logprobs
    assert (entry.start, [p.token_id for p in entry.positions]) == (1, [2, 3])
