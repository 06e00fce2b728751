"""Stored integers read as they are: what they stand for is what the dequantisers give, bit by bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import tiny_models as tiny
from test_dequantize import assert_same_bits, oracle

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.backends.grouped import expand
from octavo.backends.protocol import GroupedWeight
from octavo.weights import ggml_types
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.groups import hollow_groups, read_groups

Bytes = npt.NDArray[np.uint8]

LAYOUTS = {
    "q4_0": (4, 32, 8, False, True),
    "q4_1": (4, 32, 0, True, True),
    "q5_0": (8, 32, 16, False, True),
    "q5_1": (8, 32, 0, True, True),
    "q8_0": (8, 32, 128, False, True),
    "q4_k": (4, 32, 0, True, False),
    "q5_k": (8, 32, 0, True, False),
    "q6_k": (8, 16, 32, False, False),
    "q2_k": (4, 16, 0, True, False),
    "q3_k": (4, 16, 4, False, False),
    "iq1_s": (8, 32, 128, False, False),
    "iq1_m": (8, 16, 128, False, False),
    "iq2_xxs": (8, 32, 128, False, False),
    "iq2_xs": (8, 16, 128, False, False),
    "iq2_s": (8, 16, 128, False, False),
    "iq3_xxs": (8, 32, 128, False, False),
    "iq3_s": (8, 32, 128, False, False),
    "iq4_nl": (8, 32, 128, False, True),
    "iq4_xs": (8, 32, 128, False, False),
    "tq1_0": (4, 32, 1, False, True),
    "tq2_0": (4, 32, 1, False, True),
    "mxfp4": (8, 32, 128, False, False),
    "nvfp4": (8, 16, 128, False, False),
}
_HALVES_AT: dict[str, list[int]] = {
    "q2_k": [80, 82],
    "q3_k": [108],
    "q6_k": [208],
    "tq1_0": [52],
    "tq2_0": [64],
    "q4_1": [0, 2],
    "q5_1": [0, 2],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "iq1_m": [],
    "mxfp4": [],
    "nvfp4": [],
}
HALVES_AT = {name: _HALVES_AT.get(name, [0]) for name in LAYOUTS}
"""Bytes of a block at which float16 numbers lie."""
EXTREME = [0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x0000, 0x8000]
"""The smallest and largest subnormal, the smallest normal, the largest, and the zeros."""


def blocks(name: str, count: int, *, seed: int = 0) -> Bytes:
    kind = ggml_types.BY_NAME[name]
    return np.random.default_rng([seed, kind.id]).integers(0, 256, (count, kind.block_bytes), dtype=np.uint8)


def read(data: Bytes, name: str, shape: tuple[int, int], path: str, num_threads: int = 1) -> GroupedWeight:
    """On one kernel path."""
    bits, group, zero, minimum, half_scales = LAYOUTS[name]
    codes = np.full(shape, 255, np.uint8)
    scales = np.empty((shape[0], shape[1] // group), np.float32)
    minimums = np.empty_like(scales) if minimum else None
    _native.read_groups(data.reshape(-1), name, codes, scales, minimums, num_threads, path)
    return GroupedWeight(
        codes=codes, scales=scales, minimums=minimums, bits=bits, group=group, zero=zero, half_scales=half_scales
    )


def check(data: Bytes, name: str, shape: tuple[int, int], num_threads: int = 1) -> None:
    wanted = oracle(data, name, shape[0] * shape[1]).reshape(shape)
    dequantised = np.empty(shape, np.float32)
    for path in _native.supported_paths():
        found = read(data, name, shape, path, num_threads)
        assert found.codes.max() < 1 << found.bits
        assert_same_bits(expand(found), wanted)
        _native.dequantize(data.reshape(-1), name, dequantised, 1, path)
        assert_same_bits(expand(found), dequantised)
        if found.half_scales:
            for values in (found.scales, found.minimums):
                assert values is None or np.array_equal(values, values.astype(np.float16), equal_nan=True)


def test_every_type_of_integers_has_a_layout() -> None:
    found = {name: _native.group_layout(name) for name in ggml_types.readable_names()}
    assert {name: layout for name, layout in found.items() if layout is not None} == LAYOUTS
    assert {name for name, layout in found.items() if layout is None} == {"f64", "f32", "f16", "bf16"}


def test_everything_that_the_gguf_package_expands_is_readable() -> None:
    packages = {kind.name.lower() for kind in gguf.quants._type_traits} | {"f32", "f16"}
    assert packages <= set(ggml_types.readable_names())
    for kind, (elements, num_bytes) in gguf.GGML_QUANT_SIZES.items():
        ours = ggml_types.BY_ID[kind.value]
        assert (ours.name, ours.block_size, ours.block_bytes) == (kind.name.lower(), elements, num_bytes)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_stored_goes_into_the_kernels_and_comes_back(name: str) -> None:
    """Through the CPU back end's own layout, on every path; the size is known beforehand."""
    kind = ggml_types.BY_NAME[name]
    shape = (19, 2 * 256)
    data = blocks(name, shape[0] * shape[1] // kind.block_size, seed=3)
    for at in HALVES_AT[name]:
        data[:, at : at + 2] = np.array([0.25], np.float16).view(np.uint8)
    grouped, hollow = read_groups(data.reshape(-1), name, shape), hollow_groups(name, shape)
    assert grouped is not None and hollow is not None
    for isa in _native.supported_paths():
        backend = CpuBackend("float32", num_threads=1, isa=isa)
        weight = backend.matrix([grouped])
        assert backend.num_bytes(weight) == backend.matrix_bytes([hollow])
        out = np.empty(shape, np.float32)
        _native.embedding(weight, np.arange(19, dtype=np.int32), out, _native.ThreadPool(1))
        assert_same_bits(out, expand(grouped))


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("name", LAYOUTS)
def test_random_blocks(name: str, num_threads: int) -> None:
    """Any bytes: scales are infinite and NaN too. More elements than one thread's chunk, in rows of some blocks."""
    width = 6 * 256
    rows = 2 * (1 << 16) // width + 3
    check(blocks(name, rows * width // ggml_types.BY_NAME[name].block_size), name, (rows, width), num_threads)


@pytest.mark.parametrize("half", EXTREME, ids=hex)
@pytest.mark.parametrize("name", LAYOUTS)
def test_extreme_scales(name: str, half: int) -> None:
    """Every pair of a scale with each of the extremes in the other place."""
    data = blocks(name, len(EXTREME), seed=1)
    for at, values in zip(HALVES_AT[name], ([half] * len(EXTREME), EXTREME), strict=False):
        data[:, at : at + 2] = np.array(values, np.uint16).view(np.uint8).reshape(-1, 2)
    check(data, name, (2, len(EXTREME) // 2 * ggml_types.BY_NAME[name].block_size))


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name.startswith("iq")])
def test_every_entry_of_a_codebook(name: str) -> None:
    """So many random blocks that no entry is left out, by the oracle's own table."""
    kind = ggml_types.BY_NAME[name]
    data = blocks(name, 2048, seed=2)
    traits = gguf.quants._type_traits[gguf.GGMLQuantizationType(kind.id)]
    traits.init_grid()
    width = 1 if traits.grid is None else traits.grid_shape[1]
    found = read(data, name, (1, 2048 * kind.block_size), "portable").codes.reshape(-1, width).astype(int) - 128
    entries = len(np.unique(np.abs(found), axis=0)) if width > 1 else len(np.unique(found))
    if name.startswith("iq1"):
        found = np.rint(found / 8).astype(int)
        entries = len(np.unique(found, axis=0))
    assert entries == (16 if width == 1 else traits.grid_shape[0])
    check(data, name, (64, 32 * kind.block_size))


def test_signs_of_zero_stay() -> None:
    """Without a minimum nothing is added: 0 times a negative scale is -0."""
    data = np.zeros((1, 18), np.uint8)
    data[0, :2] = np.array([-0.5], np.float16).view(np.uint8)
    data[0, 2:] = 0x88
    assert np.signbit(expand(read(data, "q4_0", (1, 32), "portable"))).all()


@pytest.mark.parametrize("type_name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_a_checkpoints_rows_are_in_rotate_half_order(tmp_path: Path, type_name: str, arch: str) -> None:
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), arch=arch, type_name=type_name))
    for name in checkpoint.names():
        if len(checkpoint.info(name).shape) == 2:
            grouped = checkpoint.read_grouped(name)
            assert grouped is not None
            assert_same_bits(expand(grouped), checkpoint.read(name, "float32"))
    checkpoint.close()


@pytest.mark.parametrize("type_name", ["F32", "F16", "BF16"])
def test_floats_are_not_in_groups(tmp_path: Path, type_name: str) -> None:
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), type_name=type_name))
    assert checkpoint.read_grouped("token_embd.weight") is None
    checkpoint.close()


def test_wrong_arguments_are_refused_and_nothing_is_written() -> None:
    data, codes, scales = np.zeros(40, np.uint8), np.full((2, 32), 7, np.uint8), np.full((2, 1), 7, np.float32)
    minimums = scales.copy()
    for arguments, why in [
        ((data[:39], "q4_1", codes, scales, minimums), "bytes are not"),
        ((data, "q4_0", codes, scales, None), "bytes are not"),
        ((data, "q4_1", codes.reshape(4, 16), scales, minimums), "whole blocks"),
        ((data, "f32", codes, scales, None), "not stored in groups"),
        ((data, "q8_k", codes, scales, None), "no dequantiser"),
        ((data, "q4_1", codes, scales, None), "minimums"),
        ((data[:36], "q4_0", codes, scales, minimums), "minimums"),
        ((data, "q4_1", codes, scales[:1], minimums), "scales"),
        ((data, "q4_1", codes, scales, minimums[:1]), "minimums"),
        ((data, "q4_1", codes, scales, minimums, 0), "num_threads"),
        ((data, "q4_1", codes, scales, minimums, 1, "sse9"), "no kernel path"),
    ]:
        with pytest.raises(ValueError, match=why):
            _native.read_groups(*arguments)
    assert (codes == 7).all() and (scales == 7).all() and (minimums == 7).all()


def test_the_default_path_and_threads_are_found() -> None:
    values = np.random.default_rng(1).normal(0, 0.05, (64, 96)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_1
    data = gguf.quantize(values, kind).reshape(-1)
    found = read_groups(data, "q4_1", values.shape)
    assert found is not None and (found.bits, found.group, found.zero, found.half_scales) == (4, 32, 0, True)
    assert np.array_equal(expand(found), gguf.dequantize(data.reshape(64, -1), kind))
    assert read_groups(values.reshape(-1).view(np.uint8), "f32", values.shape) is None
