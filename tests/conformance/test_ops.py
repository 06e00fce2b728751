"""Every op of every back end against float64, through `compile`, as a decoder meets it.

An op's input is made by looking tokens up in a table, so the oracle sees the table as the back end keeps it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import oracle
import pytest

from octavo.backends.protocol import RopeParams
from support.backends import Way
from support.paged_steps import kv_shape, run_steps, scatter_blocks, step, together, whole

# (tokens, width in, width out)
SHAPES = [(1, 1, 1), (1, 64, 48), (2, 7, 3), (5, 16, 17), (33, 65, 31), (70, 192, 64), (3, 576, 1537)]


def random(*shape: int, seed: int = 0, spread: float = 1.0) -> oracle.Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * spread).astype(np.float32)


def run(backend: Any, x: oracle.Array, build: Callable[[Any, Any], Any]) -> Any:
    """`build(ops, x)` for the rows of x as the tokens of one sequence."""
    kv = backend.allocate_kv(kv_shape(max_tokens=512))
    scatter_blocks(kv, [len(x)])
    table = backend.matrix([x])
    program = backend.compile(lambda ops: build(ops, ops.embedding(table)), kv, len(x))
    return np.array(program.run(step([np.arange(len(x))], [(0, 0, len(x))])))


@pytest.mark.parametrize(("tokens", "width", "_"), SHAPES)
def test_embedding(backend: Any, way: Way, tokens: int, width: int, _: int) -> None:
    x = random(tokens, width)
    y = run(backend, x, lambda ops, x: x)
    assert y.dtype == np.float32
    assert np.array_equal(y, oracle.rounded(x, way.dtype))


def test_a_matrix_of_parts_in_either_dtype(backend: Any, way: Way) -> None:
    parts = [random(n, 20, seed=n) for n in (3, 1, 17)]
    mixed = [oracle.to_bfloat16(part) if i == 1 else part for i, part in enumerate(parts)]
    whole = np.concatenate([oracle.rounded(part, "bfloat16" if i == 1 else way.dtype) for i, part in enumerate(parts)])
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, [21])
    table = backend.matrix(mixed)
    program = backend.compile(lambda ops: ops.embedding(table), kv, 21)
    assert np.array_equal(program.run(step([np.arange(21)[::-1]], [(0, 0, 21)])), whole[::-1])


@pytest.mark.parametrize(("tokens", "width", "_"), SHAPES)
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm(backend: Any, way: Way, tokens: int, width: int, _: int, eps: float) -> None:
    x, weight = random(tokens, width, spread=3), random(width, seed=1)
    vector = backend.vector(weight)
    y = run(backend, x, lambda ops, x: ops.rms_norm(x, vector, eps))
    expected = oracle.rms_norm(oracle.rounded(x, way.dtype), weight.astype(np.float64), eps)
    np.testing.assert_allclose(y, expected, rtol=3e-6, atol=1e-7)


def test_rms_norm_of_zeros_is_zero(backend: Any) -> None:
    vector = backend.vector(random(24))
    assert not run(backend, np.zeros((3, 24), np.float32), lambda ops, x: ops.rms_norm(x, vector, 1e-5)).any()


@pytest.mark.parametrize(("tokens", "width", "out"), SHAPES)
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear(backend: Any, way: Way, tokens: int, width: int, out: int, with_bias: bool) -> None:
    x, weight, bias = random(tokens, width), random(out, width, seed=1), random(out, seed=2, spread=5)
    matrix, vector = backend.matrix([weight]), backend.vector(bias) if with_bias else None
    y = run(backend, x, lambda ops, x: ops.linear(x, matrix, vector))
    check_linear(y, oracle.rounded(x, way.dtype), oracle.rounded(weight, way.dtype), bias if with_bias else 0.0)


def check_linear(y: oracle.Array, x: oracle.Array, weight: oracle.Array, bias: Any) -> None:
    """Within a few roundings of float32 of the terms' magnitudes."""
    largest = np.abs(x) @ np.abs(weight).T + np.abs(bias)
    assert (np.abs(y - (x @ weight.T + bias)) <= 1e-6 * largest).all()


def test_linear_rounds_its_input_always_or_never(backend: Any, way: Way) -> None:
    """x is a sum here, which bfloat16 cannot hold; with bfloat16 weights rounding it is allowed."""
    x, weight = random(40, 128), random(48, 64, seed=1)
    matrix = backend.matrix([weight])
    y = run(backend, x, lambda ops, x: ops.linear(ops.add(*ops.split(x, (64, 64))), matrix))
    kept, seen = oracle.rounded(x, way.dtype), oracle.rounded(weight, way.dtype)
    total = oracle.rounded(kept[:, :64] + kept[:, 64:], "float32")
    if way.dtype == "bfloat16" and np.abs(y - total @ seen.T).max() > 1e-3:
        total = oracle.rounded(total, "bfloat16")
    check_linear(y, total, seen, 0.0)


def test_split_gives_adjacent_columns(backend: Any, way: Way) -> None:
    x = random(6, 60)
    weight = np.eye(23, dtype=np.float32)
    matrix = backend.matrix([weight])
    y = run(backend, x, lambda ops, x: ops.linear(ops.split(x, (20, 23, 17))[1], matrix))
    assert np.array_equal(y, oracle.rounded(x, way.dtype)[:, 20:43])


@pytest.mark.parametrize(("head_dim", "half", "scale"), [(2, 1, 1.0), (8, 4, 1.0), (64, 32, 1.25), (20, 6, 1.0)])
def test_rotary(backend: Any, way: Way, head_dim: int, half: int, scale: float) -> None:
    """One sequence per position, near and far, in no order."""
    positions = [8191, 0, 1, 7, 1023, 1024, 4095, 8190, 2]
    rope = RopeParams(inv_freq=tuple(10000.0 ** (-i / half) for i in range(half)), scale=scale, max_position=8192)
    x = random(9, 3 * head_dim)
    table = backend.matrix([x])
    kv = backend.allocate_kv(kv_shape(num_kv_heads=1, head_dim=1, block_size=256, max_num_seqs=9, max_tokens=8192))
    scatter_blocks(kv, [8192] * 9)
    program = backend.compile(lambda ops: ops.rotary(ops.embedding(table), rope, head_dim), kv, 9)
    tokens = [np.full(8192, i) for i in range(9)]
    y = program.run(step(tokens, [(i, p, p + 1) for i, p in enumerate(positions)]))
    kept = oracle.rounded(x, way.dtype)
    expected = oracle.rotary(kept, np.array(positions), rope, head_dim)
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(kept).max() * scale)


@pytest.mark.parametrize(("tokens", "width", "_"), SHAPES)
def test_silu_mul(backend: Any, way: Way, tokens: int, width: int, _: int) -> None:
    x = random(tokens, 2 * width, spread=4)
    y = run(backend, x, lambda ops, x: ops.gated(*ops.split(x, (width, width)), "silu"))
    kept = oracle.rounded(x, way.dtype)
    np.testing.assert_allclose(y, oracle.silu_mul(kept[:, :width], kept[:, width:]), rtol=3e-6, atol=1e-30)


def test_silu_mul_of_extremes(backend: Any) -> None:
    gates = np.array([[0.0, -0.0, 88.0, 89.0, 1e30, -80.0, -104.0, -1e30, np.inf]], np.float32)
    y = run(backend, np.hstack([gates, np.ones_like(gates)]), lambda ops, x: ops.gated(*ops.split(x, (9, 9)), "silu"))
    assert y[0, :3] == pytest.approx([0, 0, 88], rel=1e-2) and y[0, 4] == pytest.approx(1e30, rel=1e-2)
    assert (np.abs(y[0, 5:8]) < 1e-8).all()  # e^x is clamped at 88, so -1e30 leaves -6e-9
    assert y[0, 8] == np.inf


@pytest.mark.parametrize(("tokens", "width", "_"), SHAPES)
def test_add(backend: Any, way: Way, tokens: int, width: int, _: int) -> None:
    x = random(tokens, 2 * width)
    y = run(backend, x, lambda ops, x: ops.add(*ops.split(x, (width, width))))
    kept = oracle.rounded(x, way.dtype)
    assert np.array_equal(y, (kept[:, :width] + kept[:, width:]).astype(np.float32))


@pytest.mark.parametrize("wanted", [[0], [6], [1, 2, 5], list(range(7))], ids=str)
def test_select(backend: Any, way: Way, wanted: list[int]) -> None:
    x = random(7, 12)
    table, vector = backend.matrix([x]), backend.vector(np.ones(12, np.float32))
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, [4, 3])
    program = backend.compile(lambda ops: ops.rms_norm(ops.select(ops.embedding(table)), vector, 1e-5), kv, 16)
    batch = step([np.arange(4), np.arange(4, 7)], [(0, 0, 4), (1, 0, 3)])
    batch.logits_tokens = np.array(wanted, np.int32)
    kept = oracle.rounded(x, way.dtype)[wanted]
    np.testing.assert_allclose(program.run(batch), oracle.rms_norm(kept, np.ones(12), 1e-5), rtol=3e-6)


def test_inputs_are_not_changed(backend: Any, way: Way) -> None:
    """Only rotary and add may take their x; what else read the same tensor must find it as it was."""
    x = random(5, 32)
    vector, matrix = backend.vector(random(16)), backend.matrix([random(16, 16, seed=1)])

    def build(ops: Any, x: Any) -> Any:
        left, right = ops.split(x, (16, 16))
        ops.rms_norm(left, vector, 1e-5)
        ops.linear(left, matrix)
        ops.gated(left, right, "silu")
        ops.select(left)
        return ops.add(left, right)

    kept = oracle.rounded(x, way.dtype)
    assert np.array_equal(run(backend, x, build), (kept[:, :16] + kept[:, 16:]).astype(np.float32))


# (KV heads, query heads per KV head, head_dim, block size)
ATTENTION = [(1, 1, 1, 1), (2, 3, 8, 4), (3, 3, 64, 16), (1, 4, 20, 32), (2, 1, 128, 64), (1, 2, 16, 256)]
LENGTHS = (150, 1, 33, 129)


@pytest.mark.parametrize("shape", ATTENTION, ids=str)
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("window", [None, 1, 20])
def test_attention_over_written_kv(
    backend: Any, way: Way, shape: tuple[int, int, int, int], kv_dtype: str, window: int | None
) -> None:
    """Decodes, whole prompts and chunks in one step, over scattered blocks in a poisoned memory with two groups."""
    kv_heads, group, head_dim, block_size = shape
    query_width, kv_width = kv_heads * group * head_dim, kv_heads * head_dim
    x = random(sum(LENGTHS), query_width + 2 * kv_width, seed=3)
    table, layer, scale = backend.matrix([x]), 1, head_dim**-0.5
    kv = backend.allocate_kv(
        kv_shape((0, 1, 0), num_kv_heads=kv_heads, head_dim=head_dim, block_size=block_size, dtype=kv_dtype)
    )
    scatter_blocks(kv, LENGTHS)

    def build(ops: Any) -> Any:
        query, key, value = ops.split(ops.embedding(table), (query_width, kv_width, kv_width))
        ops.write_kv(layer, key, value)
        return ops.paged_attention(layer, query, scale=scale, window=window)

    program = backend.compile(build, kv, sum(LENGTHS))
    bounds = np.cumsum([0, *LENGTHS])
    tokens = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    steps = [[(0, 0, 100)], [(3, 0, 128), (0, 100, 101), (2, 0, 33)], [(1, 0, 1), (3, 128, 129), (0, 101, 150)]]
    found = np.concatenate(run_steps(program, tokens, steps))

    def expected(query_dtype: str) -> oracle.Array:
        kept = oracle.rounded(x, way.dtype)
        query = oracle.kept(kept[:, :query_width], query_dtype, head_dim)
        pairs = kept[:, query_width:]
        pairs = oracle.kept(pairs, kv_dtype, head_dim)
        key, value = np.split(pairs, 2, axis=1)
        return np.concatenate(
            [oracle.attention(query[t], key[t], value[t], kv_heads, scale=scale, window=window) for t in tokens]
        )

    exact = expected("float32")
    # A back end may round the query, always or never.
    rounded = {"float32": "float32", "bfloat16": "bfloat16", "int8": "int16"}[kv_dtype]
    if np.abs(found - exact).max() > np.abs(found - expected(rounded)).max():
        exact = expected(rounded)
    if kv_dtype == "bfloat16" and not np.allclose(found, exact, rtol=2e-5, atol=5e-6):
        # It may round the numerators of softmax too: each weight, and their sum, by at most 2^-9 of itself.
        assert np.abs(found - exact).max() <= 2**-8 * np.abs(x).max()
        return
    np.testing.assert_allclose(found, exact, rtol=2e-5, atol=5e-6)


HEAD_DIM = 9
VECTORS = [
    [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, -126.5],  # the scale is 1: halves go to the even neighbour
    [-254, 1, 3, 5, -1, -3, -5, 253, -253],
    [0, -0.0, 0, 0, 0, 0, 0, 0, 0],
    [1e30, 1e-30, -1e30, 0, 5e29, 3e27, -4e27, 1, 2],
]


def int8_program(backend: Any, x: oracle.Array) -> tuple[Any, Any]:
    """Attention of one head whose keys and values are `x` `[tokens, 9]`, over int8 KV."""
    table = backend.matrix([np.concatenate([np.ones_like(x), x, x], axis=1).astype(np.float32)])
    kv = backend.allocate_kv(kv_shape((0,), num_kv_heads=1, head_dim=HEAD_DIM, dtype="int8"))
    scatter_blocks(kv, [len(x)])

    def build(ops: Any) -> Any:
        query, key, value = ops.split(ops.embedding(table), (HEAD_DIM,) * 3)
        ops.write_kv(0, key, value)
        return ops.paged_attention(0, query, scale=1.0, window=1)

    return backend.compile(build, kv, len(x)), kv


def test_int8_keeps_each_value_as_the_contract_says(backend: Any, way: Way) -> None:
    """A token that sees itself alone gives its value back as it is stored."""
    x = oracle.rounded(np.array([*VECTORS, *random(20, HEAD_DIM)]), way.dtype)
    program, _ = int8_program(backend, x)
    (found,) = run_steps(program, [np.arange(len(x))], whole([len(x)]))
    np.testing.assert_allclose(found, oracle.int8(x, HEAD_DIM), rtol=2e-7, atol=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_int8_hands_on_what_is_not_finite(backend: Any, bad: float) -> None:
    x = random(6, HEAD_DIM)
    x[2, 7] = bad
    program, kv = int8_program(backend, x)
    (found,) = run_steps(program, [np.arange(len(x))], whole([len(x)]))
    assert np.array_equal(np.isnan(found).any(axis=1), np.arange(len(x)) == 2)
    assert np.isnan(found[2]).all()
    kv.erase_blocks(kv.block_tables[0, 0, :1].tolist())
    (found,) = run_steps(program, [np.zeros(1, np.int64)], whole([1]))
    assert np.isfinite(found).all(), "a block once erased still fails whoever reads it"


def test_entries_below_the_window_are_not_read(backend: Any) -> None:
    window, length = 20, 150
    x = random(length, 48)
    table = backend.matrix([x])
    kv = backend.allocate_kv(kv_shape((0,), block_size=4))
    scatter_blocks(kv, [length])

    def build(ops: Any) -> Any:
        query, key, value = ops.split(ops.embedding(table), (16, 16, 16))
        ops.write_kv(0, key, value)
        return ops.paged_attention(0, query, scale=0.3, window=window)

    program = backend.compile(build, kv, length)
    tokens = [np.arange(length)]
    (expected,) = run_steps(program, tokens, whole([length]))
    kv.block_tables[0, 0, : (length - 1 - window + 1) // 4] = 0  # as the core leaves them: the null block, poisoned
    (found,) = run_steps(program, tokens, [[(0, length - 1, length)]])
    assert np.array_equal(found, expected[-1:]) or np.abs(found - expected[-1:]).max() < 1e-6
    assert np.isfinite(found).all()


def test_layers_do_not_share_memory(backend: Any, way: Way) -> None:
    """Three layers in two groups, each with its own keys and values."""
    lengths = (40, 9)
    x = random(sum(lengths), 7 * 16, seed=5)
    table = backend.matrix([x])
    kv = backend.allocate_kv(kv_shape((0, 1, 0), dtype=way.dtype))
    scatter_blocks(kv, lengths)

    def build(ops: Any) -> Any:
        query, *pairs = ops.split(ops.embedding(table), [16] * 7)
        for layer in range(3):
            ops.write_kv(layer, pairs[2 * layer], pairs[2 * layer + 1])
        first, second, third = (ops.paged_attention(layer, query, scale=0.5) for layer in range(3))
        return ops.gated(ops.add(first, second), third, "silu")

    tokens = [np.arange(40), np.arange(40, 49)]
    found = run_steps(backend.compile(build, kv, 64), tokens, together(lengths, 16))
    query, *pairs = np.split(oracle.rounded(x, way.dtype), 7, axis=1)
    for t, rows in zip(tokens, found, strict=True):
        a, b, c = (oracle.attention(query[t], pairs[2 * i][t], pairs[2 * i + 1][t], 2, scale=0.5) for i in range(3))
        slack = 2**-7 if way.dtype == "bfloat16" else 1e-5  # for numerators that may be rounded
        np.testing.assert_allclose(rows, oracle.silu_mul(a + b, c), rtol=1e-4, atol=slack)


def test_more_tokens_than_compiled_for_are_refused(backend: Any) -> None:
    table = backend.matrix([random(9, 4)])
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, [9])
    program = backend.compile(lambda ops: ops.embedding(table), kv, 8)
    with pytest.raises(ValueError, match="9 tokens"):
        program.run(step([np.arange(9)], [(0, 0, 9)]))


def test_describes_itself(backend: Any, way: Way) -> None:
    facts = backend.describe()
    assert facts["kernel_path"] and int(facts["num_threads"]) >= 1 and int(facts["kv_layout_version"]) >= 1
    if way.isa:
        assert facts["kernel_path"] == way.isa
