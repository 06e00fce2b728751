"""Mixtures of experts on every back end: who is chosen, what is added, and on the CPU that a row's bits are its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import oracle
import pytest

from octavo.backends.protocol import Activation, Routing
from support.backends import CPU_WAYS, Way, ways
from support.grouped import FORMATS, grouped
from support.paged_steps import kv_shape, run_steps, scatter_blocks, step, together, whole

Parts = list[Any]


def random(*shape: int, seed: int = 0) -> oracle.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


class Mixture(msgspec.Struct):
    """A mixture's weights as parts, and tokens: of each its x and, beside it, its router logits."""

    gate_up: list[Parts]
    down: list[Parts]
    x: oracle.Array
    logits: oracle.Array

    @property
    def rows(self) -> oracle.Array:
        return np.hstack([self.x, self.logits]).astype(np.float32)


def mixture(num_experts: int, width: int, inner: int, num_tokens: int, *, formats: Sequence[Any] = (None,)) -> Mixture:
    """Experts take turns with the formats. The first are far likelier than the others, the last is never chosen
    unless all are."""

    def part(rows: int, columns: int, expert: int) -> Any:
        format = formats[expert % len(formats)]
        if format is not None:
            return grouped(format, rows, columns, seed=expert)
        return random(rows, columns, seed=expert) / np.sqrt(np.float32(columns))

    logits = random(num_tokens, num_experts, seed=1) - np.linspace(0, 3, num_experts, dtype=np.float32)
    logits[:, -1] = -60
    return Mixture(
        [[part(inner, width, e), part(inner, width, e + 1000 * len(formats))] for e in range(num_experts)],
        [[part(width, inner, e + 2000 * len(formats))] for e in range(num_experts)],
        random(num_tokens, width, seed=2),
        logits,
    )


class Compiled:
    """A mixture on a back end, and its experts one by one."""

    def __init__(self, backend: Any, case: Mixture, *, kind: Activation = "silu") -> None:
        self.backend = backend
        self.kind = kind
        self.case = case
        self.table = backend.matrix([case.rows])
        self.gate_up = [backend.matrix(parts) for parts in case.gate_up]
        self.down = [backend.matrix(parts) for parts in case.down]
        self.widths = (case.x.shape[1], case.logits.shape[1])

    def program(self, build: Any, block_size: int = 16) -> Any:
        kv = self.backend.allocate_kv(kv_shape(max_tokens=512, block_size=block_size))
        scatter_blocks(kv, [len(self.case.x)] * 4)

        def taken(ops: Any) -> Any:
            return build(ops, *ops.split(ops.embedding(self.table), self.widths))

        return self.backend.compile(taken, kv, 2 * len(self.case.x))

    def run(self, build: Any) -> oracle.Array:
        """`build(ops, x, router logits)` for all tokens in one step."""
        count = len(self.case.x)
        return np.array(self.program(build).run(step([np.arange(count)], [(0, 0, count)])))

    def mixed(self, routing: Routing) -> Any:
        return lambda ops, x, logits: ops.experts(x, logits, self.gate_up, self.down, routing, self.kind)

    def expert(self, expert: int) -> oracle.Array:
        """What an expert gives for every token, by the ops that make it up."""

        def mlp(ops: Any, x: Any, _: Any) -> Any:
            both = ops.linear(x, self.gate_up[expert])
            inner = sum(len(part) for part in self.case.gate_up[expert]) // 2
            return ops.linear(ops.gated(*ops.split(both, (inner, inner)), self.kind), self.down[expert])

        return self.run(mlp)


def shares(logits: oracle.Array, routing: Routing) -> oracle.Array:
    """[tokens, experts] in float64, one token and one expert after another."""
    found = np.zeros(logits.shape)
    for row, token in zip(found, logits.tolist(), strict=True):
        powers = [np.exp(logit - max(token)) for logit in token]
        chosen = sorted(range(len(token)), key=lambda e: (-token[e], e))[: routing.top_k]
        total = sum(powers[e] for e in chosen) if routing.normalise else sum(powers)
        for e in chosen:
            row[e] = powers[e] / total
    return found


def check(compiled: Compiled, way: Way, routing: Routing) -> None:
    """Within some roundings of float32 of the experts' own outputs, weighed and added."""
    logits = oracle.rounded(compiled.case.logits, way.dtype)
    weights = shares(logits, routing)
    given = np.stack([compiled.expert(e) for e in range(len(compiled.down))]).astype(np.float64)
    expected = np.einsum("te,etw->tw", weights, given)
    size = np.einsum("te,etw->tw", weights, np.abs(given))
    y = compiled.run(compiled.mixed(routing))
    assert y.shape == compiled.case.x.shape and y.dtype == np.float32
    assert (np.abs(y - expected) <= 1e-5 * size + 1e-30).all()
    chosen = (weights > 0).sum(axis=0)
    if len(chosen) > routing.top_k:
        assert chosen[0] > 2 * chosen[-2] or len(logits) < 10, "the experts are evenly loaded"
        assert not chosen[-1], "every expert has rows"


# (experts, top_k, width, inner, tokens)
CASES = [
    (8, 2, 64, 96, 70),
    (5, 3, 33, 7, 29),
    (4, 1, 40, 48, 12),
    (128, 8, 48, 16, 40),
    (60, 4, 64, 24, 33),
    (3, 3, 16, 20, 9),
    (1, 1, 17, 5, 3),
    (16, 4, 96, 48, 1),
]


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_experts(backend: Any, way: Way, case: tuple[int, ...], normalise: bool) -> None:
    num_experts, top_k, width, inner, tokens = case
    made = Compiled(backend, mixture(num_experts, width, inner, tokens))
    check(made, way, Routing(top_k=top_k, normalise=normalise))


@pytest.mark.parametrize("kind", ["gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("inner", [96, 7])  # whose halves begin at panels, and do not
def test_experts_with_other_activations(backend: Any, way: Way, kind: Activation, inner: int) -> None:
    check(Compiled(backend, mixture(6, 48, inner, 30), kind=kind), way, Routing(top_k=2, normalise=True))


def test_against_plain_formulas(backend: Any, way: Way) -> None:
    """Not even an expert comes from the back end."""
    case, routing = mixture(6, 32, 40, 20), Routing(top_k=2, normalise=True)
    y = Compiled(backend, case).run(Compiled(backend, case).mixed(routing))
    x, logits = (oracle.rounded(each, way.dtype) for each in (case.x, case.logits))
    expected = np.zeros_like(x)
    for expert, weight in enumerate(shares(logits, routing).T):
        gate, up = (x @ oracle.rounded(part, way.dtype).T for part in case.gate_up[expert])
        down = oracle.rounded(case.down[expert][0], way.dtype)
        expected += weight[:, None] * (oracle.silu_mul(gate, up) @ down.T)
    slack = 2e-6 if way.dtype == "float32" else 2e-2  # a back end may round what it multiplies to bfloat16
    assert np.abs(y - expected).max() <= slack * np.abs(expected).max()


@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_experts_in_groups(backend: Any, way: Way, format: Any) -> None:
    made = Compiled(backend, mixture(6, 64, 96, 31, formats=[format]))
    check(made, way, Routing(top_k=2, normalise=True))


def test_each_expert_may_be_kept_in_another_format(backend: Any, way: Way) -> None:
    made = Compiled(backend, mixture(12, 64, 32, 45, formats=[None, *FORMATS]))
    check(made, way, Routing(top_k=3, normalise=False))


def test_gate_and_up_in_several_formats(backend: Any, way: Way) -> None:
    """And parts of one half too; `down` in several pieces as well."""
    case = mixture(5, 64, 34, 25)
    for e in range(5):
        four, eight = FORMATS[e % 3], FORMATS[4 + e % 4]
        case.gate_up[e] = [grouped(four, 34, 64, seed=e), grouped(eight, 10, 64, seed=e), random(24, 64, seed=e)]
        case.down[e] = [grouped(eight, 20, 34, seed=e), random(30, 34, seed=e), grouped(four, 14, 34, seed=e)]
    check(Compiled(backend, case), way, Routing(top_k=2, normalise=True))


def test_the_lower_index_comes_first_among_equals(backend: Any, way: Way) -> None:
    case = mixture(6, 16, 24, 6)
    case.logits[:] = [
        [1, 2, 2, 2, 0, 1],
        [0] * 6,
        [5, 5, 5, 5, 5, 6],
        [-1, 3, -1, 3, 3, 3],
        [9, 9, 1, 9, 9, 9],
        [7] * 6,
    ]
    expected = [(1, 2), (0, 1), (0, 5), (1, 3), (0, 1), (0, 1)]
    routing = Routing(top_k=2, normalise=True)
    found = shares(case.logits, routing)
    assert [tuple(np.flatnonzero(row)) for row in found] == expected
    made = Compiled(backend, case)
    given = np.stack([made.expert(e) for e in range(6)]).astype(np.float64)
    y = made.run(made.mixed(routing))
    np.testing.assert_allclose(y, np.einsum("te,etw->tw", found, given), rtol=1e-5, atol=1e-6)


def test_the_sum_follows_the_numbers_of_the_experts(backend: Any) -> None:
    """The first two cancel each other; the third, likelier than they, would be lost beside either."""
    case = mixture(4, 8, 2, 1)
    case.x[:] = np.eye(1, 8)
    case.logits[:] = [[1, 1, 2, -60]]
    unit = np.full((2, 8), 32, np.float32)
    for expert, size in enumerate((2.0**30, -(2.0**30), 1.0, 1.0)):
        case.gate_up[expert] = [unit, unit]
        case.down[expert] = [np.full((8, 2), size, np.float32)]
    made = Compiled(backend, case)
    alone = made.run(made.mixed(Routing(top_k=1, normalise=False)))
    together = made.run(made.mixed(Routing(top_k=3, normalise=False)))
    np.testing.assert_allclose(together, alone, rtol=1e-6)


@pytest.mark.parametrize("normalise", [False, True])
def test_a_token_with_nan_among_its_logits_gets_nan_alone(backend: Any, normalise: bool) -> None:
    case, routing = mixture(6, 16, 24, 9), Routing(top_k=2, normalise=normalise)
    clean = Compiled(backend, case)
    expected = clean.run(clean.mixed(routing))
    for row, expert in ((2, 5), (4, 0), (8, 3)):
        case.logits[row, expert] = np.nan
    made = Compiled(backend, case)
    y = made.run(made.mixed(routing))
    bad = np.isin(np.arange(9), [2, 4, 8])
    assert np.isnan(y[bad]).all()
    np.testing.assert_allclose(y[~bad], expected[~bad], rtol=1e-6, atol=1e-7)


def test_nobody_chooses_an_expert_that_is_ruled_out(backend: Any, way: Way) -> None:
    """-inf is a logit like others."""
    case = mixture(5, 16, 8, 7)
    case.logits[:, 1] = -np.inf
    check(Compiled(backend, case), way, Routing(top_k=2, normalise=False))


def test_an_expert_that_nobody_chose_is_not_computed(backend: Any) -> None:
    case, routing = mixture(6, 16, 24, 9), Routing(top_k=2, normalise=True)
    case.down[-1] = [np.full((16, 24), np.nan, np.float32)]
    made = Compiled(backend, case)
    assert np.isfinite(made.run(made.mixed(routing))).all()


def test_inputs_are_not_changed(backend: Any, way: Way) -> None:
    made = Compiled(backend, mixture(6, 16, 24, 9))

    def build(ops: Any, x: Any, logits: Any) -> Any:
        ops.experts(x, logits, made.gate_up, made.down, Routing(top_k=2, normalise=True), "silu")
        return ops.linear(x, eye)

    eye = backend.matrix([np.eye(16, dtype=np.float32)])
    assert np.array_equal(made.run(build), oracle.rounded(made.case.x, way.dtype))


def test_selected_rows(backend: Any, way: Way) -> None:
    made, routing = Compiled(backend, mixture(6, 16, 24, 9)), Routing(top_k=2, normalise=True)
    expected = made.run(made.mixed(routing))

    def build(ops: Any, x: Any, logits: Any) -> Any:
        return ops.experts(ops.select(x), ops.select(logits), made.gate_up, made.down, routing, "silu")

    batch = step([np.arange(9)], [(0, 0, 9)])
    batch.logits_tokens = np.array([1, 4, 5], np.int32)
    found = made.program(build).run(batch)
    np.testing.assert_allclose(found, expected[[1, 4, 5]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ways(CPU_WAYS))
@pytest.mark.parametrize("formats", [[None], FORMATS], ids=["floats", "groups"])
def test_bits_of_a_row_are_its_own(way: Way, formats: list[Any]) -> None:
    """Whoever else is in the step, however it is cut, on any number of threads."""
    single, several = way.open(num_threads=1), way.open(num_threads=3)
    case, routing = mixture(16, 64, 48, 90, formats=formats), Routing(top_k=4, normalise=True)
    made = Compiled(single, case)
    tokens = [np.arange(90), np.arange(90)[::-1], np.arange(30, 50), np.array([7])]
    lengths = [len(each) for each in tokens]
    alone = run_steps(made.program(made.mixed(routing)), tokens, whole(lengths))
    assert np.array_equal(alone[1], alone[0][::-1]) and np.array_equal(alone[3], alone[0][7:8])
    for backend in (single, several):
        made = Compiled(backend, case)
        for chunk in (1, 7, 64):
            found = run_steps(made.program(made.mixed(routing)), tokens, together(lengths, chunk))
            assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))
    single.close(), several.close()


@pytest.mark.parametrize("way", ways(CPU_WAYS))
def test_what_does_not_fit_is_refused(way: Way) -> None:
    backend = way.open()
    made, routing = Compiled(backend, mixture(4, 16, 24, 3)), Routing(top_k=2, normalise=True)
    wide, long = backend.matrix([random(48, 17)]), backend.matrix([random(17, 24)])

    def refused(match: str, gate_up: Parts, down: Parts, routing: Routing = routing, kind: Any = "silu") -> None:
        with pytest.raises(ValueError, match=match):
            made.program(lambda ops, x, logits: ops.experts(x, logits, gate_up, down, routing, kind))

    refused("top_k: is 5; must be from 1 to the 4", made.gate_up, made.down, Routing(top_k=5, normalise=True))
    refused("top_k: is 0", made.gate_up, made.down, Routing(top_k=0, normalise=True))
    refused("down: has 3 experts, gate_up 4", made.gate_up, made.down[1:])
    refused("router_logits: must have a column for each", made.gate_up[1:], made.down[1:])
    refused(r"gate_up\[2\]: has 17 columns; must have 16", [*made.gate_up[:2], wide, wide], made.down)
    refused("x: must have as many columns as gate_up", [wide] * 4, [long] * 4)
    refused(r"down\[3\]: has 17 rows; must have 16", made.gate_up, [*made.down[:3], long])
    refused(r"gate_up\[0\]: has 17 rows", [long] * 4, made.down)
    refused("gate_up: there must be an expert", [], [])
    refused("kind: tanh; must be silu, gelu, gelu_tanh or relu", made.gate_up, made.down, kind="tanh")
    backend.close()


@pytest.mark.parametrize("way", ways(CPU_WAYS))
def test_the_profile_names_the_op(way: Way) -> None:
    backend = way.open()
    made = Compiled(backend, mixture(4, 16, 24, 3))
    program = made.program(made.mixed(Routing(top_k=2, normalise=True)))
    program._native.start_profile(False)
    program.run(step([np.arange(3)], [(0, 0, 3)]))
    assert [name for name, _ in program._native.profile()] == ["embedding", "experts 2/4 48x16"]
    backend.close()
