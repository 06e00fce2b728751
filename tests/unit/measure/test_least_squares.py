from __future__ import annotations

import itertools

import numpy as np
import pytest

from octavo.measure.least_squares import nnls


def by_subsets(a: np.ndarray, b: np.ndarray) -> float:
    """The least residual over all choices of columns whose solution has nothing below 0: slow and obvious."""
    best = float(np.linalg.norm(b))
    columns = range(a.shape[1])
    for count in range(1, a.shape[1] + 1):
        for chosen in itertools.combinations(columns, count):
            part = a[:, chosen]
            x = np.linalg.lstsq(part, b, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.linalg.norm(part @ x - b)))
    return best


@pytest.mark.parametrize("seed", range(20))
def test_nothing_that_is_nowhere_below_zero_is_nearer(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((12, 5)), rng.standard_normal(12)
    x = nnls(a, b)
    assert (x >= 0).all()
    assert np.linalg.norm(a @ x - b) == pytest.approx(by_subsets(a, b), rel=1e-9)


def test_units_of_columns_do_not_matter() -> None:
    rng = np.random.default_rng(1)
    a, units = rng.random((40, 4)), np.array([1e-9, 1.0, 1e6, 1e-3])
    truth = np.array([2.0, 0.0, 3.0, 0.5])
    assert nnls(a * units, a @ truth) * units == pytest.approx(truth, abs=1e-9)


def test_a_column_of_zeros_gets_nothing() -> None:
    assert nnls([[1.0, 0.0], [2.0, 0.0]], [2.0, 4.0]).tolist() == [2.0, 0.0]


def test_columns_that_say_the_same_share_it() -> None:
    x = nnls([[1.0, 1.0], [2.0, 2.0]], [3.0, 6.0])
    assert x.sum() == pytest.approx(3.0)


def test_shapes_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 1\) and a target of \(3,\)"):
        nnls([[1.0], [2.0]], [1.0, 2.0, 3.0])
