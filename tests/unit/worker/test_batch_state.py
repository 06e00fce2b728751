from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.step import RowSetup
from octavo.messages import SamplingParams
from octavo.worker.batch_state import BatchState
from octavo.worker.sampler import sample_batch

EVERYTHING = SamplingParams(
    temperature=0.5,
    top_k=(1 << 63) - 1,
    top_p=0.5,
    min_p=0.25,
    repetition_penalty=1.5,
    presence_penalty=1.0,
    frequency_penalty=-1.0,
    logprobs=3,
    prompt_logprobs=2,
    min_tokens=5,
    max_tokens=9,
    stop_token_ids=(8,),
    logit_bias={4: 1.5, 6: -2.0},
)
FIELDS = SamplingParams()


def setup(row: int, tokens: list[int], sampling: SamplingParams = FIELDS, **changes: Any) -> RowSetup:
    settings: dict[str, Any] = {"num_prompt_tokens": len(tokens), "num_computed_tokens": 0, "seed": 1}
    return RowSetup(row=row, token_ids=tokens, sampling=sampling, **{**settings, "sequence_index": 0, **changes})


def row_arrays(state: BatchState, row: int) -> dict[str, Any]:
    found = {name: value for name, value in vars(state).items() if isinstance(value, np.ndarray)}
    arrays = {name: value[row].tolist() for name, value in found.items() if name != "tokens"}
    return {**arrays, "tokens": state.tokens[row, : state.num_tokens[row]].tolist()}


def test_a_reused_row_remembers_nothing() -> None:
    used, fresh = BatchState(2, 32), BatchState(2, 32)
    used.set_up(setup(1, [1, 2, 3], EVERYTHING, seed=-9, sequence_index=4, eos_token_ids=(2,)))
    used.append(np.array([1], np.int32), np.array([7], np.int32))
    used.num_computed[1] = 4
    used.release(1)
    for state in (used, fresh):
        state.set_up(setup(1, [5, 6], SamplingParams(temperature=0.0)))
    assert row_arrays(used, 1) == row_arrays(fresh, 1)
    assert used.bias == used.stop_ids == {}


def test_a_row_set_up_again_without_a_release_remembers_nothing() -> None:
    state = BatchState(1, 32)
    state.set_up(setup(0, [1, 2, 3], EVERYTHING, eos_token_ids=(2,)))
    state.set_up(setup(0, [5]))
    assert state.bias == state.stop_ids == {}
    assert not state.has_penalties[0]
    assert state.num_logprobs[0] == state.num_prompt_logprobs[0] == -1


def test_release_takes_a_row_out_of_every_later_batch() -> None:
    state = BatchState(2, 32)
    state.set_up(setup(0, [1, 2], EVERYTHING, eos_token_ids=(2,)))
    state.set_up(setup(1, [3]))
    state.release(0)
    batch = sample_batch(state, np.array([1], np.int32))
    assert batch.history.size == batch.bias_ids.size == batch.banned_ids.size == 0


def test_rows_become_columns_in_batch_order() -> None:
    state = BatchState(3, 32)
    state.set_up(setup(2, [1, 2, 3], EVERYTHING, seed=-9, sequence_index=4, eos_token_ids=(2,), num_prompt_tokens=2))
    state.set_up(setup(0, [9]))
    batch = sample_batch(state, np.array([0, 2], np.int32))
    assert batch.temperature.tolist() == [1.0, 0.5]
    assert batch.top_k.tolist() == [0, (1 << 31) - 1]
    assert batch.seed.tolist() == [1, -9]
    assert batch.sequence_index.tolist() == [0, 4]
    assert batch.position.tolist() == [1, 3]
    assert batch.num_logprobs.tolist() == [-1, 3]
    assert (batch.history_start.tolist(), batch.history.tolist()) == ([0, 0, 3], [1, 2, 3])
    assert batch.num_prompt.tolist() == [1, 2]
    assert (batch.bias_start.tolist(), batch.bias_ids.tolist()) == ([0, 0, 2], [4, 6])
    assert batch.bias_values.tolist() == [1.5, -2.0]
    assert (batch.banned_start.tolist(), batch.banned_ids.tolist()) == ([0, 0, 2], [2, 8])


@pytest.mark.parametrize(("ignore_eos", "banned"), [(False, [2, 8]), (True, [8])])
def test_stop_tokens_are_banned_until_min_tokens(ignore_eos: bool, banned: list[int]) -> None:
    sampling = SamplingParams(min_tokens=2, max_tokens=9, stop_token_ids=(8,), ignore_eos=ignore_eos)
    state = BatchState(1, 32)
    state.set_up(setup(0, [1, 1, 1], sampling, eos_token_ids=(2,)))
    rows, seen = np.array([0], np.int32), []
    for _ in range(4):
        seen.append(sample_batch(state, rows).banned_ids.tolist())
        state.append(rows, np.array([5], np.int32))
    assert seen == [banned, banned, [], []]


def test_after_a_preemption_the_answer_counts_as_generated() -> None:
    sampling = SamplingParams(min_tokens=2, max_tokens=9, stop_token_ids=(8,))
    state = BatchState(1, 32)
    state.set_up(setup(0, [1, 1, 5, 5], sampling, num_prompt_tokens=2))
    assert sample_batch(state, np.array([0], np.int32)).banned_ids.tolist() == []


def test_only_the_first_sequence_of_a_request_scores_the_prompt() -> None:
    state = BatchState(2, 32)
    for row in (0, 1):
        state.set_up(setup(row, [1, 2], SamplingParams(prompt_logprobs=2), sequence_index=row))
    assert state.num_prompt_logprobs.tolist() == [2, -1]


def test_a_finished_row_at_the_end_of_the_context_has_room_for_a_wasted_token() -> None:
    state = BatchState(1, 4)
    state.set_up(setup(0, [1, 2, 3]))
    for token in (4, 5, 6):
        state.append(np.array([0], np.int32), np.array([token], np.int32))
    assert state.tokens[0].tolist() == [1, 2, 3, 4, 5, 6]
