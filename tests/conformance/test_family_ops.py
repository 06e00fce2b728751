"""The ops that only some families need, on every back end against float64: learned positions, layer norm, norms of
heads, activations, gates, factors and caps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

from octavo.backends.protocol import GroupedWeight
from support.backends import CPU_WAYS, Way, ways
from support.paged_steps import Chunk, kv_shape, run_steps, scatter_blocks, step, together, whole

# (tokens, width)
SHAPES = [(1, 1), (1, 64), (2, 7), (5, 16), (33, 65), (70, 192), (3, 576)]
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> oracle.Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * spread).astype(np.float32)


def run(backend: Any, x: oracle.Array, build: Callable[[Any, Any], Any], selected: list[int] | None = None) -> Any:
    """`build(ops, x)` for the rows of x as the tokens of one sequence; for the `selected` ones, if given."""
    kv = backend.allocate_kv(kv_shape(max_tokens=512))
    scatter_blocks(kv, [len(x)])
    table = backend.matrix([x])

    def selecting(ops: Any) -> Any:
        rows = ops.embedding(table)
        return build(ops, rows if selected is None else ops.select(rows))

    batch = step([np.arange(len(x))], [(0, 0, len(x))])
    if selected is not None:
        batch.logits_tokens = np.array(selected, np.int32)
    return np.array(backend.compile(selecting, kv, len(x)).run(batch))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("offset", [0.0, 20.0])
def test_layer_norm(backend: Any, way: Way, shape: tuple[int, int], with_bias: bool, offset: float) -> None:
    x = oracle.rounded(random(*shape, spread=3) + np.float32(offset), way.dtype)
    weight, bias = random(shape[1], seed=1), random(shape[1], seed=2)
    vectors = backend.vector(weight), backend.vector(bias) if with_bias else None
    y = run(backend, x.astype(np.float32), lambda ops, x: ops.layer_norm(x, *vectors, 1e-5))
    expected = oracle.layer_norm(x, weight.astype(np.float64), bias.astype(np.float64) if with_bias else 0.0, 1e-5)
    np.testing.assert_allclose(y, expected, rtol=5e-6, atol=2e-5)


@pytest.mark.parametrize(("tokens", "heads", "head_dim"), [(1, 1, 16), (5, 3, 7), (33, 4, 64), (3, 2, 256), (20, 5, 1)])
def test_rms_norm_of_heads_inside_a_wider_row(backend: Any, way: Way, tokens: int, heads: int, head_dim: int) -> None:
    """Query and key of one product, each with a weight of its own; the value beside them stays."""
    width = heads * head_dim
    x = random(tokens, 3 * width, spread=2)
    norms = [random(head_dim, seed=seed) for seed in (1, 2)]
    vectors = [backend.vector(norm) for norm in norms]

    def build(ops: Any, x: Any) -> Any:
        query, key, value = ops.split(x, (width,) * 3)
        query, key = (ops.rms_norm(part, v, 1e-6) for part, v in zip((query, key), vectors, strict=True))
        return ops.add(ops.add(query, key), value)

    *parts, value = np.split(oracle.rounded(x, way.dtype), 3, axis=1)
    normed = [
        oracle.rms_norm(part.reshape(-1, head_dim), norm, 1e-6).reshape(part.shape)
        for part, norm in zip(parts, norms, strict=True)
    ]
    np.testing.assert_allclose(run(backend, x, build), normed[0] + normed[1] + value, rtol=3e-6, atol=3e-6)


def test_rms_norm_of_no_whole_number_of_runs_is_refused(backend: Any, way: Way) -> None:
    vector = backend.vector(random(5))
    with pytest.raises((ValueError, RuntimeError)):
        run(backend, random(3, 12), lambda ops, x: ops.rms_norm(x, vector, 1e-6))


def grouped(rows: int, width: int) -> GroupedWeight:
    rng = np.random.default_rng(5)
    scales = rng.integers(1, 200, (rows, -(-width // 32))).astype(np.float32) / 4096
    return GroupedWeight(
        codes=rng.integers(0, 256, (rows, width)).astype(np.uint8),
        scales=scales,
        minimums=None,
        bits=8,
        group=32,
        zero=128,
        half_scales=True,
    )


@pytest.mark.parametrize("width", [1, 7, 33, 64])
@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize("kept", ["floats", "groups"])
def test_learned_positions(backend: Any, way: Way, width: int, offset: int, kept: str) -> None:
    """Several sequences at positions near and far, into a view of a wider row."""
    lengths = (40, 1, 17)
    x, floats = random(58, width + 3), random(40 + offset, width, seed=1)
    groups = grouped(40 + offset, width)
    positions = backend.matrix([groups if kept == "groups" else floats])
    table = backend.matrix([x])
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, lengths)

    def build(ops: Any) -> Any:
        _, tail = ops.split(ops.embedding(table), (3, width))
        return ops.add_positions(tail, positions, offset)

    bounds = np.cumsum([0, *lengths])
    tokens = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    steps = [[(0, 0, 30), (1, 0, 1)], [(2, 0, 17), (0, 30, 40)]]
    found = run_steps(backend.compile(build, kv, 64), tokens, steps)
    codes = groups.codes.astype(np.float64) - groups.zero
    exact = codes * np.repeat(groups.scales, 32, axis=1)[:, :width]
    rows = exact if kept == "groups" else oracle.rounded(floats, way.dtype)
    if kept == "groups" and not backend.keeps_groups:
        rows = np.asarray(rows, np.float32).astype(np.float64)
    for t, y in zip(tokens, found, strict=True):
        taken, added = oracle.rounded(x, way.dtype)[t, 3:], rows[offset : offset + len(t)]
        slack = 2**-8 if kept == "groups" and way.dtype == "bfloat16" else 2e-7  # where groups are expanded to it
        assert (np.abs(y - taken - added) <= slack * (1 + np.abs(taken) + np.abs(added))).all()


@pytest.mark.parametrize("way", ways(CPU_WAYS))
def test_positions_past_the_table_are_refused(way: Way) -> None:
    backend = way.open()
    positions, table = backend.matrix([random(12, 4, seed=1)]), backend.matrix([random(20, 4)])
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, [20])
    program = backend.compile(lambda ops: ops.add_positions(ops.embedding(table), positions, 2), kv, 20)
    assert program.run(step([np.arange(20)], [(0, 0, 10)])).shape == (10, 4)
    with pytest.raises(
        ValueError, match=r"^seq_lens\[0\] = 11: .* at most the 10 of the block tables and the positions"
    ):
        program.run(step([np.arange(20)], [(0, 0, 11)]))
    backend.close()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_activation_and_gate(backend: Any, way: Way, shape: tuple[int, int], kind: str) -> None:
    tokens, width = shape
    x = random(tokens, 2 * width, spread=3)
    left, right = np.split(oracle.rounded(x, way.dtype), 2, axis=1)
    expected = oracle.activation(left, kind)
    y = run(backend, x, lambda ops, x: ops.activation(ops.split(x, (width, width))[0], kind))
    # torch's and the contract's own form loses what cancels, the kernels what the exponent loses.
    np.testing.assert_allclose(y, expected, rtol=2e-5, atol=2e-6)
    y = run(backend, x, lambda ops, x: ops.gated(*ops.split(x, (width, width)), kind))
    np.testing.assert_allclose(y, expected * right, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_scale_soft_cap_and_sigmoid_gate(backend: Any, way: Way, shape: tuple[int, int]) -> None:
    """On views, one after the other."""
    tokens, width = shape
    x = random(tokens, width + 2, spread=4)

    def build(ops: Any, x: Any) -> Any:
        gate, _, body = ops.split(x, (1, 1, width))
        return ops.sigmoid_gate(ops.soft_cap(ops.scale(body, -1.5), 5.0), gate)

    kept = oracle.rounded(x, way.dtype)
    expected = 5 * np.tanh(kept[:, 2:] * -1.5 / 5) / (1 + np.exp(-kept[:, :1]))
    np.testing.assert_allclose(run(backend, x, build), expected, rtol=3e-6, atol=1e-7)


IN_PLACE: dict[str, Callable[[Any, Any, Any], Any]] = {
    "scale": lambda ops, x, gate: ops.scale(x, 2.0),
    "activation": lambda ops, x, gate: ops.activation(x, "relu"),
    "soft_cap": lambda ops, x, gate: ops.soft_cap(x, 1.0),
    "sigmoid_gate": lambda ops, x, gate: ops.sigmoid_gate(x, gate),
}


@pytest.mark.parametrize("op", IN_PLACE)
def test_neighbours_of_a_view_stay(backend: Any, way: Way, op: str) -> None:
    x = random(9, 30)

    def build(ops: Any, x: Any) -> Any:
        gate, left, middle, right = ops.split(x, (1, 9, 11, 9))
        IN_PLACE[op](ops, middle, gate)
        return ops.add(left, right)

    kept = oracle.rounded(x, way.dtype)
    assert np.array_equal(run(backend, x, build), (kept[:, 1:10] + kept[:, 21:]).astype(np.float32))


OTHERS: dict[str, Callable[[Any, Any], Any]] = {
    **{name: lambda ops, x, op=op: op(ops, *reversed(ops.split(x, (1, 24)))) for name, op in IN_PLACE.items()},
    "layer_norm": lambda ops, x: ops.layer_norm(ops.split(x, (1, 24))[1], [1.0] * 24, [0.5] * 24, 1e-5),
    "gated": lambda ops, x: ops.gated(*ops.split(x, (1, 12, 12))[1:], "gelu"),
}


@pytest.mark.parametrize("op", OTHERS)
@pytest.mark.parametrize("wanted", [[], [3], [0, 2, 6]], ids=str)
@pytest.mark.parametrize("way", ways(CPU_WAYS))
def test_selected_rows_have_the_bits_of_all(way: Way, op: str, wanted: list[int]) -> None:
    backend, x = way.open(), random(7, 25)
    every = run(backend, x, OTHERS[op])
    found = run(backend, x, OTHERS[op], wanted)
    assert found.shape == (len(wanted), every.shape[1]) and np.array_equal(found, every[wanted])
    backend.close()


# (KV heads, query heads per KV head, head_dim, block size)
ATTENTION = [(2, 3, 8, 4), (1, 4, 20, 32), (1, 2, 256, 16), (3, 1, 7, 1)]
LENGTHS = (150, 1, 33, 129)
CAP = 1.5


@pytest.mark.parametrize("shape", ATTENTION, ids=str)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("window", [None, 20])
def test_soft_capped_attention(
    backend: Any, way: Way, shape: tuple[int, int, int, int], kv_dtype: str, window: int | None
) -> None:
    kv_heads, group, head_dim, block_size = shape
    query_width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
    x = random(sum(LENGTHS), query_width + 2 * kv_width, seed=3)
    x[:, :query_width] *= 3  # so that the cap bites
    table, scale = backend.matrix([x]), head_dim**-0.5
    kv = backend.allocate_kv(
        kv_shape((0,), num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=kv_dtype)
    )
    scatter_blocks(kv, LENGTHS)

    def build(ops: Any) -> Any:
        query, key, value = ops.split(ops.embedding(table), (query_width, kv_width, kv_width))
        ops.write_kv(0, key, value)
        return ops.paged_attention(0, query, scale=scale, window=window, soft_cap=CAP)

    bounds = np.cumsum([0, *LENGTHS])
    tokens = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    found = np.concatenate(run_steps(backend.compile(build, kv, sum(LENGTHS)), tokens, together(LENGTHS, 64)))
    kept = oracle.rounded(x, way.dtype)
    key, value = np.split(oracle.kept(kept[:, query_width:], kv_dtype, head_dim), 2, axis=1)

    def expected(soft_cap: float | None) -> oracle.Array:
        query = kept[:, :query_width]
        return np.concatenate(
            [
                oracle.attention(query[t], key[t], value[t], kv_heads, scale=scale, window=window, soft_cap=soft_cap)
                for t in tokens
            ]
        )

    slack = {"float32": 1e-5, "bfloat16": 2**-7, "int8": 2e-3}[kv_dtype] * np.abs(x).max()
    assert np.abs(found - expected(CAP)).max() <= slack
    assert np.abs(expected(None) - expected(CAP)).max() > 8 * slack or kv_dtype == "bfloat16"


# --- a decoder layer made of all of them ------------------------------------------------------------------------------


class Layer:
    """Learned positions, a layer norm, norms of heads, capped scores, gates, and a plain MLP, with weights in floats
    and in groups, whose result is capped."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.table, self.positions = backend.matrix([random(100, 32)]), backend.matrix([random(162, 32, seed=1)])
        self.qkv = backend.matrix([random(64, 32, seed=2, spread=0.3)])
        self.output, self.up = backend.matrix([random(32, 32, seed=3, spread=0.3)]), backend.matrix([grouped(96, 32)])
        self.down, self.head = backend.matrix([grouped(32, 96)]), backend.matrix([random(50, 32, seed=4)])
        self.narrow = backend.matrix([random(32, 48, seed=8, spread=0.2)])
        self.gate = backend.matrix([random(1, 32, seed=5)])
        self.norms = [backend.vector(random(32, seed=6)), backend.vector(random(32, seed=7))]
        self.head_norm = backend.vector(random(8, seed=6))

    def build(self, ops: Any) -> Any:
        x = ops.add_positions(ops.scale(ops.embedding(self.table), 1.3), self.positions, 2)
        qkv = ops.linear(ops.layer_norm(x, *self.norms, 1e-5), self.qkv, None)
        query, key, value = ops.split(qkv, (32, 16, 16))
        query, key = ops.rms_norm(query, self.head_norm, 1e-6), ops.rms_norm(key, self.head_norm, 1e-6)
        ops.write_kv(0, key, value)
        attended = ops.paged_attention(0, query, scale=0.6, window=40, soft_cap=2.0)
        x = ops.add(x, ops.linear(attended, self.output))
        gate = ops.linear(x, self.gate)
        up = ops.linear(ops.layer_norm(x, self.norms[0], None, 1e-5), self.up)
        x = ops.add(x, ops.linear(ops.activation(up, "gelu"), self.down))
        gated = ops.gated(*ops.split(ops.linear(ops.rms_norm(x, self.norms[1], 1e-5), self.up), (48, 48)), "gelu_tanh")
        x = ops.add(x, ops.sigmoid_gate(ops.linear(gated, self.narrow), gate))
        return ops.soft_cap(ops.linear(ops.select(x), self.head), 3.0)

    def run(self, steps: list[list[Chunk]], *, block_size: int = 16, seed: int = 0, dtype: str) -> list[oracle.Array]:
        kv = self.backend.allocate_kv(kv_shape((0,), dtype=dtype, block_size=block_size))
        scatter_blocks(kv, LENGTHS, seed=seed)
        rng = np.random.default_rng(3)
        tokens = [rng.integers(0, 100, length) for length in LENGTHS]
        return run_steps(self.backend.compile(self.build, kv, sum(LENGTHS)), tokens, steps)


@pytest.mark.parametrize("way", ways(CPU_WAYS))
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
def test_bits_of_a_row_are_its_own(way: Way, kv_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batch, chunking, block size, threads, and whether ops are joined, change nothing."""
    single, double = way.open(num_threads=1), way.open(num_threads=2)
    expected = Layer(single).run(whole(LENGTHS), dtype=kv_dtype)
    assert all(np.isfinite(rows).all() and np.abs(rows).max() <= 3 for rows in expected)
    mixed = [[(0, 0, 90)], [(3, 0, 60), (0, 90, 91), (1, 0, 1)], [(2, 0, 37 - 4), (0, 91, 150), (3, 60, 129)]]
    variants: list[tuple[Any, list[list[Chunk]], dict[str, int]]] = [
        (double, whole(LENGTHS), {}),
        (double, mixed, {"block_size": 8, "seed": 1}),
        (single, together(LENGTHS, 7), {"block_size": 32, "seed": 2}),
        (double, together(LENGTHS, 64), {"block_size": 1, "seed": 3}),
    ]
    for backend, steps, settings in variants:
        for found, rows in zip(Layer(backend).run(steps, dtype=kv_dtype, **settings), expected, strict=True):
            assert np.array_equal(found, rows), settings
    monkeypatch.setattr("octavo.backends.cpu.fuse", lambda calls, result: calls)
    for found, rows in zip(Layer(double).run(together(LENGTHS, 64), dtype=kv_dtype), expected, strict=True):
        assert np.array_equal(found, rows)
    single.close(), double.close()
