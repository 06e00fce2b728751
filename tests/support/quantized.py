"""Matrices in the formats of quantised safetensors checkpoints, packed bit by bit, beside the numbers they stand for.

Written from the definitions of the formats alone: integers, zeros and scales are drawn, their products are the values
in exact arithmetic, and every stored word is put together from single bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Tensors = dict[str, tuple[str, Array]]
"""By name: the dtype as safetensors calls it, and the bytes in an array of the right shape."""

_WIDTHS = {"F16": np.float16, "F32": np.float32, "F64": np.float64, "I32": np.int32, "I64": np.int64, "I8": np.int8}
_WIDTHS |= {"U8": np.uint8, "BF16": np.uint16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8}


class Stored(NamedTuple):
    """A matrix `[N, K]` by the endings of its tensors' names, and what it stands for."""

    tensors: Tensors
    values: npt.NDArray[np.float32]


def save(path: Path, tensors: Tensors) -> None:
    """Write a safetensors file."""
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, values) in tensors.items():
        assert values.dtype == _WIDTHS[dtype]
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def bits_to_words(bits: Array) -> Array:
    """int32 words from bits `[..., 32]`, the lowest first."""
    words = np.zeros(bits.shape[:-1], np.uint64)
    for i in range(32):
        words |= bits[..., i].astype(np.uint64) << np.uint64(i)
    return words.astype(np.uint32).view(np.int32)


def packed(numbers: Array, bits: int) -> Array:
    """int32 words of the last axis, the first number in the lowest bits, the last word filled up with zeros."""
    places = 32 // bits
    count = -(-numbers.shape[-1] // places)
    padded = np.zeros((*numbers.shape[:-1], count * places), np.int64)
    padded[..., : numbers.shape[-1]] = numbers
    single = np.stack([(padded >> b) & 1 for b in range(bits)], axis=-1)
    return bits_to_words(single.reshape(*numbers.shape[:-1], count, 32))


def scales_as(dtype: str, rng: Any, shape: tuple[int, ...]) -> tuple[Array, Array]:
    """Random scales, as they are stored and as float64."""
    values = (rng.uniform(0.2, 1.0, shape) * rng.choice([-1, 1], shape, p=[0.1, 0.9])).astype(np.float32)
    if dtype == "BF16":
        stored = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return stored, (stored.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)
    stored = values.astype(_WIDTHS[dtype])
    return stored, stored.astype(np.float64)


def spread(values: Array, group: int, columns: int) -> Array:
    """Values of groups `[N, G]` for every column."""
    return np.repeat(values, group, axis=1)[:, :columns]


def awq(rng: Any, rows: int, columns: int, *, group: int = 128, scale: str = "F16") -> Stored:
    group = columns if group == -1 else group
    q = rng.integers(0, 16, (rows, columns))
    z = rng.integers(0, 16, (rows, columns // group))
    stored, s = scales_as(scale, rng, (columns // group, rows))
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    interleave = np.concatenate([np.array(order) + 8 * i for i in range(rows // 8)])
    values = spread(s.T, group, columns) * (q - spread(z, group, columns))
    return Stored(
        {
            "qweight": ("I32", packed(q.T[:, interleave], 4)),
            "qzeros": ("I32", packed(z.T[:, interleave], 4)),
            "scales": (scale, stored),
        },
        values.astype(np.float32),
    )


def gptq(
    rng: Any,
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group: int = 128,
    sym: bool = True,
    version: int = 1,
    act_order: bool = False,
    scale: str = "F16",
    g_idx: bool = True,
) -> Stored:
    group = columns if group == -1 else group
    groups = -(-columns // group)
    q = rng.integers(0, 1 << bits, (rows, columns))
    z = np.full((rows, groups), 1 << (bits - 1)) if sym else rng.integers(0, 1 << bits, (rows, groups))
    stored, s = scales_as(scale, rng, (groups, rows))
    of_column = np.arange(columns) // group
    if act_order:
        of_column = rng.permutation(of_column)
    zeros = packed(z.T, bits)
    if version == 1:  # whole words less 1 in every place, which borrows where a zero is 0
        ones = sum(1 << (bits * i) for i in range(32 // bits))
        zeros = ((zeros.astype(np.int64) - ones) % (1 << 32)).astype(np.uint32).view(np.int32)
    values = s.T[:, of_column] * (q - z[:, of_column])
    tensors = {
        "qweight": ("I32", np.ascontiguousarray(packed(q, bits).T)),
        "qzeros": ("I32", zeros),
        "scales": (scale, stored),
    }
    if g_idx:
        tensors["g_idx"] = ("I32", of_column.astype(np.int32))
    return Stored(tensors, values.astype(np.float32))


def e4m3(byte: int) -> float:
    """By the definition: 1 sign, 4 exponent, 3 mantissa bits, bias 7; all ones is NaN, there is no infinity."""
    sign, exponent, mantissa = byte >> 7, byte >> 3 & 15, byte & 7
    if exponent == 15 and mantissa == 7:
        return float("nan")
    size = mantissa / 8 * 2.0**-6 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size


E4M3 = np.array([e4m3(byte) for byte in range(256)])
_FINITE = np.array([byte for byte in range(256) if byte & 127 != 127], np.uint8)


def fp8(
    rng: Any,
    rows: int,
    columns: int,
    *,
    block: tuple[int, int] | str = (128, 128),
    scale: str = "F32",
    name: str = "weight_scale_inv",
) -> Stored:
    bytes_ = rng.choice(_FINITE, (rows, columns))
    tall, wide = {"one": (rows, columns), "scalar": (rows, columns), "row": (1, columns), "flat": (1, columns)}.get(
        block, block
    )
    stored, s = scales_as(scale, rng, (-(-rows // tall), -(-columns // wide)))
    values = E4M3[bytes_] * np.repeat(spread(s, wide, columns), tall, axis=0)[:rows]
    stored = stored.reshape({"one": (1,), "scalar": (), "flat": (rows,)}.get(block, stored.shape))
    return Stored({"weight": ("F8_E4M3", bytes_), name: (scale, stored)}, values.astype(np.float32))


def int8(
    rng: Any,
    rows: int,
    columns: int,
    *,
    strategy: str = "channel",
    group: int = 0,
    sym: bool = True,
    scale: str = "BF16",
) -> Stored:
    q = rng.integers(-128, 128, (rows, columns))
    shape = {"channel": (rows, 1), "tensor": (1, 1), "group": (rows, -(-columns // max(group, 1)))}[strategy]
    z = np.zeros(shape, np.int64) if sym else rng.integers(-128, 128, shape)
    stored, s = scales_as(scale, rng, shape)
    wide = group or columns
    values = spread(s, wide, columns) * (q - spread(z, wide, columns))
    flat = (1,) if strategy == "tensor" else shape
    tensors: Tensors = {"weight": ("I8", q.astype(np.int8)), "weight_scale": (scale, stored.reshape(flat))}
    if not sym:
        tensors["weight_zero_point"] = ("I8", z.astype(np.int8).reshape(flat))
    return Stored(tensors, values.astype(np.float32))


def pack_quantized(
    rng: Any,
    rows: int,
    columns: int,
    *,
    bits: int = 4,
    group: int | None = 128,
    sym: bool = True,
    scale: str = "BF16",
    act_order: bool = False,
) -> Stored:
    """`group` None: a scale for each row."""
    half = 1 << (bits - 1)
    wide = group or columns
    groups = -(-columns // wide)
    q = rng.integers(-half, half, (rows, columns))
    z = np.zeros((rows, groups), np.int64) if sym else rng.integers(-half, half, (rows, groups))
    stored, s = scales_as(scale, rng, (rows, groups))
    of_column = np.arange(columns) // wide
    if act_order:
        of_column = rng.permutation(of_column)
    values = s[:, of_column] * (q - z[:, of_column])
    tensors: Tensors = {
        "weight_packed": ("I32", packed(q + half, bits)),
        "weight_scale": (scale, stored),
        "weight_shape": ("I64", np.array([rows, columns])),
    }
    if not sym:
        tensors["weight_zero_point"] = ("I32", np.ascontiguousarray(packed((z + half).T, bits).T))
    if act_order:
        tensors["weight_g_idx"] = ("I32", of_column.astype(np.int32))
    return Stored(tensors, values.astype(np.float32))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def nibbles(halves: Array) -> Array:
    """Two in a byte, the first one low."""
    return (halves[..., 0::2] | halves[..., 1::2] << 4).astype(np.uint8)


def mxfp4(rng: Any, rows: int, columns: int) -> Stored:
    q = rng.integers(0, 16, (rows, columns))
    exponents = rng.integers(120, 130, (rows, columns // 32))
    values = E2M1[q] * spread(2.0 ** (exponents - 127.0), 32, columns)
    return Stored(
        {"weight_packed": ("U8", nibbles(q)), "weight_scale": ("U8", exponents.astype(np.uint8))},
        values.astype(np.float32),
    )


def nvfp4(rng: Any, rows: int, columns: int) -> Stored:
    q = rng.integers(0, 16, (rows, columns))
    steps = rng.choice(_FINITE[_FINITE < 128], (rows, columns // 16))
    whole = np.float32(rng.uniform(50, 200))
    scales = E4M3[steps].astype(np.float32) / whole
    values = E2M1[q].astype(np.float32) * spread(scales, 16, columns)
    tensors: Tensors = {
        "weight_packed": ("U8", nibbles(q)),
        "weight_scale": ("F8_E4M3", steps),
        "weight_global_scale": ("F32", whole.reshape(1)),
    }
    return Stored(tensors, values)


def weights(**args: Any) -> dict[str, Any]:
    """The quantization_config of compressed-tensors with one group of these `weights`."""
    format_ = args.pop("format")
    group = {"targets": ["Linear"], "weights": args, "input_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": format_,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


class Case(NamedTuple):
    """A format: its quantization_config, how a matrix is written, and how it is to be kept."""

    config: dict[str, Any]
    write: Callable[[Any, int, int], Stored]
    kept: tuple[int, int, int, bool, bool] | None
    """Bits, group, zero, whether there are minimums, half scales; None: as floats."""
    kind: str


def _case(kept: Any, kind: str, config: dict[str, Any], writer: Callable[..., Stored], **args: Any) -> Case:
    return Case(config, lambda rng, rows, columns: writer(rng, rows, columns, **args), kept, kind)


def _awq(group: int = 128) -> dict[str, Any]:
    return {"quant_method": "awq", "bits": 4, "group_size": group, "zero_point": True, "version": "gemm"}


def _gptq(**changes: Any) -> dict[str, Any]:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True, "desc_act": False}
    return config | {"damp_percent": 0.1, "true_sequential": True} | changes


def _fp8(**changes: Any) -> dict[str, Any]:
    return {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"} | changes


_ASYM4, _ASYM8 = (4, 32, 0, True, False), (8, 32, 0, True, False)
_BLOCKS = {"weight_block_size": [128, 128]}
_INT4 = {"format": "pack-quantized", "num_bits": 4, "type": "int", "strategy": "group", "symmetric": True}
_INT8 = {"format": "int-quantized", "num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
_FLOAT8 = {"format": "float-quantized", "num_bits": 8, "type": "float", "symmetric": True}

CASES: dict[str, Case] = {
    "awq": _case(_ASYM4, "awq int4 groups of 128", _awq(), awq),
    "awq g32": _case(_ASYM4, "awq int4 groups of 32", _awq(32), awq, group=32),
    "awq g64 bf16": _case(_ASYM4, "awq int4 groups of 64", _awq(64), awq, group=64, scale="BF16"),
    "awq whole columns": _case(_ASYM4, "awq int4 whole rows", _awq(-1), awq, group=-1),
    "awq f32": _case(None, "awq int4 groups of 128", _awq(), awq, scale="F32"),
    "gptq": _case((4, 32, 8, False, True), "gptq int4 groups of 128", _gptq(), gptq),
    "gptq bf16": _case((4, 32, 8, False, False), "gptq int4 groups of 128", _gptq(), gptq, scale="BF16"),
    "gptq f32": _case((4, 32, 8, False, False), "gptq int4 groups of 128", _gptq(), gptq, scale="F32"),
    "gptq int8": _case((8, 32, 128, False, True), "gptq int8 groups of 128", _gptq(bits=8), gptq, bits=8),
    "gptq g32": _case((4, 32, 8, False, True), "gptq int4 groups of 32", _gptq(group_size=32), gptq, group=32),
    "gptq whole columns": _case(
        (4, 32, 8, False, True), "gptq int4 whole rows", _gptq(group_size=-1), gptq, group=-1, g_idx=False
    ),
    "gptq zeros": _case(_ASYM4, "gptq int4 groups of 128", _gptq(sym=False), gptq, sym=False),
    "gptq int8 zeros": _case(
        _ASYM8, "gptq int8 groups of 64", _gptq(sym=False, bits=8, group_size=64), gptq, sym=False, bits=8, group=64
    ),
    "gptq v2": _case(
        _ASYM4,
        "gptq int4 groups of 128",
        _gptq(sym=False, checkpoint_format="gptq_v2"),
        gptq,
        sym=False,
        version=2,
    ),
    "gptq v2 sym": _case(
        (4, 32, 8, False, True), "gptq int4 groups of 128", _gptq(checkpoint_format="gptq_v2"), gptq, version=2
    ),
    "gptq act-order": _case(None, "gptq int4 groups of 128 in act-order", _gptq(desc_act=True), gptq, act_order=True),
    "gptq act-order zeros": _case(
        None,
        "gptq int8 groups of 32 in act-order",
        _gptq(desc_act=True, sym=False, bits=8, group_size=32),
        gptq,
        act_order=True,
        sym=False,
        bits=8,
        group=32,
    ),
    "gptq act-order of its columns": _case(
        (4, 32, 8, False, True), "gptq int4 groups of 128", _gptq(desc_act=True), gptq
    ),
    "fp8 blocks": _case(None, "fp8 e4m3, blocks 128x128", _fp8(**_BLOCKS), fp8),
    "fp8 blocks bf16": _case(None, "fp8 e4m3, blocks 128x128", _fp8(**_BLOCKS), fp8, scale="BF16"),
    "fp8 small blocks": _case(
        None, "fp8 e4m3, blocks 48x32", _fp8(weight_block_size=[48, 32]), fp8, block=(48, 32), scale="BF16"
    ),
    "fp8 one": _case(None, "fp8 e4m3, one scale", _fp8(), fp8, block="one", name="weight_scale"),
    "fp8 scalar": _case(None, "fp8 e4m3, one scale", _fp8(), fp8, block="scalar", name="weight_scale_inv"),
    "fp8 rows": _case(None, "fp8 e4m3, a scale for each row", _fp8(), fp8, block="row", name="weight_scale"),
    "fbgemm fp8": _case(
        None, "fp8 e4m3, a scale for each row", {"quant_method": "fbgemm_fp8"}, fp8, block="row", name="weight_scale"
    ),
    "ct fp8": _case(
        None,
        "fp8 e4m3, a scale for each row",
        weights(**_FLOAT8, strategy="channel"),
        fp8,
        block="row",
        name="weight_scale",
        scale="BF16",
    ),
    "ct fp8 blocks": _case(
        None,
        "fp8 e4m3, blocks 64x32",
        weights(**_FLOAT8, strategy="block", block_structure=[64, 32]),
        fp8,
        block=(64, 32),
        name="weight_scale",
    ),
    "ct int8": _case((8, 32, 128, False, False), "compressed-tensors int8 whole rows", weights(**_INT8), int8),
    "ct int8 f16": _case(
        (8, 32, 128, False, True), "compressed-tensors int8 whole rows", weights(**_INT8), int8, scale="F16"
    ),
    "ct int8 tensor": _case(
        (8, 32, 128, False, False),
        "compressed-tensors int8 whole rows",
        weights(**_INT8 | {"strategy": "tensor"}),
        int8,
        strategy="tensor",
    ),
    "ct int8 zeros": _case(
        _ASYM8, "compressed-tensors int8 whole rows", weights(**_INT8 | {"symmetric": False}), int8, sym=False
    ),
    "ct int8 groups": _case(
        (8, 32, 128, False, False),
        "compressed-tensors int8 groups of 32",
        weights(**_INT8 | {"strategy": "group", "group_size": 32}),
        int8,
        strategy="group",
        group=32,
    ),
    "ct int4": _case(
        (4, 32, 8, False, False),
        "compressed-tensors int4 groups of 128",
        weights(**_INT4, group_size=128),
        pack_quantized,
    ),
    "ct int4 g16": _case(
        (4, 16, 8, False, False),
        "compressed-tensors int4 groups of 16",
        weights(**_INT4, group_size=16),
        pack_quantized,
        group=16,
        scale="F16",
    ),
    "ct int4 g24": _case(
        None, "compressed-tensors int4 groups of 24", weights(**_INT4, group_size=24), pack_quantized, group=24
    ),
    "ct int4 zeros": _case(
        _ASYM4,
        "compressed-tensors int4 groups of 128",
        weights(**_INT4 | {"symmetric": False}, group_size=128),
        pack_quantized,
        sym=False,
    ),
    "ct int4 g16 zeros": _case(
        (4, 16, 0, True, False),
        "compressed-tensors int4 groups of 16",
        weights(**_INT4 | {"symmetric": False}, group_size=16),
        pack_quantized,
        sym=False,
        group=16,
    ),
    "ct int8 packed": _case(
        (8, 32, 128, False, True),
        "compressed-tensors int8 whole rows",
        weights(**_INT4 | {"num_bits": 8, "strategy": "channel"}),
        pack_quantized,
        bits=8,
        group=None,
        scale="F16",
    ),
    "ct int8 packed zeros": _case(
        _ASYM8,
        "compressed-tensors int8 groups of 64",
        weights(**_INT4 | {"num_bits": 8, "symmetric": False}, group_size=64),
        pack_quantized,
        bits=8,
        group=64,
        sym=False,
    ),
    "ct act-order": _case(
        None,
        "compressed-tensors int4 groups of 32",
        weights(**_INT4, group_size=32, actorder="group"),
        pack_quantized,
        group=32,
        act_order=True,
    ),
    "ct mxfp4": _case(
        (8, 32, 12, False, False),
        "mxfp4",
        weights(format="mxfp4-pack-quantized", num_bits=4, type="float", strategy="group", group_size=32),
        mxfp4,
    ),
    "ct nvfp4": _case(
        (8, 16, 12, False, False),
        "nvfp4",
        weights(format="nvfp4-pack-quantized", num_bits=4, type="float", strategy="tensor_group", group_size=16),
        nvfp4,
    ),
}


def rescaled(stored: Stored, exponent: int) -> Stored:
    """The same times 2**exponent: all its scales are, so nothing is rounded."""
    tensors = dict(stored.tensors)
    for ending, (dtype, values) in stored.tensors.items():
        if ending == "weight_global_scale":
            tensors[ending] = (dtype, np.ldexp(values, -exponent))
        elif "scale" not in ending or "weight_global_scale" in stored.tensors:
            continue
        elif dtype == "U8":
            tensors[ending] = (dtype, (values.astype(np.int64) + exponent).astype(np.uint8))
        elif dtype == "BF16":
            wide = np.ldexp((values.astype(np.uint32) << np.uint32(16)).view(np.float32), exponent)
            tensors[ending] = (dtype, (wide.view(np.uint32) >> np.uint32(16)).astype(np.uint16))
        else:
            tensors[ending] = (dtype, np.ldexp(values, exponent).astype(values.dtype))
    return Stored(tensors, np.ldexp(stored.values, exponent))


def as_usual(stored: Stored) -> Stored:
    """Of about the size that `support.tiny_models` gives a matrix, so that layers neither vanish nor drown others."""
    usual = 1.6 / np.sqrt(stored.values.shape[1])
    return rescaled(stored, round(np.log2(usual / stored.values.std())))
