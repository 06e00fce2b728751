"""Sketches: what a head in groups is asked greedily, once it has learned from rows, is the largest of all products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from greedy_head import GreedyHead
from grouped import FORMATS

from octavo import _native

Array = np.ndarray[Any, Any]

NAMES = ["int8_zero", "int8_zero_float", "int8_minimum", "int8_minimum_float", "int8_g16"]
PATHS = _native.supported_paths()
LEARNS, MADE = 64, 32
"""Rows that a sketch learns from, and steps in which it is made."""


class Head(GreedyHead):
    """Of codes of 8 bits."""

    def __init__(
        self,
        x: Array,
        codes: Array,
        scales: Array,
        minimums: Array | None,
        isa: str,
        name: str = "int8_zero",
        *,
        threads: int = 2,
    ) -> None:
        def pack(arena: _native.Arena, pool: _native.ThreadPool) -> _native.Matrix:
            head = _native.Matrix(arena, *codes.shape, FORMATS[name].native(), isa)
            head.pack_groups(codes, scales, minimums, 0, pool)
            return head

        super().__init__(x, isa, threads, pack)

    def teach(self, rows: range) -> None:
        """Ask for the rows, over and over, until the sketch is made."""
        for i in range(LEARNS + MADE):
            row = rows[i % len(rows)]
            self.greedy(range(row, row + 1))
            assert i >= LEARNS or self.screen.num_found == 0

    def check(self, rows: range) -> int:
        """Compare the tokens of each row, and of rows by two; the number of steps that the sketch answered."""
        before = self.screen.num_found
        for count in (1, 2):
            for first in range(rows.start, rows.stop - count + 1, count):
                some = range(first, first + count)
                assert self.greedy(some) == self.expected(some), some
        return self.screen.num_found - before


def rounded(weight: Array, name: str) -> tuple[Array, Array, Array | None]:
    """A weight as codes, scales and minimums of a format of 8 bits."""
    form, (n, k) = FORMATS[name], weight.shape
    groups = -(-k // form.group)
    padded = np.zeros((n, groups * form.group))
    padded[:, :k] = weight
    padded = padded.reshape(n, groups, form.group)
    held = np.float16 if form.half_scales else np.float32
    minimums = None
    if form.minimum:
        minimums = padded.min(2).astype(held)
        scales = ((padded.max(2) - minimums) / 255).astype(held)
        codes = (padded - minimums[..., None]) / np.where(scales > 0, scales, 1)[..., None]
    else:
        most = min(form.zero, 255 - form.zero)
        scales = (np.abs(padded).max(2) / most).astype(held)
        codes = padded / np.where(scales > 0, scales, 1)[..., None] + form.zero
    whole = np.clip(np.round(codes), 0, 255).astype(np.uint8).reshape(n, -1)[:, :k]
    return (
        np.ascontiguousarray(whole),
        scales.astype(np.float32),
        None if minimums is None else minimums.astype(np.float32),
    )


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def like_a_models(n: int, k: int, rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Rows in few directions mostly, and a head whose rows have much in common; each row has a likely column."""
    rng = np.random.default_rng([seed, n, k])
    few = rng.standard_normal((6, k))
    weight = rng.standard_normal((n, k)) + 1.5 * rng.standard_normal(k)
    x = rng.standard_normal((rows, 6)) @ few + 0.3 * rng.standard_normal((rows, k))
    return x + 0.5 * weight[rng.integers(0, n, rows)], weight


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 16), (31, 17), (33, 100), (500, 128), (1030, 150), (3000, 576)], ids=str)
def test_the_largest_of_all(isa: str, name: str, shape: tuple[int, int]) -> None:
    x, weight = like_a_models(*shape, 80)
    head = Head(x, *rounded(weight, name), isa, name)
    head.teach(range(60))
    assert head.check(range(80)) > 60


@pytest.mark.parametrize("isa", PATHS)
def test_what_it_learned_is_no_matter_of_right_and_wrong(isa: str) -> None:
    """Taught by rows in other directions, or by nothing, it finds less, and nothing else."""
    x, weight = like_a_models(2000, 192, 40)
    other = numbers(10, 192, seed=9)
    for teachers in (other, np.zeros((10, 192)), np.full((10, 192), np.nan), np.full((10, 192), 3e38)):
        head = Head(np.concatenate([x, teachers]), *rounded(weight, "int8_zero"), isa)
        head.teach(range(40, 50))
        head.check(range(40))


@pytest.mark.parametrize("isa", PATHS)
def test_it_learns_again(isa: str) -> None:
    """When it finds little, from rows of now, and then finds most."""
    x, weight = like_a_models(2000, 192, 400)
    head = Head(np.concatenate([x, np.eye(192)[:60]]), *rounded(weight, "int8_zero"), isa)
    head.teach(range(400, 460))
    before = head.check(range(30))
    for turn in range(20):
        for row in range(400):
            head.greedy(range(row, row + 1))
        if turn > 1 and head.check(range(30)) > max(before, 40):
            return
    raise AssertionError("it finds no more than before")


@pytest.mark.parametrize("isa", PATHS)
def test_numbers_of_all_sizes(isa: str) -> None:
    rng = np.random.default_rng(5)
    weight = rng.standard_t(2, (1500, 192)) * np.exp(rng.standard_normal((1500, 1)))
    x = rng.standard_t(1.5, (100, 192)) * np.exp(2 * rng.standard_normal(192))
    head = Head(x, *rounded(weight, "int8_zero_float"), isa, "int8_zero_float")
    head.teach(range(64))
    assert head.check(range(100)) > 50


@pytest.mark.parametrize("isa", PATHS)
def test_the_first_of_equals(isa: str) -> None:
    few = numbers(40, 64)
    head = Head(numbers(80, 64, seed=1), *rounded(np.concatenate([few, few[::-1], few]), "int8_zero"), isa)
    head.teach(range(64))
    head.check(range(80))
    assert all(head.greedy(range(row, row + 1))[0] < 40 for row in range(80))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-18, 1e-12, 1e12, 1e18, 1e30, 3e38])
def test_tiny_and_huge_rows(isa: str, size: float) -> None:
    x, weight = like_a_models(300, 64, 70)
    tiny = (numbers(6, 64, seed=1) * size).clip(-3.4e38, 3.4e38)
    head = Head(np.concatenate([x, tiny]), *rounded(weight, "int8_zero"), isa)
    head.teach(range(70))
    head.check(range(66, 76))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_fails_alone(isa: str, bad: float) -> None:
    """And the sketch, which has seen it, goes on."""
    x, weight = like_a_models(2000, 128, 80)
    x[7, 17] = bad
    head = Head(x, *rounded(weight, "int8_zero"), isa)
    head.teach(range(64))
    assert head.greedy(range(7, 8)) == [-1]
    assert head.greedy(range(6, 8)) == [*head.expected(range(6, 7)), -1]
    for _ in range(4):  # while it is not asked
        head.greedy(range(8, 9))
    assert head.check(range(8, 80)) > 60


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
def test_a_head_that_is_not_finite_or_too_large(isa: str, bad: float) -> None:
    x, weight = like_a_models(300, 64, 64)
    codes, scales, _ = rounded(weight, "int8_zero_float")
    scales[250, 1] = bad
    head = Head(x, codes, scales, None, isa, "int8_zero_float")
    head.teach(range(64))
    assert head.check(range(64)) == 0


@pytest.mark.parametrize("threads", [1, 3, 12])
def test_any_number_of_threads(threads: int) -> None:
    x, weight = like_a_models(3000, 576, 80)
    head = Head(x, *rounded(weight, "int8_zero"), PATHS[0], threads=threads)
    head.teach(range(64))
    assert head.check(range(80)) > 100


def test_a_step_of_three_is_not_asked() -> None:
    x, weight = like_a_models(1000, 128, 64)
    head = Head(x, *rounded(weight, "int8_zero"), PATHS[0])
    head.teach(range(64))
    assert head.greedy(range(1, 4)) == head.expected(range(1, 4))
    assert head.screen.num_found == 0


@pytest.mark.parametrize("isa", PATHS)
def test_a_step_that_wants_no_token_is_none_to_learn_from(isa: str) -> None:
    x, weight = like_a_models(2000, 128, 80)
    head = Head(x, *rounded(weight, "int8_zero"), isa)
    for row in range(40):
        assert head.greedy(range(row, row + 1), wanted=False) == []
    head.teach(range(64))
    assert head.greedy(range(5), wanted=False) == []
    assert head.check(range(80)) > 60


# --- what decides is what rounding took ------------------------------------------------------------------------------


def axes(k: int) -> Array:
    """Rows that teach nothing but the axes of the directions; with a head whose rows add up to nothing, H only turns
    signs, and `rest` is the rows from `1 + num_directions` on."""
    count = 31 if k >= 128 else k // 4 - 1
    return np.eye(k)[1 : 1 + count]


def decided(winner: Array, rival: Array, x: Array, isa: str) -> None:
    """The winner's product with x is larger by a little, though its rounded row has the smaller one. Rows are integers
    up to 127, with a scale each."""
    k = len(x)
    assert winner @ x > 0
    codes, scales = np.zeros((960, k)), np.ones((960, -(-k // 32)))
    codes[800], codes[3] = winner, rival  # far apart
    codes[4], codes[500] = -winner, -rival  # so that all add up to nothing
    scales[3] = scales[500] = (winner @ x) / (rival @ x) * 0.999
    teachers = axes(k)
    whole = (codes + 128).round().astype(np.uint8)
    head = Head(np.concatenate([teachers, x[None]]), whole, scales.astype(np.float32), None, isa, "int8_zero_float")
    asked = range(len(teachers), len(teachers) + 1)
    assert head.expected(asked) == [800]
    head.teach(range(len(teachers)))
    for _ in range(9):  # it is not asked for some steps, if the axes gave it too much to do
        assert head.greedy(asked) == [800]
    assert head.screen.num_found > 0


def codes_along(x: Array) -> Array:
    """Integers up to 127, which rounding takes nothing from, in about the direction of x."""
    return np.round(x / np.abs(x).max() * 127)


def along_what_is_lost(winner: Array, kept: Array) -> Array:
    """A row whose product with what was kept of the winner is half of that with what was not."""
    lost = winner - kept
    return codes_along(lost + (0.5 * lost @ lost - kept @ lost) / (kept @ kept) * kept)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("seed", range(8))
def test_what_4_bits_took_from_the_head_decides(isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    winner = np.zeros(128)
    winner[32:64] = rng.integers(-100, 101, 32)
    winner[40] = -104
    x = along_what_is_lost(winner, 13 * np.clip(np.round(winner / 13), -8, 7))  # the largest is -8 steps
    decided(winner, x, x, isa)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("seed", range(8))
def test_what_8_bits_took_from_the_directions_decides(isa: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    winner = np.zeros(128)
    winner[1:32] = rng.integers(-90, 91, 31)
    winner[5] = 90
    x = along_what_is_lost(winner, np.round(winner / (90 / 127)) * (90 / 127))
    decided(winner, x, x, isa)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("seed", range(8))
def test_what_8_bits_took_from_the_row_decides(isa: str, seed: int) -> None:
    """The head's groups begin at 0 and 32, those of the rest at 16: small numbers come beside a large one."""
    x, winner, rival = np.zeros(64), np.zeros(64), np.zeros(64)
    x[16:32] = np.random.default_rng(seed).uniform(-3.9, 3.9, 16)
    x[16] = -3.9
    x[32] = 1016
    x[:32] = np.round(x[:32] / (3.9 / 127)) * (3.9 / 127)
    winner[16:32] = 15 * np.clip(np.round(x[16:32] / 3.9 * 8), -8, 7)  # of which 4 bits take nothing
    rival[32] = 1
    decided(winner, rival, x, isa)


# --- its size --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("isa", PATHS)
def test_it_says_its_size(isa: str) -> None:
    head = _native.Matrix(_native.Arena(), 49152, 576, FORMATS["int8_zero"].native(), isa)
    assert 0.6 < _native.Screen.bytes_for(head) / (49152 * 576) < 0.66


def test_which_heads_have_one() -> None:
    def head(name: str, k: int) -> _native.Matrix:
        return _native.Matrix(_native.Arena(), 64, k, FORMATS[name].native(), PATHS[0])

    assert _native.Screen.fits(head("int8_zero", 16))
    for name, k in (("int8_zero", 15), ("int4_zero", 64)):
        assert not _native.Screen.fits(head(name, k))
        with pytest.raises(ValueError, match="head: is in groups of 4 bits, or"):
            _native.Screen(head(name, k), _native.Arena(), _native.ThreadPool(1))
