"""Products that make their input on the way, or add to what is there: the bits of the ops one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dense import DTYPES, PATHS, Guarded, Weight, poisoned
from grouped import FORMATS, GroupWeight

from octavo import _native

KEPT = (*DTYPES, *FORMATS)
EPS = 1e-5
KINDS = ("rows", "rms_norm", "layer_norm", "layer_norm_without_bias", "silu_mul", "gelu_mul", "gelu_tanh", "relu")
"""What a product takes; `..._mul` is gated, the last two are activated."""
SOME_SHAPES = [(1, 1), (48, 2), (47, 31), (33, 64), (97, 129), (144, 576)]
SOME_ROWS = (1, 2, 3, 8, 9, 17, 70, 512)


@pytest.fixture(scope="module")
def pools() -> list[Any]:
    return [_native.ThreadPool(n) for n in (1, 2, 3)]


def values(count: int, width: int, seed: int) -> Any:
    return np.random.default_rng([seed, count, width]).standard_normal((count, width), np.float32)


class Case:
    """Operands for one shape: a weight, a norm, a bias, and 512 rows of x, up and what is there."""

    def __init__(self, shape: tuple[int, int], isa: str, kept: str) -> None:
        n, k = shape
        self.isa = isa
        self.weight = GroupWeight(n, k, isa, kept) if kept in FORMATS else Weight(n, k, isa, kept)
        self.norm = np.random.default_rng(2).standard_normal(k).astype(np.float32)
        self.bias = np.random.default_rng(3).standard_normal(n).astype(np.float32)
        self.norm_bias = np.random.default_rng(7).standard_normal(k).astype(np.float32)
        self.x, self.up, self.there = values(512, k, 4), values(512, k, 5), values(512, n, 6)

    def apart(self, kind: str, rows: Any, pool: Any) -> Any:
        """The product by ops one after another."""
        made = np.empty_like(self.x[rows])
        if kind == "rms_norm":
            _native.rms_norm(self.x[rows], self.norm, EPS, made, pool, self.isa)
        elif kind.startswith("layer_norm"):
            bias = self.norm_bias if kind == "layer_norm" else None
            _native.layer_norm(self.x[rows], self.norm, bias, EPS, made, pool, self.isa)
        elif kind.endswith("_mul"):
            _native.gated(self.x[rows], self.up[rows], made, pool, self.isa, kind.removesuffix("_mul"))
        else:
            made = self.x[rows].copy()
            if kind != "rows":
                _native.activation(made, kind, pool, self.isa)
        return self.weight.linear(made, pool, self.bias)

    def joined(self, kind: str, rows: Any, pool: Any, *, add: bool) -> Any:
        out = Guarded(len(rows), len(self.bias))
        if add:
            out.rows[:] = self.there[rows]
        more = self.normed(kind)
        if kind.endswith("_mul"):
            more = {"up": poisoned(self.up[rows]), "kind": kind.removesuffix("_mul")}
        elif kind in ("gelu_tanh", "relu"):
            more = {"kind": kind}
        bias = self.bias.tolist()
        _native.linear(poisoned(self.x[rows]), self.weight.matrix, bias, out.rows, pool, add=add, **more)
        return out.result()

    def normed(self, kind: str) -> dict[str, Any]:
        """What the kernel is told of a norm."""
        if "norm" not in kind:
            return {}
        bias = self.norm_bias.tolist() if kind == "layer_norm" else []
        more = {"norm_bias": bias} if kind.startswith("layer_norm") else {}
        return {"norm": self.norm.tolist(), "eps": EPS, **more}

    def gated(self, kind: str, rows: Any, pool: Any, activation: str = "silu") -> Any:
        out = Guarded(len(rows), len(self.bias) // 2)
        x, bias, more = poisoned(self.x[rows]), self.bias.tolist(), self.normed(kind)
        _native.linear(x, self.weight.matrix, bias, out.rows, pool, gated=True, kind=activation, **more)
        return out.result()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("shape", SOME_SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_bits_are_those_of_the_ops_apart(
    isa: str, kept: str, shape: tuple[int, int], kind: str, pools: list[Any]
) -> None:
    """For any number of rows and threads. Nothing is read or written outside the operands."""
    case = Case(shape, isa, kept)
    whole = case.apart(kind, np.arange(512), pools[0])
    assert np.isfinite(whole).all()
    for count in SOME_ROWS:
        rows = np.random.default_rng(count).permutation(512)[:count]
        for add in (False, True):
            expected = case.there[rows] + whole[rows] if add else whole[rows]
            assert np.array_equal(case.joined(kind, rows, pools[count % 3], add=add), expected)


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize("inner,k", [(96, 31), (192, 64), (288, 129), (1536, 40)])
def test_a_gated_product_has_the_bits_of_product_and_gate(
    isa: str, kept: str, inner: int, k: int, pools: list[Any]
) -> None:
    """Gate and up are the halves of one weight, with and without a bias, over plain and normalised rows."""
    case = Case((2 * inner, k), isa, kept)
    assert case.weight.matrix.has_halves
    for kind, activation in (("rows", "silu"), ("rms_norm", "gelu_tanh"), ("layer_norm", "gelu"), ("rows", "relu")):
        whole = case.apart(kind, np.arange(512), pools[0])
        expected = np.empty((512, inner), np.float32)
        _native.gated(whole[:, :inner], whole[:, inner:], expected, pools[0], isa, activation)
        assert np.isfinite(expected).all()
        for count in SOME_ROWS:
            rows = np.random.default_rng(count).permutation(512)[:count]
            assert np.array_equal(case.gated(kind, rows, pools[count % 3], activation), expected[rows])


@pytest.mark.parametrize("kept", KEPT)
def test_only_a_weight_whose_halves_begin_at_panels_gates(kept: str, pools: list[Any]) -> None:
    case = Case((60, 8), PATHS[0], kept)  # halves of 30 columns: no path has panels of 1, 2, 3, 5, 6, 10, 15 or 30
    assert not case.weight.matrix.has_halves
    with pytest.raises(ValueError, match="gated wants a weight in halves"):
        case.gated("rows", np.arange(2), pools[0])
    with pytest.raises(ValueError, match="gated wants a weight in halves, and no sum"):
        halves = Case((96, 8), PATHS[0], kept)
        out = np.empty((2, 48), np.float32)
        _native.linear(halves.x[:2], halves.weight.matrix, [], out, pools[0], add=True, gated=True)


def refused(match: str, call: Callable[[], None]) -> None:
    with pytest.raises(ValueError, match=match):
        call()


def test_inputs_that_do_not_fit_are_refused(pools: list[Any]) -> None:
    weight = Weight(3, 4, PATHS[0], "float32")
    x, out = np.ones((2, 4), np.float32), np.ones((2, 3), np.float32)

    def call(**more: Any) -> Callable[[], None]:
        return lambda: _native.linear(x, weight.matrix, [], out, pools[0], **more)

    refused("norm must hold k values", call(norm=[1.0] * 3))
    refused("up must have the shape of x", call(up=np.ones((2, 3), np.float32)))
    refused("up must have the shape of x", call(up=np.ones((1, 4), np.float32)))
    refused("up does not go with a norm", call(up=x, norm=[1.0] * 4))
    refused("norm_bias must hold k values, beside norm", call(norm=[1.0] * 4, norm_bias=[1.0] * 3))
    refused("norm_bias must hold k values, beside norm", call(norm_bias=[1.0] * 4))
    refused("kind: tanh; must be silu, gelu, gelu_tanh or relu", call(kind="tanh"))
    assert (out == 1).all()
