"""SteadyDecode does with less what the runner does the long way: same tokens, same state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.step import RowFork
from octavo.messages import SamplingParams
from octavo.worker.failures import NOT_FINITE
from support.small_worker import VOCAB, Worker, admit, blocks_of

WISHES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 1.0, "top_p": 0.9},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.7, "frequency_penalty": 0.5},
    "bias": {"temperature": 0.8, "logit_bias": {7: 4.0}},
    "bans": {"temperature": 0.0, "min_tokens": 5, "stop_token_ids": tuple(range(0, VOCAB, 2))},
    "logprobs": {"temperature": 0.0, "logprobs": 3},
}


def steps(worker: Worker, names: list[str]) -> list[Any]:
    """Rows of all kinds decode side by side; one is released, one taken anew, one forked."""
    wishes = [SamplingParams(max_tokens=30, **WISHES[name]) for name in names]
    prompts = {0: [1, 2, 3], 2: [4, 5], 3: [6]}
    setups = [admit(row, tokens, params) for (row, tokens), params in zip(prompts.items(), wishes, strict=True)]
    growth = [entry for row in (0, 2, 3) for entry in blocks_of(row)]
    results = [worker.run({0: 3, 2: 2, 3: 1}, [0, 2, 3], setups=setups, table_growth=growth)]
    results += [worker.run({0: 1, 2: 1, 3: 1}, [0, 2, 3]) for _ in range(4)]
    results.append(worker.run({0: 1, 3: 1}, [0, 3]))
    results.append(worker.run({0: 1, 2: 1, 3: 1}, [0, 2, 3]))
    again = [admit(2, [9], wishes[0])]  # the same rows, but row 2 is another sequence
    results.append(
        worker.run({0: 1, 2: 1, 3: 1}, [0, 2, 3], released_rows=[2], setups=again, table_growth=blocks_of(2))
    )
    results.append(worker.run({0: 1, 2: 1, 3: 1}, [0, 2, 3]))
    fork = {"forks": [RowFork(0, 1, 1)], "table_growth": blocks_of(1), "copies": list(zip(*_blocks(0, 1), strict=True))}
    results.append(worker.run({0: 1, 1: 1, 3: 1}, [0, 1, 3], **fork))
    results += [worker.run({0: 1, 1: 1, 3: 1}, [0, 1, 3]) for _ in range(3)]
    return [(result.token_ids, result.logprobs, result.row_errors) for result in results]


def _blocks(*rows: int) -> list[list[int]]:
    return [[block for *_, block in blocks_of(row)] for row in rows]


def long_way(worker: Worker) -> Worker:
    worker.runner._steady.takes = lambda plan: False  # type: ignore[method-assign]
    return worker


@pytest.mark.parametrize(
    "names",
    [
        ["greedy"] * 3,
        ["drawn", "greedy", "drawn"],
        ["bias", "greedy", "greedy"],
        ["greedy", "penalties", "drawn"],
        ["bias", "greedy", "bans"],
        ["logprobs"] * 3,
    ],
)
def test_the_same_as_the_long_way(names: list[str]) -> None:
    short, long = Worker(), long_way(Worker())
    assert steps(short, names) == steps(long, names)
    for name in ("num_tokens", "num_computed", "tokens"):
        assert np.array_equal(getattr(short.state, name), getattr(long.state, name)), name


def test_which_plans_are_taken() -> None:
    worker = Worker()
    taken: list[bool] = []
    takes = worker.runner._steady.takes
    worker.runner._steady.takes = lambda plan: taken.append(takes(plan)) or taken[-1]  # type: ignore[method-assign, func-returns-value]
    growth = blocks_of(0) + blocks_of(1)
    worker.run({0: 1, 1: 2}, [0, 1], setups=[admit(0, [1]), admit(1, [2, 3])], table_growth=growth)
    worker.run({0: 1, 1: 1}, [0, 1])
    worker.run({0: 1, 1: 1}, [1])
    worker.run({0: 1, 1: 1}, [0, 1], num_drafts=[1, 0])
    worker.run({0: 1}, [0, 2], forks=[RowFork(0, 2, 1)], sample_sources=[0, 0])
    worker.run({3: 1}, [3], setups=[admit(3, [5], num_candidates=2)], table_growth=blocks_of(3))
    assert taken == [False, True, False, False, False, False]


def test_a_row_that_fails_fails_alone() -> None:
    table = np.random.default_rng(1).standard_normal((VOCAB, 16)).astype(np.float32)
    table[13] = np.nan
    setups = [admit(0, [13]), admit(1, [4])]
    short = Worker(table)
    result = short.run({0: 1, 1: 1}, [0, 1], setups=setups, table_growth=blocks_of(0) + blocks_of(1))
    good = Worker().run({1: 1}, [1], setups=[admit(1, [4])], table_growth=blocks_of(1)).token_ids
    assert result.token_ids == [-1, *good]
    assert result.row_errors == [(0, NOT_FINITE)]
    assert short.state.num_tokens[:2].tolist() == [1, 2]
