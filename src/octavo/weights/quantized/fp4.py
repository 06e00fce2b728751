"""4-bit floats, E2M1, two in a byte, the first one in the low half: MXFP4 and NVFP4.

    MXFP4   a scale for 32 columns, a power of two, stored as its exponent + 127 (E8M0)
    NVFP4   a scale for 16 columns, E4M3, divided by one number for the whole matrix

All values are multiples of 0.5 up to 6, so they are kept as integers, doubled, that count from ZERO.

Source: Open Compute Project, "OCP Microscaling Formats (MX) Specification", version 1.0, section 5.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import Float32Array
from octavo.weights.quantized.matrix import IntegerMatrix, StoredMatrix, expect
from octavo.weights.quantized.options import Options
from octavo.weights.quantized.packed import Codes
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards

ZERO = 12
EXPONENTS = ("U8", "F8_E8M0")
"""Dtypes under which MXFP4's scales are stored."""

_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
_PAIRS = np.array(
    [[ZERO + (-1 if half & 8 else 1) * _DOUBLED[half & 7] for half in (b & 15, b >> 4)] for b in range(256)]
)
_PAIR_CODES = np.ascontiguousarray(_PAIRS.astype(np.uint8)).view(np.uint16)[:, 0]
"""Both codes of every byte."""


def codes_of(packed: npt.NDArray[np.uint8]) -> Codes:
    """Codes `[N, K]` of bytes `[N, K / 2]`."""
    return _PAIR_CODES[packed].view(np.uint8)


def doubled_steps(exponents: npt.NDArray[np.uint8]) -> Float32Array:
    """Factors of doubled codes from MXFP4's scales; 255 stands for NaN."""
    steps = np.ldexp(np.float32(1), exponents.astype(np.int32) - 128).astype(np.float32)
    steps[exponents == 255] = np.nan
    return steps


def mxfp4(
    shards: Shards, packed: SafeTensor, scales: SafeTensor, shape: tuple[int, int], expert: int | None = None
) -> IntegerMatrix:
    """A matrix of these tensors, or what `expert` of them holds if they have one more axis in front."""

    def read(tensor: SafeTensor) -> npt.NDArray[Any]:
        values = shards.integers(tensor.name)
        return (values if expert is None else values[expert]).reshape(shape[0], -1)

    return IntegerMatrix(
        kind="mxfp4",
        shape=shape,
        tensors=(packed.name, scales.name),
        bits=8,
        group=32,
        scale_dtype="F32",
        zero=ZERO,
        codes=lambda: codes_of(read(packed)),
        scales=lambda: doubled_steps(read(scales)),
    )


class MXFP4:
    """Experts as gpt-oss stores them; see `methods.Method`.

        NAME_blocks   uint8 [experts, N, K / 32, 16]
        NAME_scales   uint8 [experts, N, K / 32]

    `mlp.experts.gate_up_proj_blocks` becomes `mlp.experts.0.gate_up_proj.weight`, `[N, K]`, and so on.
    """

    activations: frozenset[str] = frozenset()

    def __init__(self, options: Options, shards: Shards, num_threads: int | None) -> None:
        self.kept = options.names("modules_to_not_convert")
        self._shards = shards

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        for ending, packed in parts.items():
            if not ending.endswith("_blocks"):
                continue
            name = ending.removesuffix("_blocks")
            scales = self._shards.tensor(f"{module}.{name}_scales")
            if packed.dtype != "U8" or len(packed.shape) != 4 or packed.shape[3] != 16 or 0 in packed.shape:
                raise self._shards.error(
                    packed.name, f"is {packed.dtype} of shape {packed.shape}; must be U8 [experts, rows, blocks, 16]"
                )
            expect(self._shards, scales, EXPONENTS, packed.shape[:3])
            experts, rows, blocks, _ = packed.shape
            for expert in range(experts):
                yield (
                    f"{module}.{expert}.{name}.weight",
                    mxfp4(self._shards, packed, scales, (rows, 32 * blocks), expert),
                )
