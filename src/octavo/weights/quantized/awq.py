"""AWQ, the "gemm" layout: 4-bit integers with a scale and a zero for each group of columns.

    qweight   int32 [K, N / 8]         in AWQ's order of places
    qzeros    int32 [K / group, N / 8] the same
    scales    [K / group, N]

Source: Lin et al., arXiv:2306.00978; the layout is that of AutoAWQ's WQLinear_GEMM.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from octavo.weights.quantized.matrix import (
    SCALES,
    IntegerMatrix,
    StoredMatrix,
    expect,
    expect_matrix,
    groups_for_people,
)
from octavo.weights.quantized.options import Options
from octavo.weights.quantized.packed import AWQ_ORDER, Codes, unpack_codes, unpack_words
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards


class AWQ:
    """See `methods.Method`."""

    activations: frozenset[str] = frozenset()

    def __init__(self, options: Options, shards: Shards, num_threads: int | None) -> None:
        options.choice("bits", (4,), 4)
        options.choice("version", ("gemm", "GEMM"), "gemm")
        options.choice("zero_point", (True,), True)
        self.kept = options.names("modules_to_not_convert")
        self._group = options.group_size()
        self._shards = shards
        self._num_threads = num_threads

    def matrices(self, module: str, parts: Mapping[str, SafeTensor]) -> Iterable[tuple[str, StoredMatrix]]:
        if "qweight" not in parts:
            return
        shards = self._shards
        packed = expect_matrix(shards, parts["qweight"], ("I32",))
        columns, rows = packed.shape[0], packed.shape[1] * 8
        group = self._group or columns
        if columns % group:
            raise shards.error(packed.name, f"has {columns} columns, which are not whole groups of {group}")
        qzeros = expect(shards, shards.tensor(f"{module}.qzeros"), ("I32",), (columns // group, rows // 8))
        scales = expect(shards, shards.tensor(f"{module}.scales"), SCALES, (columns // group, rows))

        def zeros() -> Codes:
            places = unpack_words(shards.integers(qzeros.name), 4).reshape(-1, rows // 8, 8)
            found = np.empty_like(places)
            found[..., AWQ_ORDER] = places
            return found.reshape(-1, rows).T

        yield (
            f"{module}.weight",
            IntegerMatrix(
                kind=f"awq int4 {groups_for_people(group, columns)}",
                shape=(rows, columns),
                tensors=(packed.name, qzeros.name, scales.name),
                bits=4,
                group=group,
                scale_dtype=scales.dtype,
                codes=lambda: unpack_codes(shards.integers(packed.name), "awq", 4, (rows, columns), self._num_threads),
                scales=lambda: np.ascontiguousarray(shards.float32(scales.name).T),
                zeros=zeros,
            ),
        )
