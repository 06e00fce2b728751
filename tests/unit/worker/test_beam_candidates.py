"""Beams: the candidates they report, and how they go on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.step import RowFork
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.worker.batch_state import BatchState
from octavo.worker.beam_candidates import beam_candidates
from octavo.worker.failures import NOT_FINITE
from octavo.worker.sampler import sample_batch
from support.small_worker import VOCAB, Worker, admit, blocks_of

PLAIN = SamplingParams(temperature=0.0, max_tokens=9)


def candidates(logits: Any, sampling: SamplingParams, count: int, tokens: list[int], num_prompt: int = 1) -> Any:
    state = BatchState(1, 64)
    state.set_up(admit(0, tokens, sampling, num_prompt, eos_token_ids=(2,)))
    row = np.array([0], np.int32)
    return beam_candidates(np.array([logits], np.float32), sample_batch(state, row), [count])[0]


@given(st.lists(st.floats(-30, 30, width=32), min_size=3, max_size=40), st.integers(1, 50))
def test_candidates_are_the_largest_of_the_log_softmax(logits: list[float], count: int) -> None:
    exact = np.array(logits)
    exact = exact - exact.max()
    exact -= np.log(np.exp(exact).sum())
    found = candidates(logits, PLAIN, count, [0])
    assert len(found.top) == min(count, len(logits))
    assert np.allclose([score for _, score in found.top], np.sort(exact)[::-1][:count], atol=1e-5, rtol=1e-6)
    assert [exact[token] for token, _ in found.top] == pytest.approx([s for _, s in found.top], abs=1e-5)
    assert (found.token_id, found.logprob, found.rank) == (*found.top[0], 1)
    assert len({token for token, _ in found.top}) == len(found.top)


def test_equals_come_in_order_of_id() -> None:
    found = candidates([1.0, 3.0, 1.0, 3.0, 1.0, 1.0], PLAIN, 4, [0])
    assert [token for token, _ in found.top] == [1, 3, 0, 2]


def test_scores_are_log_probabilities_in_float32() -> None:
    found = candidates([0.1, 0.2, 0.3], PLAIN, 3, [0])
    assert all(score == float(np.float32(score)) for _, score in found.top)


def test_processors_work_on_log_probabilities_as_in_transformers() -> None:
    """All are negative there, so a repetition penalty multiplies; nothing is normalised again."""
    logits = np.array([2.0, 1.0, 0.5, -1.0, 3.0], np.float32)
    log_probs = logits - np.log(np.exp(logits.astype(np.float64)).sum())
    sampling = SamplingParams(
        repetition_penalty=1.5, presence_penalty=0.25, frequency_penalty=0.5, logit_bias={3: 2.5}, min_tokens=9,
        max_tokens=9,
    )  # fmt: skip
    found = candidates(logits, sampling, 9, [0, 1, 1], num_prompt=1)
    expected = log_probs.copy()
    expected[[0, 1]] *= 1.5  # stand in the prompt or the answer
    expected[1] -= 0.25 + 2 * 0.5  # stands twice in the answer
    expected[3] += 2.5
    assert [token for token, _ in found.top] == [4, 3, 0, 1], "2 ends the answer, too early"
    assert [score for _, score in found.top] == pytest.approx([expected[t] for t in (4, 3, 0, 1)], abs=1e-6)


def test_nothing_allowed_or_not_a_number_gives_no_candidates() -> None:
    banned = SamplingParams(min_tokens=2, max_tokens=9, stop_token_ids=(0, 1))
    assert candidates([1.0, 2.0, 3.0], banned, 2, [0]) is None
    for bad in (np.nan, np.inf):
        assert candidates([1.0, bad, 3.0], PLAIN, 2, [0]) is None
    assert candidates([-np.inf, -np.inf], PLAIN, 2, [0]) is None


def beam(row: int, tokens: list[int], count: int, sampling: SamplingParams = PLAIN, **more: Any) -> Any:
    return admit(row, tokens, sampling, num_candidates=count, **more)


def test_a_beam_reports_and_appends_nothing() -> None:
    worker, alone = Worker(), Worker()
    setup = {"setups": [beam(0, [1, 2, 3], 6)], "table_growth": blocks_of(0)}
    result = worker.run({0: 3}, [0], **setup)
    likeliest = alone.run({0: 3}, [0], setups=[admit(0, [1, 2, 3])], table_growth=blocks_of(0)).token_ids
    (found,) = result.logprobs
    assert result.token_ids == [found.token_id] == likeliest
    assert len(found.top) == 6
    assert worker.state.num_tokens[0] == worker.state.num_computed[0] == 3
    assert result.row_errors is None


def test_logprobs_that_were_asked_for_widen_the_choice() -> None:
    worker = Worker()
    result = worker.run(
        {0: 1, 1: 1},
        [0, 1],
        setups=[beam(0, [1], 4, SamplingParams(logprobs=7)), beam(1, [1], 4, SamplingParams(logprobs=2))],
        table_growth=blocks_of(0) + blocks_of(1),
    )
    assert [len(entry.top) for entry in result.logprobs] == [7, 4]


def test_the_chosen_token_is_computed_next() -> None:
    """A choice that is not the likeliest, on the row itself and on its twin."""
    worker = Worker()
    worker.run({0: 3}, [0], setups=[beam(0, [1, 2, 3], 4)], table_growth=blocks_of(0))
    twin = [(0, 1, column, block) for _, _, column, block in blocks_of(1)]
    result = worker.run(
        {0: 1, 1: 1},
        [0, 1],
        forks=[RowFork(0, 1, 1)],
        row_tokens=[(0, 9), (1, 14)],
        table_growth=twin,
        copies=[(blocks_of(0)[0][3], twin[0][3])],
    )
    for place, token in ((0, 9), (1, 14)):
        whole = [beam(0, [1, 2, 3, token], 4, num_prompt=3)]
        expected = Worker().run({0: 4}, [0], setups=whole, table_growth=blocks_of(0)).logprobs[0]
        assert result.logprobs[place].top == expected.top
    assert worker.state.num_tokens[:2].tolist() == [4, 4]


def test_rows_beside_beams_are_served_as_ever() -> None:
    asked = SamplingParams(temperature=0.0, logprobs=2)
    prompts = {0: [1, 2], 1: [3, 4], 2: [5, 6], 3: [7, 8]}
    plain = [admit(1, prompts[1]), admit(3, prompts[3], asked)]
    growth = [entry for row in prompts for entry in blocks_of(row)]
    alone = Worker().run({1: 2, 3: 2}, [1, 3], setups=plain, table_growth=growth)
    worker = Worker()
    setups = [beam(0, prompts[0], 3), beam(2, prompts[2], 5), *plain]
    result = worker.run(dict.fromkeys(prompts, 2), [0, 1, 2, 3], setups=setups, table_growth=growth)
    assert [result.token_ids[1], result.token_ids[3]] == alone.token_ids
    assert [result.logprobs[1], result.logprobs[3]] == alone.logprobs
    assert [len(result.logprobs[i].top) for i in (0, 2)] == [3, 5]
    assert worker.state.num_tokens.tolist() == [2, 3, 2, 3]
    # A step without beams, while beams wait, is an ordinary one.
    assert worker.run({1: 1}, [1]).logprobs is None


def test_a_beam_that_fails_fails_alone() -> None:
    table = np.random.default_rng(1).standard_normal((VOCAB, 16)).astype(np.float32)
    table[13] = np.nan
    worker = Worker(table)
    result = worker.run(
        {0: 1, 1: 1},
        [0, 1],
        setups=[beam(0, [13], 4), beam(1, [4], 4)],
        table_growth=blocks_of(0) + blocks_of(1),
    )
    assert result.token_ids[0] == -1
    assert result.row_errors == [(0, NOT_FINITE)]
    assert result.logprobs[0] is None
    assert isinstance(result.logprobs[1], TokenLogprobs)


def test_a_released_beam_leaves_no_beam_behind() -> None:
    worker = Worker()
    worker.run({0: 1}, [0], setups=[beam(0, [1], 4)], table_growth=blocks_of(0))
    result = worker.run({0: 1}, [0], released_rows=[0], setups=[admit(0, [1])], table_growth=blocks_of(0))
    assert result.logprobs is None
    assert worker.state.num_tokens[0] == 2
