"""rms_norm, silu_mul, add, select and rotary on every path this CPU has, against float64 and against themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dense import PATHS, Guarded, poisoned

from octavo import _native

WIDTHS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 576, 1000)
COUNTS = (1, 2, 3, 4, 5, 17, 64, 300)


@pytest.fixture(scope="module")
def pools() -> list[Any]:
    return [_native.ThreadPool(n) for n in (1, 2, 3)]


def values(count: int, width: int, seed: int = 1) -> Any:
    return np.random.default_rng([seed, count, width]).standard_normal((count, width), np.float32)


def rms_norm(x: Any, pool: Any, isa: str, weight: Any, eps: float = 1e-5) -> Any:
    out = Guarded(*x.shape)
    _native.rms_norm(poisoned(x), weight, eps, out.rows, pool, isa)
    return out.result()


def pairwise(op: Callable[..., None], x: Any, y: Any, pool: Any, isa: str) -> Any:
    out = Guarded(*x.shape)
    op(poisoned(x), poisoned(y), out.rows, pool, isa)
    return out.result()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_rms_norm_matches_float64(isa: str, width: int, pools: list[Any]) -> None:
    weight = np.random.default_rng(2).standard_normal(width).astype(np.float32)
    for scale, eps in [(1.0, 1e-5), (1e-3, 1e-5), (1e4, 1e-6), (0.0, 1e-5)]:
        x = values(20, width) * np.float32(scale)
        exact = x.astype(np.float64)
        expected = exact / np.sqrt(np.square(exact).mean(axis=1, keepdims=True) + eps) * weight
        actual = rms_norm(x, pools[1], isa, weight, eps)
        np.testing.assert_allclose(actual, expected, rtol=3e-6, atol=1e-30)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_matches_float64(isa: str, width: int, pools: list[Any]) -> None:
    gate, up = values(30, width) * 4, values(30, width, 2)
    exact = gate.astype(np.float64)
    expected = exact / (1 + np.exp(-exact)) * up
    np.testing.assert_allclose(pairwise(_native.silu_mul, gate, up, pools[1], isa), expected, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("isa", PATHS)
def test_silu_mul_far_from_zero(isa: str, pools: list[Any]) -> None:
    """Saturates without overflow: no NaN for any finite gate, x for large ones, almost nothing for very small ones."""
    gate = np.array([[-1e38, -1e4, -300.0, -88.0, -60.0, 60.0, 88.0, 300.0, 1e30, 0.0, -0.0]], np.float32)
    result = pairwise(_native.silu_mul, gate, np.ones_like(gate), pools[0], isa)[0]
    assert np.array_equal(result[5:9], gate[0, 5:9])
    assert (result[9:] == 0).all()
    assert np.isfinite(result).all() and (result[:5] <= 0).all()
    assert (np.abs(result[1:5]) < 1e-24).all()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_add_and_select_are_exact(isa: str, width: int, pools: list[Any]) -> None:
    x, y = values(90, width), values(90, width, 2)
    assert np.array_equal(pairwise(_native.add, x, y, pools[1], isa), x + y)
    in_place = Guarded(90, width)
    in_place.rows[:] = x
    _native.add(in_place.rows, poisoned(y), in_place.rows, pools[1], isa)
    assert np.array_equal(in_place.result(), x + y)
    rows = np.array([0, 3, 4, 50, 89], np.int32)
    out = Guarded(5, width)
    _native.select(poisoned(x), rows, out.rows, pools[1], isa)
    assert np.array_equal(out.result(), x[rows])


def tables(positions: int, inv_freq: Any, scale: float = 1.0) -> Any:
    angle = np.arange(positions)[:, None] * inv_freq
    return (np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * scale).astype(np.float32)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize(("head_dim", "rotated"), [(2, 2), (8, 8), (64, 64), (80, 80), (128, 128), (64, 16), (20, 6)])
@pytest.mark.parametrize("heads", [1, 3])
def test_rotary_matches_float64(isa: str, head_dim: int, rotated: int, heads: int, pools: list[Any]) -> None:
    """Partial rotation leaves the other dims of each head alone, bit by bit."""
    half = rotated // 2
    table = tables(500, 10000.0 ** -(np.arange(half) / half), scale=1.25)
    positions = np.array([0, 1, 2, 77, 499, 3, 498, 250], np.int32)
    x = values(8, heads * head_dim)
    out = Guarded(*x.shape)
    out.rows[:] = x
    _native.rotary(out.rows, positions, table, head_dim, pools[1], isa)
    expected = x.astype(np.float64).reshape(8, heads, head_dim)
    cosine, sine = (table[positions][:, None, part].astype(np.float64) for part in (slice(half), slice(half, None)))
    first, second = expected[..., :half].copy(), expected[..., half:rotated].copy()
    expected[..., :half] = first * cosine - second * sine
    expected[..., half:rotated] = second * cosine + first * sine
    actual = out.result().reshape(expected.shape)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-6)
    assert np.array_equal(actual[..., rotated:], x.reshape(expected.shape)[..., rotated:])


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_bits_of_a_row_depend_on_the_row_alone(isa: str, width: int, pools: list[Any]) -> None:
    """Whatever the number of rows, their order, and the threads: also across the size from which threads are used."""
    x, y = values(300, 2 * width), values(300, 2 * width, 2)
    weight = np.random.default_rng(2).standard_normal(2 * width).astype(np.float32)
    table, positions = tables(300, np.arange(1, width + 1) / 100), np.arange(300, dtype=np.int32)

    def all_ops(rows: Any, pool: Any) -> list[Any]:
        rotated = x[rows].copy()
        _native.rotary(rotated, positions[rows], table, 2 * width, pool, isa)
        return [
            rms_norm(x[rows], pool, isa, weight),
            pairwise(_native.silu_mul, x[rows], y[rows], pool, isa),
            pairwise(_native.add, x[rows], y[rows], pool, isa),
            rotated,
        ]

    whole = all_ops(positions, pools[0])
    subsets = [positions[:count] for count in COUNTS] + [np.random.default_rng(3).permutation(300), positions[100:103]]
    for i, rows in enumerate(subsets):
        for actual, expected in zip(all_ops(rows, pools[i % 3]), whole, strict=True):
            assert np.array_equal(actual, expected[rows])


@pytest.mark.parametrize("isa", PATHS)
def test_a_nan_stays_in_its_row(isa: str, pools: list[Any]) -> None:
    x, y, weight = values(12, 50), values(12, 50, 2), np.ones(50, np.float32)
    others = np.arange(12) != 5
    clean = [rms_norm(x, pools[1], isa, weight), pairwise(_native.silu_mul, x, y, pools[1], isa)]
    x[5, 49] = np.nan
    norm, silu = rms_norm(x, pools[1], isa, weight), pairwise(_native.silu_mul, x, y, pools[1], isa)
    assert np.isnan(norm[5]).all() and np.isnan(silu[5, 49]) and np.isfinite(silu[5, :49]).all()
    assert np.array_equal(norm[others], clean[0][others]) and np.array_equal(silu[others], clean[1][others])
