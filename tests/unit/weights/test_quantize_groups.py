"""Floats rounded to groups: within half a step, better than plain rounding, the same everywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.backends.bfloat16 import to_bits, to_float32
from octavo.backends.grouped import expand
from octavo.backends.protocol import GroupedWeight
from octavo.weights.groups import quantize

Floats = npt.NDArray[Any]

BITS = pytest.mark.parametrize("bits", [4, 8])


def normal(*shape: int, spread: float = 0.05, seed: int = 0) -> Floats:
    return np.random.default_rng([seed, *shape]).normal(0, spread, shape).astype(np.float32)


def plain_int4(values: Floats) -> Floats:
    """Minimum and range of each group of 32, with float16 scales: the usual way."""
    groups = values.reshape(len(values), -1, 32)
    low = groups.min(-1, keepdims=True)
    scale = ((groups.max(-1, keepdims=True) - low) / 15).astype(np.float16).astype(np.float32)
    low = low.astype(np.float16).astype(np.float32)
    codes = np.clip(np.rint((groups - low) / np.where(scale == 0, np.float32(1), scale)), 0, 15)
    return (codes * scale + low).reshape(values.shape)


def of_groups(errors: Floats) -> Floats:
    return np.square(errors.astype(np.float64)).reshape(len(errors), -1, 32).sum(-1)


def same(a: GroupedWeight, b: GroupedWeight) -> bool:
    minimums = a.minimums is b.minimums is None or np.array_equal(a.minimums, b.minimums, equal_nan=True)  # type: ignore[arg-type]
    return np.array_equal(a.codes, b.codes) and np.array_equal(a.scales, b.scales, equal_nan=True) and minimums


def test_int8_is_within_half_a_step() -> None:
    values = normal(70, 96)
    found = quantize(values, 8)
    assert (found.bits, found.group, found.zero, found.minimums, found.half_scales) == (8, 32, 128, None, True)
    assert np.array_equal(found.scales, found.scales.astype(np.float16))
    largest = np.abs(values).reshape(70, 3, 32).max(-1)
    np.testing.assert_allclose(found.scales, largest / 127, rtol=2**-11)
    step = np.repeat(found.scales, 32, axis=1)
    # The largest value may pass 127 steps by what rounding took from the scale.
    assert (np.abs(expand(found) - values) <= step * 0.5 * (1 + 1e-5) + np.repeat(largest, 32, axis=1) * 2**-11).all()
    assert (found.codes.reshape(70, 3, 32).max(-1).clip(128 - 1) - 128 <= 127).all()
    assert (np.abs(found.codes.astype(int) - 128).reshape(70, 3, 32).max(-1) == 127).all(), "the range is used"


def test_int4_is_never_worse_than_plain_rounding_and_clearly_better_on_the_whole() -> None:
    values = normal(300, 320)
    found = quantize(values, 4)
    assert (found.bits, found.group, found.zero, found.half_scales) == (4, 32, 0, True)
    assert found.minimums is not None
    assert np.array_equal(found.minimums, found.minimums.astype(np.float16))
    assert np.array_equal(found.scales, found.scales.astype(np.float16))
    assert found.codes.max() <= 15
    ours, plain = of_groups(expand(found) - values), of_groups(plain_int4(values) - values)
    assert (ours <= plain * (1 + 1e-4)).all()
    assert ours.sum() < 0.85 * plain.sum()


@BITS
def test_bits_are_the_same_on_every_path_and_any_number_of_threads(bits: int) -> None:
    values = normal(401, 352)
    values[5, 40], values[9, 3] = np.nan, np.inf
    wanted = quantize(values, bits)
    for path in _native.supported_paths():
        for num_threads in (1, 3):
            codes, scales = np.empty_like(wanted.codes), np.empty_like(wanted.scales)
            minimums = None if bits == 8 else np.empty_like(scales)
            _native.quantize(values, bits, codes, scales, minimums, num_threads, path)
            assert np.array_equal(codes, wanted.codes)
            assert np.array_equal(scales, wanted.scales, equal_nan=True)
            if minimums is not None:
                assert wanted.minimums is not None
                assert np.array_equal(minimums, wanted.minimums, equal_nan=True)


@BITS
def test_bfloat16_is_read_as_it_is(bits: int) -> None:
    stored = to_bits(normal(33, 64))
    assert same(quantize(stored, bits), quantize(to_float32(stored), bits))


@BITS
@pytest.mark.parametrize("columns", [1, 7, 31, 33, 63])
def test_a_short_last_group_and_the_rows_around_it(bits: int, columns: int) -> None:
    values = normal(41, columns, seed=2)
    found = quantize(values, bits)
    assert found.scales.shape == (41, -(-columns // 32))
    step = np.repeat(found.scales, 32, axis=1)[:, :columns]
    limit = 0.6 if bits == 8 else 2.0  # int4 may cut an outlier off
    assert (np.abs(expand(found) - values) <= limit * step + np.abs(values) * 2**-10).all()
    alone = [quantize(values[i : i + 1], bits) for i in range(41)]
    assert np.array_equal(np.concatenate([each.codes for each in alone]), found.codes)


@BITS
@pytest.mark.parametrize("value", [0.0, 1.0, -0.37, 1e-7, -3e-6, 60000.0, -2.5e-8])
def test_equal_values_come_back(bits: int, value: float) -> None:
    found = expand(quantize(np.full((3, 64), value, np.float32), bits))
    # Half a step of int8, or float16's rounding of the minimum; float16's subnormals are 2^-24 apart.
    assert (np.abs(found - value) <= abs(value) * (2**-7.9 if bits == 8 else 2**-11) + 2**-24).all()


@BITS
@pytest.mark.parametrize("spread", [1e-8, 1e-6, 1e-4, 1e3])
def test_any_magnitude(bits: int, spread: float) -> None:
    values = normal(16, 128, spread=spread)
    errors = np.abs(expand(quantize(values, bits)) - values)
    assert errors.max() <= spread * (0.05 if bits == 8 else 0.5) + 2**-23


@BITS
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e5, -1e30])
def test_what_float16_cannot_hold_makes_its_group_nan_and_no_other(bits: int, bad: float) -> None:
    values = normal(20, 96)
    values[7, 40] = bad
    found = quantize(values, bits)
    broken = np.isnan(found.scales)
    assert broken[7, 1] and broken.sum() == 1
    assert np.isnan(expand(found)[7, 32:64]).all()
    clean = values.copy()
    clean[7, 40] = 0
    others = np.ones((20, 96), bool)
    others[7, 32:64] = False
    assert np.array_equal(expand(found)[others], expand(quantize(clean, bits))[others])


def test_wrong_arguments_are_refused() -> None:
    rows, codes, scales = normal(2, 64), np.zeros((2, 64), np.uint8), np.zeros((2, 2), np.float32)
    for arguments, why in [
        ((rows, 5, codes, scales, None), "bits"),
        ((rows, 4, codes, scales, None), "minimums"),
        ((rows, 8, codes, scales, scales.copy()), "minimums"),
        ((rows, 8, codes[:, :32].copy(), scales, None), "codes"),
        ((rows, 8, codes, scales[:1], None), "scales"),
        ((rows.astype(np.float64), 8, codes, scales, None), "float32"),
        ((rows, 8, codes, scales, None, 0), "num_threads"),
    ]:
        with pytest.raises(ValueError, match=why):
            _native.quantize(*arguments)
