"""The ops that treat each row by itself, on every path this CPU has, against float64 and against themselves."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dense import PATHS, Guarded, poisoned

from octavo import _native

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
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


def layer_norm(x: Any, pool: Any, isa: str, weight: Any, bias: Any, eps: float = 1e-5) -> Any:
    out = Guarded(*x.shape)
    _native.layer_norm(poisoned(x), weight, bias, eps, out.rows, pool, isa)
    return out.result()


def pairwise(op: Callable[..., None], x: Any, y: Any, pool: Any, isa: str, *more: Any) -> Any:
    out = Guarded(*x.shape)
    op(poisoned(x), poisoned(y), out.rows, pool, isa, *more)
    return out.result()


def in_place(op: Callable[..., None], x: Any, pool: Any, isa: str, argument: Any) -> Any:
    out = Guarded(*x.shape)
    out.rows[:] = x
    op(out.rows, argument, pool, isa)
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
@pytest.mark.parametrize(("runs", "run"), [(2, 1), (3, 7), (4, 8), (5, 16), (2, 17), (3, 80), (8, 256)])
def test_rms_norm_of_runs_is_that_of_each_by_itself(isa: str, runs: int, run: int, pools: list[Any]) -> None:
    x = values(50, runs * run) * np.linspace(0.1, 9, runs * run, dtype=np.float32)
    weight = np.random.default_rng(2).standard_normal(run).astype(np.float32)
    expected = rms_norm(x.reshape(50 * runs, run), pools[0], isa, weight)
    assert np.array_equal(rms_norm(x, pools[1], isa, weight), expected.reshape(x.shape))
    with pytest.raises(ValueError, match="x must be a multiple of the weight wide"):
        rms_norm(x, pools[1], isa, np.ones(runs * run + 1, np.float32))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_layer_norm_matches_float64(isa: str, width: int, pools: list[Any]) -> None:
    weight, bias = np.random.default_rng(2).standard_normal((2, width)).astype(np.float32)
    for scale, offset, eps in [
        (1.0, 0.0, 1e-5),
        (1e-3, 0.0, 1e-5),
        (1e4, -3e4, 1e-6),
        (0.0, 7.0, 1e-5),
        (1.0, 1e3, 1e-5),
    ]:
        x = values(20, width) * np.float32(scale) + np.float32(offset)
        exact = x.astype(np.float64)
        centred = exact - exact.mean(axis=1, keepdims=True)
        expected = centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + eps) * weight
        # What float32 loses of x - mean, as a part of a standard deviation.
        slack = 4e-6 + 3e-7 * abs(offset) / np.sqrt(scale**2 + eps)
        for added in (bias, None):
            actual = layer_norm(x, pools[1], isa, weight, added, eps)
            error = np.abs(actual - (expected if added is None else expected + added))
            assert (error <= slack * (np.abs(weight) + np.abs(expected)) + 1e-7 * np.abs(bias)).all()


def activation_of(x: Any, kind: str) -> Any:
    """In float64, without cancellation."""
    exact = x.astype(np.float64)
    if kind == "relu":
        return np.maximum(exact, 0.0)
    if kind == "gelu":
        return exact * np.array([math.erfc(-v / math.sqrt(2.0)) / 2 for v in exact.flat]).reshape(exact.shape)
    u = exact if kind == "silu" else 2 * math.sqrt(2 / math.pi) * (exact + 0.044715 * exact**3)
    return exact / (1 + np.exp(np.minimum(-u, 700)))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_match_float64(isa: str, kind: str, pools: list[Any]) -> None:
    """Within a few roundings; far below 0 what the exponent's rounding is worth more."""
    x = np.concatenate([np.linspace(-14, 14, 20001), np.geomspace(1e-30, 1, 500), -np.geomspace(1e-30, 1, 500)])
    x = x.astype(np.float32)[None]
    actual, expected = in_place(_native.activation, x, pools[1], isa, kind), activation_of(x, kind)
    slack = 5e-7 * (1 + np.minimum(x, 0.0) ** 2) * (1 + np.abs(x) * (kind == "gelu_tanh"))
    assert (np.abs(actual - expected) <= slack * np.abs(expected) + 1e-36).all()
    up = values(1, x.shape[1])
    gated = pairwise(_native.gated, x, up, pools[1], isa, kind)
    assert np.array_equal(gated, actual * up)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activations_far_from_zero(isa: str, kind: str, pools: list[Any]) -> None:
    x = np.array([[-1e38, -1e4, -300.0, -88.0, 60.0, 88.0, 1e4, 1e38, np.inf, 0.0, -0.0, np.nan]], np.float32)
    y = in_place(_native.activation, x, pools[0], isa, kind)[0]
    assert np.array_equal(y[4:9], x[0, 4:9]) and (y[9:11] == 0).all() and np.isnan(y[11])
    assert (y[:4] <= 0).all() and np.isfinite(y[:4]).all() and (np.abs(y[1:4]) < 1e-24).all()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("cap", [0.5, 30.0, 50.0])
def test_soft_cap_matches_float64(isa: str, cap: float, pools: list[Any]) -> None:
    """It is odd, rises but for rounding, and ends at the cap exactly."""
    x = np.concatenate([np.geomspace(1e-30, 1e3, 5001), np.linspace(0, 20, 5001)]) * cap
    x = np.sort(x).astype(np.float32)[None]
    y = in_place(_native.soft_cap, x, pools[1], isa, cap)
    expected = cap * np.tanh(x.astype(np.float64) / cap)
    assert (np.abs(y - expected) <= 8e-7 * expected).all()
    assert np.array_equal(in_place(_native.soft_cap, -x, pools[1], isa, cap), -y)
    assert (np.diff(y[0]) >= -4e-7 * y[0, 1:]).all() and y.max() == np.float32(cap)
    ends = np.array([[np.inf, -np.inf, np.nan, 1e38, -1e38]], np.float32)
    y = in_place(_native.soft_cap, ends, pools[1], isa, cap)[0]
    assert np.array_equal(y, np.array([cap, -cap, np.nan, cap, -cap], np.float32), equal_nan=True)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_scale_and_sigmoid_gate_match_float64(isa: str, width: int, pools: list[Any]) -> None:
    x = values(90, width)
    assert np.array_equal(in_place(_native.scale, x, pools[1], isa, -0.3), x * np.float32(-0.3))
    gate = np.linspace(-30, 30, 90, dtype=np.float32)[:, None]
    expected = x / (1 + np.exp(-gate.astype(np.float64)))
    actual = in_place(_native.sigmoid_gate, x, pools[1], isa, poisoned(gate))
    np.testing.assert_allclose(actual, expected, rtol=5e-7, atol=0)
    gate[:4, 0] = np.nan, np.inf, -np.inf, -1e30
    actual = in_place(_native.sigmoid_gate, x, pools[1], isa, gate)
    assert np.isnan(actual[0]).all() and np.array_equal(actual[1], x[1]) and (np.abs(actual[2:4]) < 1e-36).all()
    np.testing.assert_allclose(actual[4:], expected[4:], rtol=5e-7, atol=0)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", WIDTHS)
def test_silu_mul_matches_float64(isa: str, width: int, pools: list[Any]) -> None:
    gate, up = values(30, width) * 4, values(30, width, 2)
    exact = gate.astype(np.float64)
    expected = exact / (1 + np.exp(-exact)) * up
    np.testing.assert_allclose(pairwise(_native.gated, gate, up, pools[1], isa), expected, rtol=2e-6, atol=1e-12)


@pytest.mark.parametrize("isa", PATHS)
def test_silu_mul_far_from_zero(isa: str, pools: list[Any]) -> None:
    """Saturates without overflow: no NaN for any finite gate, x for large ones, almost nothing for very small ones."""
    gate = np.array([[-1e38, -1e4, -300.0, -88.0, -60.0, 60.0, 88.0, 300.0, 1e30, 0.0, -0.0]], np.float32)
    result = pairwise(_native.gated, gate, np.ones_like(gate), pools[0], isa)[0]
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
            rms_norm(x[rows], pool, isa, weight[:width]),
            layer_norm(x[rows], pool, isa, weight, weight[::-1].copy()),
            layer_norm(x[rows], pool, isa, weight, None),
            *(pairwise(_native.gated, x[rows], y[rows], pool, isa, kind) for kind in ACTIVATIONS),
            *(in_place(_native.activation, x[rows], pool, isa, kind) for kind in ACTIVATIONS),
            in_place(_native.scale, x[rows], pool, isa, 0.3),
            in_place(_native.soft_cap, x[rows], pool, isa, 0.7),
            in_place(_native.sigmoid_gate, x[rows], pool, isa, y[rows, :1]),
            pairwise(_native.add, x[rows], y[rows], pool, isa),
            rotated,
        ]

    whole = all_ops(positions, pools[0])
    subsets = [positions[:count] for count in COUNTS] + [np.random.default_rng(3).permutation(300), positions[100:103]]
    for i, rows in enumerate(subsets):
        for actual, expected in zip(all_ops(rows, pools[i % 3]), whole, strict=True):
            assert np.array_equal(actual, expected[rows])


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("width", [8192, 8193, 20001])
def test_rows_as_long_as_logits_have_the_bits_of_short_ones(isa: str, width: int, pools: list[Any]) -> None:
    x, gate = values(3, width), values(3, 1, 2)
    for op, argument in [(_native.soft_cap, 0.7), (_native.scale, 0.3), (_native.activation, "gelu")]:
        short = in_place(op, x.reshape(-1, 3), pools[0], isa, argument).reshape(x.shape)
        assert np.array_equal(in_place(op, x, pools[2], isa, argument), short)
    apart = np.hstack(
        [in_place(_native.sigmoid_gate, x[:, i : i + 1000], pools[0], isa, gate) for i in range(0, width, 1000)]
    )
    assert np.array_equal(in_place(_native.sigmoid_gate, x, pools[2], isa, gate), apart)


@pytest.mark.parametrize("isa", PATHS)
def test_a_nan_stays_in_its_row(isa: str, pools: list[Any]) -> None:
    x, y, weight = values(12, 50), values(12, 50, 2), np.ones(50, np.float32)
    others = np.arange(12) != 5
    clean = [rms_norm(x, pools[1], isa, weight), pairwise(_native.gated, x, y, pools[1], isa)]
    x[5, 49] = np.nan
    norm, silu = rms_norm(x, pools[1], isa, weight), pairwise(_native.gated, x, y, pools[1], isa)
    assert np.isnan(norm[5]).all() and np.isnan(silu[5, 49]) and np.isfinite(silu[5, :49]).all()
    assert np.array_equal(norm[others], clean[0][others]) and np.array_equal(silu[others], clean[1][others])
    centred = layer_norm(x, pools[1], isa, weight, weight)
    assert np.isnan(centred[5]).all() and np.isfinite(centred[others]).all()
    runs = rms_norm(x, pools[1], isa, weight[:10])
    assert np.isnan(runs[5, 40:]).all() and np.isfinite(runs[5, :40]).all() and np.isfinite(runs[others]).all()
