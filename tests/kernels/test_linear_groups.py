"""Products with weights in groups, packing them and reading them back, on every path this CPU has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dense import PATHS, check_rows_alone
from grouped import FORMATS, GROUP_SHAPES, GroupWeight

from octavo import _native

PATH_AND_FORMAT = [(isa, name) for isa in PATHS for name in FORMATS]
# A product adds one number for each group, in float32.
ROUNDING = 2.0**-23
ROWS = (*range(1, 41), 100)


@pytest.fixture(scope="module")
def pools() -> list[Any]:
    return [_native.ThreadPool(n) for n in (1, 2, 3)]


def activations(count: int, k: int) -> Any:
    x = np.random.default_rng([count, k]).standard_normal((count, k), np.float32)
    x *= np.exp(np.random.default_rng(7).uniform(-6, 6, (1, k))).astype(np.float32)
    x[count // 2, : k // 2] = 0.0
    return x


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
@pytest.mark.parametrize("shape", GROUP_SHAPES, ids=str)
def test_matches_the_exact_product_of_rounded_activations(
    isa: str, name: str, shape: tuple[int, int], pools: list[Any]
) -> None:
    n, k = shape
    weight = GroupWeight(n, k, isa, name)
    bias = np.random.default_rng(3).standard_normal(n).astype(np.float32)
    for count in (1, 2, 7, 23):
        x = activations(count, k)
        product, size = weight.expect(x)
        # Each group is rounded when its scales are multiplied and when it is added.
        tolerance = (3 + weight.scales.shape[1]) * ROUNDING * (size + np.abs(bias))
        assert (np.abs(weight.linear(x, pools[1]) - product) <= tolerance).all()
        assert (np.abs(weight.linear(x, pools[1], bias) - (product + bias)) <= tolerance).all()


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_is_near_the_product_with_the_plain_weight(isa: str, name: str, pools: list[Any]) -> None:
    weight = GroupWeight(70, 576, isa, name)
    x = np.random.default_rng(5).standard_normal((9, 576)).astype(np.float32)
    plain = x.astype(np.float64) @ weight.values.T.astype(np.float64)
    # An activation is off by at most half a step; steps are about max |x| / 127 = 3 / 127.
    error = np.sqrt(np.mean((weight.linear(x, pools[1]) - plain) ** 2))
    assert error < 0.012 * np.sqrt(np.mean(plain**2))


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
@pytest.mark.parametrize("shape", [(5, 3), (31, 95), (97, 129), (40, 576)], ids=str)
def test_bits_of_a_row_depend_on_the_row_alone(isa: str, name: str, shape: tuple[int, int], pools: list[Any]) -> None:
    n, k = shape
    weight, bias = GroupWeight(n, k, isa, name), np.random.default_rng(3).standard_normal(n).astype(np.float32)
    x = activations(512, k)
    check_rows_alone(weight, x, bias, pools, ROWS)


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_bits_do_not_depend_on_the_chunks_of_rows_of_a_wide_weight(isa: str, name: str, pools: list[Any]) -> None:
    """K so large that one tile takes only a few rows: the blocks of rows fall differently for every M."""
    weight, x = GroupWeight(20, 24000, isa, name), activations(47, 24000)
    whole = weight.linear(x, pools[1])
    for count in (1, 5, 8, 9, 21):
        assert np.array_equal(weight.linear(x[:count], pools[2]), whole[:count])


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_every_code_reaches_its_place(isa: str, name: str, pools: list[Any]) -> None:
    """127 times a unit vector is kept exactly, and so is what it reads: column by column, without rounding."""
    weight = GroupWeight(37, 101, isa, name)
    weight.scales[:] = 1.0
    if weight.minimums is not None:
        weight.minimums[:] = np.round(weight.minimums * 8)
    weight.pack(slice(None), 0, pools[1])
    assert np.array_equal(weight.linear(127 * np.eye(101, dtype=np.float32), pools[1]), 127 * weight.values.T)


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_the_largest_sums_of_integers_do_not_wrap(isa: str, name: str, pools: list[Any]) -> None:
    """Every code at its end and every activation at 127 or -127: on AVX2 the 16-bit sums are nearly full."""
    weight = GroupWeight(18, 96, isa, name)
    weight.codes[::2], weight.codes[1::2] = (1 << weight.format.bits) - 1, 0
    weight.scales[:] = 1.0
    if weight.minimums is not None:
        weight.minimums[:] = 0.0
    weight.pack(slice(None), 0, pools[1])
    x = np.full((2, 96), 127.0, np.float32) * np.array([[1], [-1]], np.float32)
    assert np.array_equal(weight.linear(x, pools[1]), x @ weight.values.T)


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_what_is_not_finite_stays_in_its_row(isa: str, name: str, pools: list[Any]) -> None:
    weight, x = GroupWeight(40, 65, isa, name), activations(12, 65)
    clean = weight.linear(x, pools[1])
    x[3, 64], x[7, 0], x[8, 33] = np.nan, np.inf, -np.inf
    broken = weight.linear(x, pools[1])
    assert np.isnan(broken[[3, 7, 8]]).all()
    others = [0, 1, 2, 4, 5, 6, 9, 10, 11]
    assert np.array_equal(broken[others], clean[others])


@pytest.mark.parametrize("name", FORMATS)
def test_paths_round_activations_alike(name: str, pools: list[Any]) -> None:
    """Also those of which the scale is subnormal, and halves, which go to the even side."""
    x = activations(6, 96)
    x[1] = np.float32(1e-44) * np.arange(96)
    x[2], x[3] = 1e35, np.arange(96) - 47.5
    x[3, ::32] = 127.0
    results = [GroupWeight(20, 96, isa, name).linear(x, pools[0]) for isa in PATHS]
    size = GroupWeight(20, 96, PATHS[0], name).expect(x)[1]
    for result in results[1:]:
        assert (np.abs(result - results[0].astype(np.float64)) <= 8 * ROUNDING * size + 1e-40).all()


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
@pytest.mark.parametrize("shape", GROUP_SHAPES, ids=str)
def test_embedding_reads_back_the_rows(isa: str, name: str, shape: tuple[int, int], pools: list[Any]) -> None:
    n, k = shape
    weight = GroupWeight(n, k, isa, name)
    ids = np.random.default_rng(5).integers(0, n, 40).astype(np.int32)
    ids[:2] = 0, n - 1
    out = np.full((42, k), 12345.0, np.float32)
    _native.embedding(weight.matrix, ids, out[1:-1], pools[1])
    assert np.array_equal(out[1:-1].view(np.int32), weight.values[ids].view(np.int32))
    assert (out[[0, -1]] == 12345.0).all()


@pytest.mark.parametrize("name", [n for n, f in FORMATS.items() if f.half_scales])
@pytest.mark.parametrize("isa", PATHS)
def test_every_half_is_kept(isa: str, name: str, pools: list[Any]) -> None:
    """All 65,536, as scales of one code each."""
    halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float32)
    form = FORMATS[name]
    codes = np.full((65536, 1), form.zero + 1, np.uint8)
    matrix = _native.Matrix(_native.Arena(), 65536, 1, form.native(), isa)
    matrix.pack_groups(codes, halves[:, None], np.zeros((65536, 1), np.float32) if form.minimum else None, 0, pools[1])
    out = np.empty((65536, 1), np.float32)
    _native.embedding(matrix, np.arange(65536, dtype=np.int32), out, pools[1])
    assert np.array_equal(out[:, 0], halves, equal_nan=True)


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
@pytest.mark.parametrize("shape", [(5, 3), (48, 16), (97, 129)], ids=str)
def test_packing_in_parts_is_packing_whole(isa: str, name: str, shape: tuple[int, int]) -> None:
    n, k = shape
    whole = _native.packed(GroupWeight(n, k, isa, name).matrix)
    for parts in [(1, n - 1), (n // 3, n - n // 3), (1, 0, 2, n - 3)]:
        assert _native.packed(GroupWeight(n, k, isa, name, parts=parts).matrix) == whole


@pytest.mark.parametrize(("isa", "name"), PATH_AND_FORMAT)
def test_packing_a_part_leaves_the_others(isa: str, name: str, pools: list[Any]) -> None:
    weight = GroupWeight(100, 45, isa, name)
    changed = weight.values
    changed[70:83] = weight.values[40:53]
    weight.pack(slice(40, 53), 70, pools[1])
    out = np.empty((100, 45), np.float32)
    _native.embedding(weight.matrix, np.arange(100, dtype=np.int32), out, pools[1])
    assert np.array_equal(out, changed)


@pytest.mark.parametrize("shape", [(32, 32), (33, 64), (576, 576)], ids=str)
def test_nothing_lies_beside_the_weight(shape: tuple[int, int]) -> None:
    """Bytes for each element: what the model file takes, if whole panels and records are filled."""
    n, k = -(-shape[0] // 32) * 32, -(-shape[1] // 64) * 64
    bytes_per_group = {"int4_zero": 18, "int4_minimum": 20, "int8_zero": 34, "int8_minimum": 36}
    for name, each in bytes_per_group.items():
        assert GroupWeight(n, k, PATHS[0], name).matrix.nbytes == n * k // 32 * each


def test_no_rows_is_no_work(pools: list[Any]) -> None:
    for isa in PATHS:
        for name in FORMATS:
            assert GroupWeight(3, 4, isa, name).linear(np.empty((0, 4), np.float32), pools[1]).shape == (0, 3)


@pytest.mark.parametrize(
    "form",
    [
        _native.WeightFormat.groups(4, 16, zero=8, half_scales=True),
        _native.WeightFormat.groups(8, 32, zero=8, minimum=True),
        _native.WeightFormat.groups(4, 16, zero=8, minimum=True),
        _native.WeightFormat.groups(8, 16, minimum=True),
        _native.WeightFormat.groups(8, 16, zero=8, half_scales=True),
    ],
)
def test_formats_without_kernels_are_refused(form: _native.WeightFormat) -> None:
    for isa in PATHS:
        with pytest.raises(ValueError, match=r"^format: "):
            _native.Matrix(_native.Arena(), 4, 4, form, isa)
