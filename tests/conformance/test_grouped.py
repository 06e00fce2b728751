"""Weights in groups on every back end: alone, and beside others in one matrix."""

from __future__ import annotations

from typing import Any

import numpy as np
import oracle
import pytest

from octavo.backends.bfloat16 import to_float32
from octavo.backends.protocol import GroupedWeight
from support.backends import Way
from support.grouped import FORMATS, expanded, grouped
from support.paged_steps import kv_shape, scatter_blocks, step

FORMAT = pytest.mark.parametrize("format", FORMATS, ids=str)


def random(*shape: int, seed: int = 0) -> oracle.Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def run(backend: Any, x: oracle.Array, weight: Any, bias: Any = None) -> oracle.Array:
    """`x` times the weight, all its rows in one step."""
    kv = backend.allocate_kv(kv_shape(max_tokens=512))
    scatter_blocks(kv, [len(x)])
    table = backend.matrix([x])
    program = backend.compile(lambda ops: ops.linear(ops.embedding(table), weight, bias), kv, len(x))
    return np.array(program.run(step([np.arange(len(x))], [(0, 0, len(x))])))


def seen(part: Any, way: Way) -> oracle.Array:
    """float64 of what a back end makes of a part: only the float ones and torch round to the dtype."""
    values = expanded(part) if isinstance(part, GroupedWeight) else part
    rounds = way.backend == "torch" or not isinstance(part, GroupedWeight)
    return oracle.rounded(values, way.dtype if rounds else "float32")


def check(y: oracle.Array, x: oracle.Array, part: Any, way: Way, bias: oracle.Array) -> None:
    """Within some roundings of float32; on the CPU, within half a step of activations rounded to 8 bits per group."""
    weight, x = seen(part, way), oracle.rounded(x, way.dtype)
    allowed = 2e-6 * (np.abs(x) @ np.abs(weight).T + np.abs(bias))
    if way.backend == "cpu" and isinstance(part, GroupedWeight):
        for start in range(0, x.shape[1], part.group):
            group = slice(start, start + part.group)
            half_step = np.abs(x[:, group]).max(axis=1, keepdims=True) / 127 / 2 * 1.01
            allowed += half_step * np.abs(weight[:, group]).sum(axis=1)
    assert (np.abs(y - (x @ weight.T + bias)) <= allowed).all()


@FORMAT
@pytest.mark.parametrize(("tokens", "width", "out"), [(1, 32, 5), (7, 64, 48), (33, 96, 31), (3, 576, 130), (4, 40, 9)])
def test_linear(backend: Any, way: Way, format: Any, tokens: int, width: int, out: int) -> None:
    part, x = grouped(format, out, width), random(tokens, width)
    bias = random(out, seed=2)
    check(run(backend, x, backend.matrix([part])), x, part, way, np.zeros(out))
    check(run(backend, x, backend.matrix([part]), backend.vector(bias)), x, part, way, bias)


@FORMAT
def test_embedding_gives_exactly_what_the_codes_stand_for(backend: Any, way: Way, format: Any) -> None:
    part = grouped(format, 50, 96)
    kv = backend.allocate_kv(kv_shape())
    scatter_blocks(kv, [50])
    table = backend.matrix([part])
    program = backend.compile(lambda ops: ops.embedding(table), kv, 50)
    found = program.run(step([np.arange(50)[::-1]], [(0, 0, 50)]))
    assert np.array_equal(found, seen(part, way)[::-1])


def stacked() -> list[Any]:
    """As q, k and v of a file that keeps v in more bits, and floats: equal formats do and do not touch."""
    four, other, eight, six = FORMATS[1], FORMATS[2], FORMATS[6], FORMATS[7]
    return [
        *(grouped(four, n, 64, seed=n) for n in (17, 3)),
        grouped(six, 21, 64),
        random(9, 64, seed=3),
        oracle.to_bfloat16(random(5, 64, seed=4)),
        grouped(other, 1, 64),
        *(grouped(eight, n, 64, seed=n) for n in (2, 50)),
        grouped(four, 4, 64, seed=5),
    ]


@pytest.mark.parametrize("with_bias", [False, True])
def test_parts_of_different_formats_in_one_matrix(backend: Any, way: Way, with_bias: bool) -> None:
    parts, x = stacked(), random(12, 64)
    bias = random(sum(map(len, parts)), seed=6)
    y = run(backend, x, backend.matrix(parts), backend.vector(bias) if with_bias else None)
    assert y.shape == (12, len(bias))
    start = 0
    for part in parts:
        rows = slice(start, start + len(part))
        floats = to_float32(part) if getattr(part, "dtype", None) == np.uint16 else part
        check(y[:, rows], x, floats, way, bias[rows] if with_bias else np.zeros(len(part)))
        start += len(part)


def test_a_rows_bits_do_not_depend_on_its_neighbours(backend: Any, way: Way) -> None:
    if way.backend == "torch":
        pytest.skip("does not promise it")
    weight, x = backend.matrix(stacked()), random(40, 64)
    whole = run(backend, x, weight)
    for count in (1, 2, 7, 19):
        assert np.array_equal(run(backend, x[:count], weight), whole[:count])


def test_bytes_are_counted(backend: Any, way: Way) -> None:
    """At least one per code, or half of one; on back ends that expand, those of their dtype."""
    weight = backend.matrix([grouped(FORMATS[1], 48, 64)])
    least = 48 * 32 if backend.keeps_groups else 48 * 64 * 2
    assert least <= backend.num_bytes(weight) <= 48 * 64 * 4
