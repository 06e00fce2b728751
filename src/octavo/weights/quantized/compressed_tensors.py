"""compressed-tensors: the formats of llm-compressor.

    int-quantized     weight int8 [N, K], weight_scale, weight_zero_point int8
    pack-quantized    weight_packed int32 [N, ceil(K * bits / 32)], weight_scale, weight_shape [2], and with zeros
                      weight_zero_point int32 [ceil(N * bits / 32), groups]; stored integers count from 2^(bits - 1)
    float-quantized   weight F8_E4M3 [N, K], weight_scale
    mxfp4-pack-quantized, nvfp4-pack-quantized    weight_packed uint8 [N, K / 2], weight_scale

Which of them a module has is seen from its tensors; how its integers are cut into groups, from the `weights` of that
group of the config which fits their shapes. Expressions over names ("re:...") are never run.

Source: https://github.com/vllm-project/compressed-tensors
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import Float32Array
from octavo.weights.quantized import fp4, fp8
from octavo.weights.quantized.matrix import (
    SCALES,
    IntegerMatrix,
    StoredMatrix,
    column_groups,
    expect,
    expect_matrix,
    groups_for_people,
)
from octavo.weights.quantized.options import Options
from octavo.weights.quantized.packed import Codes, unpack_codes, unpack_words
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards

FORMATS = (
    "int-quantized",
    "pack-quantized",
    "float-quantized",
    "naive-quantized",
    "mxfp4-pack-quantized",
    "nvfp4-pack-quantized",
    "mixed-precision",
    "dense",
)


class _Weights(msgspec.Struct, frozen=True):
    """How the weights of one group of the config are stored."""

    bits: int
    symmetric: bool
    strategy: str
    group: int | None
    block: tuple[int, int] | None


class CompressedTensors:
    """See `methods.Method`."""

    activations = fp8.ACTIVATIONS | {"input_zero_point", "output_zero_point", "input_global_scale"}

    def __init__(self, options: Options, shards: Shards, num_threads: int | None) -> None:
        options.choice("format", FORMATS, "dense")
        for key in ("transform_config", "sparsity_config"):
            value = options.get(key)
            if value and not (isinstance(value, dict) and value.get("format") == "dense"):
                raise options.unsupported(key, "is not supported")
        self.kept = tuple(name for name in options.names("ignore") if not name.startswith("re:"))
        self._weights = _config_groups(options)
        self._shards = shards
        self._num_threads = num_threads

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        if "weight_packed" in parts:
            packed = parts["weight_packed"]
            made: StoredMatrix = self._fp4(module, parts) if packed.dtype == "U8" else self._packed(module, parts)
        elif "weight" in parts and parts["weight"].dtype == "I8":
            made = self._int8(module, parts)
        elif "weight" in parts and parts["weight"].dtype == "F8_E4M3":
            block = next((each.block for each in self._weights if each.block is not None), None)
            made = fp8.float8(self._shards, module, parts, block)
        else:
            return
        yield f"{module}.weight", made

    def _int8(self, module: str, parts: Mapping[str, SafeTensor]) -> StoredMatrix:
        weight = expect_matrix(self._shards, parts["weight"], ("I8",))

        def codes() -> Codes:
            return self._shards.integers(weight.name).view(np.uint8) ^ np.uint8(128)

        return self._integers(module, parts, weight, weight.shape[1], codes, 8)

    def _packed(self, module: str, parts: Mapping[str, SafeTensor]) -> StoredMatrix:
        shards = self._shards
        packed = expect_matrix(shards, parts["weight_packed"], ("I32",))
        stored = expect(shards, shards.tensor(f"{module}.weight_shape"), ("I64", "I32"), (2,))
        rows, columns = (int(size) for size in shards.integers(stored.name))
        bits = next((b for b in (4, 8) if packed.shape == (rows, -(-columns * b // 32))), None)
        if bits is None:
            shape = f"{rows} x {columns}"
            raise shards.error(packed.name, f"has shape {packed.shape}, which does not hold {shape} of 4 or 8 bits")

        def codes() -> Codes:
            words = shards.integers(packed.name)
            return unpack_codes(words, "rows", bits, (rows, columns), self._num_threads)

        return self._integers(module, parts, packed, columns, codes, bits)

    def _integers(
        self,
        module: str,
        parts: Mapping[str, SafeTensor],
        tensor: SafeTensor,
        columns: int,
        codes: Callable[[], Codes],
        bits: int,
    ) -> IntegerMatrix:
        shards, rows = self._shards, tensor.shape[0]
        scales = shards.tensor(f"{module}.weight_scale")
        weights, group = self._fitting(tensor, scales, rows, columns, bits)
        order = column_groups(shards, parts.get("weight_g_idx"), columns, group)
        zero, num_groups = 1 << (bits - 1), -(-columns // group)
        names = [tensor.name, scales.name]
        names += [
            parts[ending].name for ending in ("weight_shape", "weight_zero_point", "weight_g_idx") if ending in parts
        ]

        def spread(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
            """One for each row and group."""
            return np.broadcast_to(values.reshape(-1, num_groups), (rows, num_groups))

        zeros = self._zeros(module, parts, scales.shape, spread, (rows, num_groups), bits)
        if zeros is None and not weights.symmetric:
            shards.tensor(f"{module}.weight_zero_point")

        def read_scales() -> Float32Array:
            if weights.symmetric and zeros is not None and (zeros() != zero).any():
                raise shards.error(
                    f"{module}.weight_zero_point", "is not 0 everywhere, though the config says symmetric"
                )
            return np.ascontiguousarray(spread(shards.float32(scales.name)))

        return IntegerMatrix(
            kind=f"compressed-tensors int{bits} {groups_for_people(group, columns)}",
            shape=(rows, columns),
            tensors=tuple(names),
            bits=bits,
            group=group,
            scale_dtype=scales.dtype,
            zero=zero,
            codes=codes,
            scales=read_scales,
            zeros=None if weights.symmetric else zeros,
            order=order,
        )

    def _zeros(
        self,
        module: str,
        parts: Mapping[str, SafeTensor],
        stored: tuple[int, ...],
        spread: Callable[[npt.NDArray[Any]], npt.NDArray[Any]],
        shape: tuple[int, int],
        bits: int,
    ) -> Callable[[], npt.NDArray[Any]] | None:
        """Reads the zeros `[N, groups]`, packed or stored like the scales; None if there are none."""
        points = parts.get("weight_zero_point")
        if points is None:
            return None
        shards, (rows, num_groups) = self._shards, shape
        if points.dtype == "I32":
            expect(shards, points, ("I32",), (-(-rows * bits // 32), num_groups))
            return lambda: unpack_words(np.ascontiguousarray(shards.integers(points.name).T), bits)[:, :rows].T
        expect(shards, points, ("I8",), stored)
        return lambda: spread(shards.integers(points.name).astype(np.int16) + (1 << (bits - 1)))

    def _fitting(
        self, tensor: SafeTensor, scales: SafeTensor, rows: int, columns: int, bits: int
    ) -> tuple[_Weights, int]:
        """The first group of the config that tells of such tensors, and how many columns share a scale."""
        if scales.dtype not in SCALES:
            raise self._shards.error(scales.name, f"is {scales.dtype}; must be {' or '.join(SCALES)}")
        for weights in self._weights:
            group = weights.group or columns
            shapes: dict[str, list[tuple[int, ...]]] = {
                "tensor": [(), (1,), (1, 1)],
                "channel": [(rows,), (rows, 1)],
                "group": [(rows, -(-columns // group))],
            }
            if weights.bits == bits and scales.shape in shapes.get(weights.strategy, []):
                return weights, group
        told = ", ".join(f"int{w.bits} by {w.strategy}" for w in self._weights)
        raise self._shards.error(
            scales.name, f"has shape {scales.shape} for int{bits} {rows} x {columns}; the config tells of {told}"
        )

    def _fp4(self, module: str, parts: Mapping[str, SafeTensor]) -> StoredMatrix:
        shards = self._shards
        packed = expect_matrix(shards, parts["weight_packed"], ("U8",))
        rows, columns = packed.shape[0], 2 * packed.shape[1]
        scales = shards.tensor(f"{module}.weight_scale")
        if scales.dtype in fp4.EXPONENTS:
            expect(shards, scales, fp4.EXPONENTS, (rows, columns // 32))
            return fp4.mxfp4(shards, packed, scales, (rows, columns))
        expect(shards, scales, ("F8_E4M3",), (rows, columns // 16))
        whole = expect(shards, shards.tensor(f"{module}.weight_global_scale"), ("F32",), (), (1,))

        def steps() -> npt.NDArray[np.float32]:
            with np.errstate(all="ignore"):
                return shards.float32(scales.name) / shards.float32(whole.name).reshape(1) * np.float32(0.5)

        return IntegerMatrix(
            kind="nvfp4",
            shape=(rows, columns),
            tensors=(packed.name, scales.name, whole.name),
            bits=8,
            group=16,
            scale_dtype="F32",
            zero=fp4.ZERO,
            codes=lambda: fp4.codes_of(shards.integers(packed.name)),
            scales=steps,
        )


def _config_groups(options: Options) -> list[_Weights]:
    groups = options.below("config_groups")
    found = []
    for name in groups.keys:
        group = groups.below(name)
        if group.get("weights") is None:
            continue
        weights = group.below("weights")
        kind = weights.choice("type", ("int", "float"), "int")
        bits = weights.choice("num_bits", (4, 8), 8)
        strategies = (
            ("tensor", "channel", "group") if kind == "int" else ("tensor", "channel", "block", "group", "tensor_group")
        )
        strategy = weights.choice("strategy", strategies, "tensor")
        block = fp8.block_of(weights, "block_structure") if strategy == "block" else None
        symmetric = weights.choice("symmetric", (True, False), True)
        size = weights.group_size() if strategy == "group" else None
        if kind == "int":
            found.append(_Weights(bits, symmetric, strategy, size, None))
        else:
            found.append(_Weights(0, True, strategy, size, block))
    return found
