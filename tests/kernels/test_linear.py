"""linear, packing and embedding on every path this CPU has, against float64 and against themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dense import DTYPES, PATHS, ROWS, SHAPES, Weight, check_rows_alone, poisoned

from octavo import _native

PATH_AND_DTYPE = [(isa, dtype) for isa in PATHS for dtype in DTYPES]


@pytest.fixture(scope="module")
def pools() -> list[Any]:
    return [_native.ThreadPool(n) for n in (1, 2, 3)]


def activations(count: int, k: int, seed: int = 1) -> Any:
    return np.random.default_rng([seed, count, k]).standard_normal((count, k), np.float32)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_matches_float64(isa: str, dtype: str, shape: tuple[int, int], pools: list[Any]) -> None:
    n, k = shape
    weight = Weight(n, k, isa, dtype)
    bias = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    # Rounding errors of k products of size about 1, summed one after another.
    tolerance = 1e-6 * k**0.5 * max(1.0, k**0.5 / 4)
    for count in ROWS if n * k < 10000 else (1, 7, 70):
        x = activations(count, k)
        for b in (None, bias):
            actual = weight.linear(x, pools[1], b)
            np.testing.assert_allclose(actual, weight.expect(x, b), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bits_of_a_row_depend_on_the_row_alone(isa: str, dtype: str, shape: tuple[int, int], pools: list[Any]) -> None:
    n, k = shape
    weight, bias = Weight(n, k, isa, dtype), np.random.default_rng(3).standard_normal(n).astype(np.float32)
    x = activations(512, k)
    check_rows_alone(weight, x, bias, pools, ROWS)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
def test_bits_do_not_depend_on_the_chunks_of_rows_of_a_wide_matrix(isa: str, dtype: str, pools: list[Any]) -> None:
    """K so large that one tile takes only a few rows: the blocks of rows fall differently for every M."""
    weight, x = Weight(50, 24000, isa, dtype), activations(67, 24000)
    whole = weight.linear(x, pools[1])
    np.testing.assert_allclose(whole[::9], weight.expect(x[::9]), rtol=0, atol=5e-3)
    for count in (1, 5, 8, 9, 21):
        assert np.array_equal(weight.linear(x[:count], pools[2]), whole[:count])


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
def test_every_weight_reaches_its_place(isa: str, dtype: str, pools: list[Any]) -> None:
    """Unit vectors read the weight back exactly, column by column."""
    weight = Weight(101, 67, isa, dtype)
    assert np.array_equal(weight.linear(np.eye(67, dtype=np.float32), pools[1]), weight.seen.T)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
def test_a_nan_or_an_infinity_stays_in_its_row(isa: str, dtype: str, pools: list[Any]) -> None:
    weight, x = Weight(100, 65, isa, dtype), activations(12, 65)
    clean = weight.linear(x, pools[1])
    x[3, 64], x[7, 0] = np.nan, np.inf
    broken = weight.linear(x, pools[1])
    assert np.isnan(broken[3]).all() and not np.isfinite(broken[7]).any()
    others = [0, 1, 2, 4, 5, 6, 8, 9, 10, 11]
    assert np.array_equal(broken[others], clean[others])


def test_only_avx512_rounds_activations(pools: list[Any]) -> None:
    """1 + 2^-9 is no bfloat16: rounded to even it is 1."""
    x = np.full((1, 1), 1 + 2**-9, np.float32)
    for isa in PATHS:
        for dtype in DTYPES:
            weight = _native.Matrix(
                _native.Arena(),
                1,
                1,
                _native.WeightFormat.bfloat16() if dtype == "bfloat16" else _native.WeightFormat.float32(),
                isa,
            )
            one = np.ones((1, 1), np.float32)
            weight.pack(one if dtype == "float32" else np.array([[0x3F80]], np.uint16), 0, pools[0])
            out = np.empty((1, 1), np.float32)
            _native.linear(x, weight, [], out, pools[0])
            assert out[0, 0] == (1.0 if (isa, dtype) == ("avx512", "bfloat16") else 1 + 2**-9)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_packing_in_parts_is_packing_whole(isa: str, dtype: str, shape: tuple[int, int]) -> None:
    n, k = shape
    whole = _native.packed(Weight(n, k, isa, dtype).matrix)
    for first in {1, n // 3, n // 2, n - 1} - {0, n}:
        assert _native.packed(Weight(n, k, isa, dtype, parts=(first, n - first)).matrix) == whole
    if n > 4:
        assert _native.packed(Weight(n, k, isa, dtype, parts=(1, 0, 2, n - 3)).matrix) == whole


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
def test_packing_a_part_leaves_the_others(isa: str, dtype: str, pools: list[Any]) -> None:
    weight = Weight(100, 9, isa, dtype)
    weight.matrix.pack(weight.stored[40:53], 70, pools[1])
    changed = weight.seen.copy()
    changed[70:83] = weight.seen[40:53]
    assert np.array_equal(weight.linear(np.eye(9, dtype=np.float32), pools[1]), changed.T)


@pytest.mark.parametrize(("isa", "dtype"), PATH_AND_DTYPE)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_embedding_reads_back_the_rows(isa: str, dtype: str, shape: tuple[int, int], pools: list[Any]) -> None:
    n, k = shape
    weight = Weight(n, k, isa, dtype)
    ids = np.random.default_rng(5).integers(0, n, 40).astype(np.int32)
    ids[:2] = 0, n - 1
    out = np.full((42, k), 12345.0, np.float32)
    _native.embedding(weight.matrix, ids, out[1:-1], pools[1])
    assert np.array_equal(out[1:-1], weight.seen[ids])
    assert (out[[0, -1]] == 12345.0).all()


def test_no_rows_is_no_work(pools: list[Any]) -> None:
    for isa in PATHS:
        weight = Weight(3, 4, isa, "bfloat16")
        assert weight.linear(np.empty((0, 4), np.float32), pools[1]).shape == (0, 3)


@pytest.mark.parametrize(
    ("n", "k"), [(0, 1), (1, 0), (-1, 5), (1 << 31, 1), (1, 1 << 31), ((1 << 31) - 1, (1 << 31) - 1)]
)
def test_impossible_shapes_are_refused(n: int, k: int) -> None:
    with pytest.raises(ValueError, match=r"^shape: "):
        _native.Matrix(_native.Arena(), n, k, _native.WeightFormat.bfloat16(), "portable")


def test_bad_parts_are_refused_and_nothing_is_packed(pools: list[Any]) -> None:
    matrix = _native.Matrix(_native.Arena(), 10, 4, _native.WeightFormat.float32(), "portable")
    for count, first in [(11, 0), (1, 10), (2, 9), (1, -1), (1, 1 << 62)]:
        with pytest.raises(ValueError, match=r"^first_row: "):
            matrix.pack(np.ones((count, 4), np.float32), first, pools[0])
    with pytest.raises(ValueError, match="must have 4 columns"):
        matrix.pack(np.ones((1, 5), np.float32), 0, pools[0])
    with pytest.raises(ValueError, match="must be float32"):
        matrix.pack(np.ones((1, 4), np.uint16), 0, pools[0])
    with pytest.raises(ValueError, match="bfloat16 bits"):
        _native.Matrix(_native.Arena(), 10, 4, _native.WeightFormat.bfloat16(), "portable").pack(
            np.ones((1, 4), np.float32), 0, pools[0]
        )
    assert not any(_native.packed(matrix))


def test_matrices_of_one_arena_do_not_overlap(pools: list[Any]) -> None:
    """And live as long as they are used, however large they are and whatever becomes of the arena."""
    arena = _native.Arena()
    sizes = [(3, 5), (1, 1), (40, 1000), (5000, 4000), (7, 9)]
    matrices = [_native.Matrix(arena, n, k, _native.WeightFormat.float32(), PATHS[0]) for n, k in sizes]
    for i, (n, k) in enumerate(sizes):
        matrices[i].pack(np.full((n, k), i + 1, np.float32), 0, pools[1])
    del arena
    for i, (n, k) in enumerate(sizes):
        x, out = poisoned(np.ones((1, k))), np.empty((1, n), np.float32)
        _native.linear(x, matrices[i], [], out, pools[1])
        assert (out == (i + 1) * k).all()
