"""GPTQ: integers of 4 or 8 bits with a scale and a zero for each group of columns.

    qweight   int32 [K * bits / 32, N]
    qzeros    int32 [groups, N * bits / 32]   one less than the zero in version 1 of the layout
    scales    [groups, N]
    g_idx     int32 [K]                       the group of each column

Version 1 subtracts 1 from every zero, borrowing from the next one in the word where a zero is 0; adding it to whole
words undoes that. With "desc_act" the columns of a group are no neighbours: then the matrix is expanded to floats.

Source: Frantar et al., arXiv:2210.17323; the layouts are those of AutoGPTQ ("gptq") and GPTQModel ("gptq_v2").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

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

_ONES = {4: np.uint32(0x11111111), 8: np.uint32(0x01010101)}


class GPTQ:
    """See `methods.Method`."""

    activations: frozenset[str] = frozenset()

    def __init__(self, options: Options, shards: Shards, num_threads: int | None) -> None:
        self._bits = options.choice("bits", (4, 8), 4)
        self._symmetric = options.choice("sym", (True, False), True)
        self._version = options.choice("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
        options.choice("is_marlin_format", (False,), False)
        options.choice("pack_dtype", ("int32",), "int32")
        options.choice("quant_method", ("gptq",), "gptq")
        _check_dynamic(options)
        self.kept = options.names("modules_to_not_convert")
        self._group = options.group_size()
        self._shards = shards
        self._num_threads = num_threads

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        if "qweight" not in parts:
            return
        shards, bits = self._shards, self._bits
        packed = expect_matrix(shards, parts["qweight"], ("I32",))
        columns, rows = packed.shape[0] * 32 // bits, packed.shape[1]
        group = self._group or columns
        num_groups = -(-columns // group)
        qzeros = expect(shards, shards.tensor(f"{module}.qzeros"), ("I32",), (num_groups, -(-rows * bits // 32)))
        scales = expect(shards, shards.tensor(f"{module}.scales"), SCALES, (num_groups, rows))
        order = column_groups(shards, parts.get("g_idx"), columns, group)
        tensors = (packed.name, qzeros.name, scales.name)
        zero = 1 << (bits - 1)

        def zeros() -> Codes:
            return self._zeros(qzeros.name)[:, :rows].T

        def read_scales() -> npt.NDArray[np.float32]:
            if self._symmetric and (zeros() != zero).any():
                raise shards.error(qzeros.name, f"is not {zero} everywhere, though the config says sym")
            return np.ascontiguousarray(shards.float32(scales.name).T)

        yield (
            f"{module}.weight",
            IntegerMatrix(
                kind=f"gptq int{bits} {groups_for_people(group, columns)}{'' if order is None else ' in act-order'}",
                shape=(rows, columns),
                tensors=tensors + ((parts["g_idx"].name,) if "g_idx" in parts else ()),
                bits=bits,
                group=group,
                scale_dtype=scales.dtype,
                zero=zero,
                codes=lambda: unpack_codes(
                    shards.integers(packed.name), "columns", bits, (rows, columns), self._num_threads
                ),
                scales=read_scales,
                zeros=None if self._symmetric else zeros,
                order=order,
            ),
        )

    def _zeros(self, name: str) -> Codes:
        words = self._shards.integers(name).view(np.uint32)
        return unpack_words(words + _ONES[self._bits] if self._version == "gptq" else words, self._bits)


def _check_dynamic(options: Options) -> None:
    """Rules for single modules: those that leave modules as they are need nothing, as the tensors say so."""
    rules = options.get("dynamic")
    if rules and not (isinstance(rules, dict) and all(rule.startswith("-:") for rule in rules)):
        raise options.unsupported("dynamic", "modules with settings of their own are not supported")
