"""Integers in 32-bit words: the native unpacker against single bits, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import _native
from octavo.weights.quantized.packed import AWQ_ORDER, unpack_codes, unpack_words
from support.quantized import packed


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (8, 32), (40, 64), (130, 200), (264, 129)])
def test_every_code_comes_back(shape: tuple[int, int], bits: int, num_threads: int) -> None:
    q = np.random.default_rng([*shape, bits]).integers(0, 1 << bits, shape)
    found = unpack_codes(packed(q, bits), "rows", bits, shape, num_threads)
    np.testing.assert_array_equal(found, q)
    found = unpack_codes(np.ascontiguousarray(packed(q, bits).T), "columns", bits, shape, num_threads)
    np.testing.assert_array_equal(found, q)
    np.testing.assert_array_equal(unpack_words(packed(q, bits), bits)[:, : shape[1]], q)
    if bits == 4 and shape[0] % 8 == 0:
        order = np.concatenate([np.array(AWQ_ORDER) + first for first in range(0, shape[0], 8)])
        found = unpack_codes(packed(q.T[:, order], 4), "awq", 4, shape, num_threads)
        np.testing.assert_array_equal(found, q)


def test_wrong_arguments_are_refused_and_nothing_is_written() -> None:
    words, codes = np.full((4, 4), 0x11111111, np.uint32), np.full((4, 32), 7, np.uint8)
    for arguments, why in [
        ((words[:3], "columns", 4, codes), "shape"),
        ((words, "awq", 4, codes), "shape"),
        ((words[:3], "rows", 4, codes), "shape"),
        ((words, "rows", 8, codes), "shape"),
        ((words, "rows", 3, codes), "bits"),
        ((words, "awq", 8, codes), "bits"),
        ((words, "sideways", 4, codes), "packing"),
        ((words, "rows", 4, codes, 0), "num_threads"),
        ((np.zeros((12, 1), np.uint32), "awq", 4, np.zeros((12, 12), np.uint8)), "shape"),
    ]:
        with pytest.raises(ValueError, match=why):
            _native.unpack_codes(*arguments)
    assert (codes == 7).all()
