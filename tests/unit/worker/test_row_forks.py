"""ModelRunner: rows that begin as twins of others, and rows sampled from another's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.step import RowFork
from octavo.messages import SamplingParams
from octavo.worker.batch_state import BatchState
from support.small_worker import Worker, admit, blocks_of

PROMPT = [3, 1, 4, 1, 5]
WARM = SamplingParams(
    temperature=1.5,
    repetition_penalty=1.2,
    presence_penalty=0.5,
    frequency_penalty=0.5,
    min_tokens=6,
    max_tokens=9,
    stop_token_ids=(7, 8),
    logit_bias={2: 3.0, 11: -4.0},
    logprobs=2,
)
EVERYTHING = SamplingParams(
    temperature=0.5, top_k=9, top_p=0.5, min_p=0.25, repetition_penalty=1.5, presence_penalty=1.0,
    frequency_penalty=-1.0, logprobs=3, prompt_logprobs=2, min_tokens=5, max_tokens=9, stop_token_ids=(8,),
    logit_bias={4: 1.5},
)  # fmt: skip


def seen(state: BatchState, row: int) -> dict[str, Any]:
    """Everything a state remembers about a row, whatever it is called."""
    found: dict[str, Any] = {}
    for name, value in vars(state).items():
        if name == "tokens":
            found[name] = state.tokens[row, : state.num_tokens[row]].tolist()
        elif isinstance(value, np.ndarray):
            found[name] = value[row].item()
        elif isinstance(value, dict):
            found[name] = value.get(row)
    return found


def test_a_twin_has_all_but_the_index() -> None:
    state = BatchState(3, 32)
    state.set_up(admit(0, PROMPT, EVERYTHING, 3, seed=-5, num_candidates=4, eos_token_ids=(2,)))
    state.num_computed[0] = 4
    state.set_up(admit(2, [9] * 20, WARM))
    state.fork(RowFork(0, 2, 6))
    # Its prompt is scored once, by the first sequence.
    assert seen(state, 2) == {**seen(state, 0), "sequence_index": 6, "num_prompt_logprobs": -1}
    assert len(seen(state, 0)) == 23


def test_a_twin_of_a_plain_row_keeps_nothing_of_who_was_there_before() -> None:
    state = BatchState(2, 32)
    state.set_up(admit(0, PROMPT))
    state.set_up(admit(1, PROMPT, EVERYTHING, num_candidates=3))
    state.fork(RowFork(0, 1, 1))
    assert seen(state, 1) == {**seen(state, 0), "sequence_index": 1}


def test_twins_go_separate_ways() -> None:
    state = BatchState(2, 32)
    state.set_up(admit(0, PROMPT, EVERYTHING))
    state.fork(RowFork(0, 1, 1))
    before = seen(state, 0)
    state.append(np.array([1], np.int32), np.array([7], np.int32))
    state.release(1)
    assert seen(state, 0) == before


def test_a_row_without_a_sequence_has_no_twin() -> None:
    state = BatchState(2, 32)
    with pytest.raises(ValueError, match="row 1 is forked from row 0, which holds no sequence"):
        state.fork(RowFork(0, 1, 1))
    state.set_up(admit(0, PROMPT))
    state.release(0)
    with pytest.raises(ValueError, match="holds no sequence"):
        state.fork(RowFork(0, 1, 1))


def growth(row: int) -> list[tuple[int, int, int, int]]:
    return blocks_of(row, group=0) + blocks_of(row, group=1)


def separately(index: int, steps: int) -> tuple[list[int], list[Any]]:
    """Tokens and logprobs of one child that was never forked."""
    worker = Worker(num_groups=2)
    setup = admit(0, PROMPT, WARM, seed=77, sequence_index=index)
    results = [worker.run({0: 5}, [0], setups=[setup], table_growth=growth(0))]
    results += [worker.run({0: 1}, [0]) for _ in range(steps)]
    return [r.token_ids[0] for r in results], [r.logprobs[0] for r in results]


@pytest.mark.parametrize("chunks", [[5], [2, 3], [4, 1]])
def test_children_of_one_prompt_answer_as_if_alone(chunks: list[int]) -> None:
    """Three children are sampled from the logits of the row that finishes the prompt, beside a stranger."""
    worker = Worker(num_groups=2)
    setups, tables = [admit(2, PROMPT, WARM, seed=77)], growth(2)
    for chunk in chunks[:-1]:
        worker.run({2: chunk}, [], setups=setups, table_growth=tables)
        setups, tables = [], []
    setups = [*setups, admit(3, [6] * 9)]
    forks = [RowFork(2, 0, 1), RowFork(2, 1, 2)]
    # Entries of this very plan are written after its forks, so they name every row that shares them.
    tables = [(group, row, column, block) for group, _, column, block in tables for row in (2, 0, 1)]
    first = worker.run(
        {2: chunks[-1], 3: 4},  # the stranger is not done
        [2, 0, 1],
        setups=setups,
        table_growth=[*tables, *growth(3)],
        forks=forks,
        sample_sources=[2, 2, 2],
    )
    assert worker.state.num_computed.tolist() == [5, 5, 5, 4]
    assert worker.state.num_tokens.tolist() == [6, 6, 6, 9]
    # From here on each writes into blocks of its own, after copies of the one that the prompt leaves midway.
    block_tables = worker.kv.block_tables
    assert (block_tables[:, :2] == block_tables[:, 2:3]).all()
    copies, entries = [], []
    for row in (0, 1):
        for group in range(2):
            own = blocks_of(row, group=group)
            copies.append((int(block_tables[group, 2, 1]), own[1][3]))
            entries += own[1:]
    second = worker.run({2: 1, 0: 1, 1: 1}, [2, 0, 1], copies=copies, table_growth=entries)
    later = [worker.run({2: 1, 0: 1, 1: 1}, [2, 0, 1]) for _ in range(4)]
    results = [first, second, *later]
    for place, index in ((0, 0), (1, 1), (2, 2)):
        tokens, logprobs = separately(index, 5)
        assert [r.token_ids[place] for r in results] == tokens
        assert [r.logprobs[place] for r in results] == logprobs
    assert len({tuple(r.token_ids[place] for r in results) for place in range(3)}) == 3


def test_only_children_may_be_sampled() -> None:
    """The row that finished the prompt need not be sampled itself."""
    worker, alone = Worker(), Worker()
    tokens = alone.run({0: 5}, [0], setups=[admit(0, PROMPT)], table_growth=blocks_of(0)).token_ids
    result = worker.run(
        {0: 5, 3: 2},
        [1, 2, 3],
        setups=[admit(0, PROMPT), admit(3, [8, 8])],
        table_growth=blocks_of(0) + blocks_of(3),
        forks=[RowFork(0, 1, 1), RowFork(0, 2, 2)],
        sample_sources=[0, 0, 3],
    )
    assert result.token_ids[:2] == tokens * 2
    assert worker.state.num_tokens.tolist() == [5, 6, 6, 3]


def test_a_fork_of_a_fork_in_one_plan() -> None:
    worker = Worker(num_groups=2)
    worker.run({0: 4}, [], setups=[admit(0, PROMPT, WARM, seed=77)], table_growth=growth(0))
    worker.run({}, [], erases=[60], forks=[RowFork(0, 2, 1), RowFork(2, 1, 2)])
    assert seen(worker.state, 1) == {**seen(worker.state, 0), "sequence_index": 2}
    assert (worker.kv.block_tables[:, 1] == worker.kv.block_tables[:, 0]).all()
    assert worker.kv.block_tables[1, 1, 0] == blocks_of(0, group=1)[0][3]


def test_a_twin_takes_a_row_that_the_same_plan_released() -> None:
    """Two beams die, and one of those left goes on in their rows."""
    worker = Worker(num_groups=2)
    for row in range(3):
        worker.run({row: 5}, [row], setups=[admit(row, [row] * 5, EVERYTHING)], table_growth=growth(row))
    worker.run({}, [], released_rows=[0, 2], forks=[RowFork(1, 2, 4), RowFork(2, 0, 5)])
    expected = seen(worker.state, 1)
    assert seen(worker.state, 2) == {**expected, "sequence_index": 4, "num_prompt_logprobs": -1}
    assert seen(worker.state, 0) == {**expected, "sequence_index": 5, "num_prompt_logprobs": -1}
    assert (worker.kv.block_tables[:, :3] == worker.kv.block_tables[:, 1:2]).all()


def test_table_entries_of_a_plan_come_after_its_forks() -> None:
    worker = Worker()
    worker.run({}, [], setups=[admit(0, PROMPT)], table_growth=blocks_of(0), erases=[60])
    worker.run({}, [], forks=[RowFork(0, 1, 1)], table_growth=[(0, 1, 1, 50), (0, 0, 2, 51)], erases=[60])
    assert worker.kv.block_tables[0, 1, :3].tolist() == [1, 50, 3]
    assert worker.kv.block_tables[0, 0, :3].tolist() == [1, 2, 51]
