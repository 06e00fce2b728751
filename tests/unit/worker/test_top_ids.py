"""The likeliest tokens of a row of scores, against sorting all of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.worker.sampler import top_ids


@given(st.integers(1, 3000), st.integers(1, 50), st.integers(1, 200), st.booleans(), st.integers(0, 1 << 30))
def test_as_sorting_all_of_it(length: int, k: int, values: int, banned: bool, seed: int) -> None:
    """Few values, so many equals; more than half of the scores may be banned."""
    rng = np.random.default_rng(seed)
    row = rng.integers(0, values, length).astype(np.float32)
    if banned:
        row[rng.random(length) < 0.6] = -np.inf
    k = min(k, length)
    assert top_ids(row, k) == np.argsort(-row, kind="stable")[:k].tolist()


@pytest.mark.parametrize("length", [10, 64, 49_152, 49_153, 49_215])
def test_the_last_scores_of_a_long_row_count_too(length: int) -> None:
    row = np.arange(length, dtype=np.float64)
    assert top_ids(row, 3) == [length - 1, length - 2, length - 3]


def test_none_asked_for() -> None:
    assert top_ids(np.zeros(5, np.float32), 0) == []
