"""The greedy step: what the screen finds is the largest of all products, on every path and whatever the numbers are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from greedy_head import GreedyHead
from paged import to_bfloat16

from octavo import _native

Array = np.ndarray[Any, Any]

WAYS = [(isa, dtype) for isa in _native.supported_paths() for dtype in ("float32", "bfloat16")]
# (vocabulary, width): panels are 16 or 48 columns, stretches that are rotated 1 to 64 long, codes in quads.
SHAPES = [(1, 1), (47, 7), (48, 64), (500, 96), (97, 130), (1000, 33), (2000, 576), (770, 1024)]


class Head(GreedyHead):
    """Of float32 or bfloat16."""

    def __init__(self, x: Array, head: Array, isa: str, dtype: str, *, threads: int = 2) -> None:
        def pack(arena: _native.Arena, pool: _native.ThreadPool) -> _native.Matrix:
            matrix = _native.Matrix(arena, *head.shape, getattr(_native.WeightFormat, dtype)(), isa)
            stored = to_bfloat16(head) if dtype == "bfloat16" else np.ascontiguousarray(head, np.float32)
            matrix.pack(stored, 0, pool)
            return matrix

        super().__init__(x, isa, threads, pack)

    def check(self, num_rows: int, *, at_once: tuple[int, ...] = (1, 2, 5, 9, 20)) -> None:
        expected = self.expected(range(num_rows))
        for count in {min(count, num_rows) for count in at_once}:
            for first in range(0, num_rows - count + 1, count):
                rows = range(first, first + count)
                assert self.greedy(rows) == expected[first : first + count], (rows, count)


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape, np.float32)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_largest_of_all(isa: str, dtype: str, shape: tuple[int, int]) -> None:
    head = Head(numbers(20, shape[1], seed=1), numbers(*shape), isa, dtype)
    assert head.screen.usable
    head.check(20)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_numbers_of_all_sizes(isa: str, dtype: str) -> None:
    """Outliers in columns, rows and single places, as real models have them."""
    rng = np.random.default_rng(5)
    weight = (rng.standard_t(2, (1500, 192)) * np.exp(rng.standard_normal((1500, 1)))).astype(np.float32)
    x = (rng.standard_t(1.5, (20, 192)) * np.exp(2 * rng.standard_normal(192))).astype(np.float32)
    Head(x, weight, isa, dtype).check(20)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_the_first_of_equals(isa: str, dtype: str) -> None:
    few = numbers(30, 64)
    weight = np.concatenate([few, few[::-1], few])  # every row three times
    head = Head(numbers(20, 64, seed=1), weight, isa, dtype)
    head.check(20)
    assert max(head.greedy(range(20))) < 30


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_the_last_bit_decides(isa: str, dtype: str) -> None:
    """Logits that differ by roundings only: what the screen knows of them is the same, and all must be computed."""
    rng = np.random.default_rng(7)
    weight = np.repeat(numbers(6, 128), 40, axis=0)
    weight *= 1 + rng.integers(-3, 4, weight.shape).astype(np.float32) * np.float32(
        2**-7 if dtype != "float32" else 2**-22
    )
    Head(numbers(20, 128, seed=1), weight, isa, dtype).check(20)


def rotation() -> Array:
    """What the screen does to rows of 64: Sylvester's Hadamard matrix, orthogonal and its own inverse."""
    matrix = np.ones((1, 1))
    while len(matrix) < 64:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / 8


def lost(x: Array) -> Array:
    """What rounding to 8 bits takes from a rotated row."""
    scale = np.abs(x).max() / 127
    return x - np.round(x / scale) * scale


def codes_along(x: Array) -> Array:
    """Integers up to 127, which rounding takes nothing from, in about the direction of x."""
    return np.round(x / np.abs(x).max() * 127)


def winner_and_rival(x: Array, winner: Array, rival: Array, isa: str) -> None:
    """All rotated. The winner's product with x is larger by a little, though that of the rounded numbers is smaller;
    of `rival` rounding takes nothing, nor does its product with x."""
    back = rotation()
    rest = rival * (-1000 - abs(winner @ x)) / (rival @ x)
    weight = np.tile((rest @ back).astype(np.float32), (480, 1))
    weight[400], weight[3] = winner @ back, rival @ back  # far apart
    rows = (x @ back).astype(np.float32)[None]
    logits = (rows.astype(np.float64) @ weight.T)[0]
    assert np.argsort(logits)[-2:].tolist() == [3, 400]
    assert Head(rows, weight, isa, "float32").greedy(range(1)) == [400]


@pytest.mark.parametrize("isa", _native.supported_paths())
@pytest.mark.parametrize("seed", range(8))
def test_what_rounding_took_from_the_head_decides(isa: str, seed: int) -> None:
    winner = np.random.default_rng(seed).standard_normal(64)
    x = codes_along(lost(winner))
    winner_and_rival(x, winner, x * (winner @ x - 0.3 * lost(winner) @ x) / (x @ x), isa)


@pytest.mark.parametrize("isa", _native.supported_paths())
@pytest.mark.parametrize("seed", range(8))
def test_what_rounding_took_from_the_row_decides(isa: str, seed: int) -> None:
    x = np.random.default_rng(seed).standard_normal(64)
    winner, rival = codes_along(lost(x)), np.zeros(64)
    largest = np.abs(x).argmax()  # of which rounding takes nothing
    rival[largest] = (winner @ x - 0.3 * winner @ lost(x)) / x[largest]
    winner_and_rival(x, winner, rival, isa)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_a_row_of_zeros_takes_the_first(isa: str, dtype: str) -> None:
    head = Head(np.zeros((3, 48), np.float32), numbers(200, 48), isa, dtype)
    assert head.greedy(range(3)) == [0, 0, 0]


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-18, 1e-12, 1e12, 1e18, 1e30, 3e38])
def test_tiny_and_huge_rows(isa: str, dtype: str, size: float) -> None:
    x = (numbers(4, 48, seed=1).astype(np.float64) * size).clip(-3.4e38, 3.4e38)
    Head(x.astype(np.float32), numbers(300, 48), isa, dtype).check(4)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_alone(isa: str, dtype: str, bad: float) -> None:
    x = numbers(5, 64, seed=1)
    x[2, 17] = bad
    head = Head(x, numbers(300, 64), isa, dtype)
    head.check(5, at_once=(1, 5))
    assert [token < 0 for token in head.greedy(range(5))] == [False, False, True, False, False]


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_no_screen_of_a_head_that_is_not_finite_or_too_large(isa: str, dtype: str, bad: float) -> None:
    weight = numbers(300, 64)
    weight[299, 63] = bad
    head = Head(numbers(5, 64, seed=1), weight, isa, dtype)
    assert not head.screen.usable
    head.check(5)


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads(threads: int) -> None:
    isa = _native.supported_paths()[0]
    Head(numbers(20, 576, seed=1), numbers(3000, 576), isa, "bfloat16", threads=threads).check(20)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_a_step_that_wants_no_token(isa: str, dtype: str) -> None:
    head = Head(numbers(20, 64, seed=1), numbers(500, 64), isa, dtype)
    assert head.greedy(range(7), wanted=False) == []
    head.check(20)


def test_a_screen_says_its_size() -> None:
    isa = _native.supported_paths()[0]
    matrix = _native.Matrix(_native.Arena(), 49152, 576, _native.WeightFormat.bfloat16(), isa)
    assert 1.0 < _native.Screen.bytes_for(matrix) / (49152 * 576) < 1.03


def test_a_screen_belongs_to_the_last_op() -> None:
    isa = _native.supported_paths()[0]
    head = Head(numbers(5, 64), numbers(64, 64), isa, "float32")
    other = Head(numbers(5, 64), numbers(64, 64), isa, "float32")
    with pytest.raises(ValueError, match="screen: is not of the head"):
        head.program.set_screen(other.screen)


@pytest.mark.parametrize(("isa", "dtype"), WAYS)
def test_logits_that_are_worked_on_are_not_screened(isa: str, dtype: str) -> None:
    """The cap makes the largest logits equal: the first of them is wanted, not where the product is largest."""
    rng = np.random.default_rng(0)
    x, head = 20 * rng.standard_normal((6, 64), np.float32), rng.standard_normal((500, 64), np.float32)
    screened = Head(x, head, isa, dtype)
    screened.program.soft_cap((screened.logits, 0, 500), 3.0)
    with pytest.raises(ValueError, match="screen: is not of the head"):
        screened.program.set_screen(screened.screen)
    expected = screened.expected(range(6))
    largest = Head(x, head, isa, dtype).expected(range(6))
    assert expected != largest
    assert screened.greedy(range(6)) == expected
