"""Native dequantisers against the `gguf` package's, bit by bit."""

from __future__ import annotations

import threading
import time

import gguf
import numpy as np
import numpy.typing as npt
import pytest

from octavo import _native
from octavo.weights import ggml_types
from octavo.weights.dequantize import dequantize
from support.quantized import E4M3

BLOCKS = [name for name in ggml_types.readable_names() if ggml_types.BY_NAME[name].block_size > 1]
QUANTIZABLE = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0"]
"""Formats that the gguf package can also write."""


def oracle(data: npt.NDArray[np.uint8], name: str, num_elements: int) -> npt.NDArray[np.float32]:
    kind = ggml_types.BY_NAME[name]
    rows = data.reshape(-1, kind.block_bytes)
    with np.errstate(all="ignore"):
        return gguf.dequantize(rows, gguf.GGMLQuantizationType(kind.id)).reshape(num_elements)


def rounded_to_bf16(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Round to nearest even, in integers wide enough not to wrap."""
    bits = values.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> np.uint64(16)) & np.uint64(1))) >> np.uint64(16)).astype(np.uint16)


def assert_same_bits(found: npt.NDArray[np.float32], wanted: npt.NDArray[np.float32]) -> None:
    """Equal bits, a NaN being equal to any other."""
    nan = np.isnan(wanted)
    np.testing.assert_array_equal(np.isnan(found), nan)
    np.testing.assert_array_equal(found.view(np.uint32)[~nan], wanted.view(np.uint32)[~nan])


def check(data: npt.NDArray[np.uint8], name: str, num_elements: int, num_threads: int) -> None:
    """Both outputs, on every kernel path of this CPU."""
    wanted = oracle(data, name, num_elements)
    nan = np.isnan(wanted)
    for path in _native.supported_paths():
        wide, narrow = np.empty(num_elements, np.float32), np.empty(num_elements, np.uint16)
        _native.dequantize(data, name, wide, num_threads, path)
        _native.dequantize(data, name, narrow, num_threads, path)
        assert_same_bits(wide, wanted)
        np.testing.assert_array_equal(narrow[~nan], rounded_to_bf16(wanted)[~nan])
        assert ((narrow[nan] & 0x7FFF) > 0x7F80).all()


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", BLOCKS)
def test_random_blocks(name: str, num_threads: int) -> None:
    """Any bytes: scales are subnormal, infinite and NaN too. More elements than one thread's chunk."""
    kind = ggml_types.BY_NAME[name]
    num_blocks = 3 * (1 << 16) // kind.block_size + 7
    data = np.random.default_rng(kind.id).integers(0, 256, num_blocks * kind.block_bytes, dtype=np.uint8)
    check(data, name, num_blocks * kind.block_size, num_threads)


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_real_weights(name: str) -> None:
    values = np.random.default_rng(1).normal(0, 0.05, (64, 96)).astype(np.float32)
    data = gguf.quantize(values, gguf.GGMLQuantizationType(ggml_types.BY_NAME[name].id)).reshape(-1)
    check(data, name, values.size, 1)
    found = dequantize(data, name, values.shape, "float32")
    assert np.abs(found - values).max() < 0.03


def test_every_half() -> None:
    """All 65,536 half-precision values."""
    halves = np.arange(1 << 16, dtype=np.uint16)
    check(halves.view(np.uint8), "f16", 1 << 16, 2)
    found = dequantize(halves.view(np.uint8), "f16", (1 << 16,), "float32")
    assert_same_bits(found, halves.view(np.float16).astype(np.float32))  # type: ignore[arg-type]


def test_every_bfloat16_keeps_its_bits() -> None:
    stored = np.arange(1 << 16, dtype=np.uint16)
    narrow = dequantize(stored.view(np.uint8), "bf16", (1 << 16,), "bfloat16")
    nan = (stored & 0x7FFF) > 0x7F80
    np.testing.assert_array_equal(narrow[~nan], stored[~nan])
    wide = dequantize(stored.view(np.uint8), "bf16", (1 << 16,), "float32")
    np.testing.assert_array_equal(wide.view(np.uint32)[~nan], (stored.astype(np.uint32) << 16)[~nan])


def test_rounding_of_float32() -> None:
    """Ties go to the even neighbour; the largest floats round to infinity; NaN stays NaN."""
    bits = np.array(
        [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FFFFFFF, 0x7F800001, 1], np.uint32
    )
    found = dequantize(bits.view(np.uint8), "f32", (9,), "bfloat16")
    assert found[:6].tolist() == [0x3F80, 0x3F82, 0x3F81, 0x3F80, 0x7F80, 0xFF80]
    assert ((found[6:8] & 0x7FFF) > 0x7F80).all()
    assert found[8] == 0


@pytest.mark.parametrize(("name", "type_name"), [("f8_e4m3", "E4M3"), ("f8_e5m2", "E5M2")])
def test_every_8_bit_float(name: str, type_name: str) -> None:
    """By the definitions: E4M3 has one NaN of each sign and no infinity, E5M2 is the upper half of a float16."""
    stored = np.arange(256, dtype=np.uint8)
    wanted = E4M3.astype(np.float32) if type_name == "E4M3" else (stored.astype(np.uint16) << 8).view(np.float16)
    for path in _native.supported_paths():
        found = np.empty(256, np.float32)
        _native.dequantize(stored, name, found, 1, path)
        assert_same_bits(found, wanted.astype(np.float32))


def test_float64_is_rounded_to_float32() -> None:
    values = np.random.default_rng(4).normal(0, 1, 77) * 10.0 ** np.random.default_rng(5).integers(-50, 50, 77)
    with np.errstate(over="ignore"):
        wanted = values.astype(np.float32)
    assert np.isinf(wanted).any() and (wanted == 0).any()
    for path in _native.supported_paths():
        found = np.empty(77, np.float32)
        _native.dequantize(values.view(np.uint8), "f64", found, 2, path)
        assert_same_bits(found, wanted)


@pytest.mark.parametrize("num_elements", [0, 1, 31, 32, 33, 1000])
@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_plain_formats_of_any_length(name: str, num_elements: int) -> None:
    size = ggml_types.BY_NAME[name].block_bytes
    data = np.random.default_rng(2).integers(0, 256, num_elements * size, dtype=np.uint8)
    if num_elements:
        check(data, name, num_elements, 2)
    else:
        assert dequantize(data, name, (0,), "float32").shape == (0,)


def test_into_rows_of_a_larger_array() -> None:
    values = np.arange(64, dtype=np.float32).reshape(2, 32)
    whole = np.zeros((5, 32), np.float32)
    given = whole[1:3]
    assert dequantize(values.reshape(-1).view(np.uint8), "f32", (2, 32), "float32", out=given) is given
    np.testing.assert_array_equal(whole[1:3], values)
    assert not whole[0].any()
    assert not whole[3:].any()


def test_wrong_arguments_are_refused_and_nothing_is_written() -> None:
    data = np.zeros(20, np.uint8)
    out = np.full(64, 7, np.float32)
    for arguments, error in [
        ((data, "q4_1", out), ValueError),  # bytes for 32 elements
        ((data[:19], "q4_1", out[:32]), ValueError),
        ((data, "q4_1", out[:20]), ValueError),  # not whole blocks
        ((data, "q9_9", out[:32]), ValueError),
        ((data, "q2_k", out[:32]), ValueError),
        ((data, "q8_k", out[:32]), ValueError),
        ((data, "q4_1", out[:32].astype(np.float64)), ValueError),
        ((data, "q4_1", out[:32], 0), ValueError),
        ((data, "q4_1", out[:32], 10**6), ValueError),
        ((data, "q4_1", out[::2]), TypeError),  # not contiguous
        ((data, "q4_1", out[:32], 1, "sse9"), ValueError),
    ]:
        with pytest.raises(error):
            _native.dequantize(*arguments)
    out.flags.writeable = False
    with pytest.raises(TypeError):
        _native.dequantize(data, "q4_1", out[:32])
    assert (out == 7).all()
    with pytest.raises(ValueError, match="must be float32 or bfloat16"):
        dequantize(data, "q4_1", (32,), "float16")
    with pytest.raises(ValueError, match="must hold 32"):
        dequantize(data, "q4_1", (32,), "bfloat16", out=np.zeros(32, np.float32))


def test_other_threads_run_meanwhile() -> None:
    """The GIL is released: a Python thread makes progress while one call runs."""
    data = np.zeros(1 << 24, np.uint8)
    out = np.empty(1 << 22, np.float32)
    ticks, stop = [], threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        longest = 0
        for _ in range(20):
            begin = time.perf_counter()
            _native.dequantize(data, "f32", out, 1)
            end = time.perf_counter()
            longest = max(longest, sum(begin < t < end for t in ticks))
    finally:
        stop.set()
        thread.join()
    assert longest >= 1
