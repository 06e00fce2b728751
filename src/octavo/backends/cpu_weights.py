"""Weights in the CPU back end's own layout: one native matrix, or several whose rows are kept in different formats."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import msgspec
import numpy as np

import octavo._native as _native
from octavo.backends.bfloat16 import to_bits, to_float32
from octavo.backends.protocol import Array, GroupedWeight, WeightPart


class Stack(msgspec.Struct, frozen=True):
    """A weight whose rows are kept in several formats: one matrix for each run of rows in one format."""

    pieces: tuple[_native.Matrix, ...]
    has_halves = False
    """Its gate and its up may lie in several matrices."""

    @property
    def n(self) -> int:
        return sum(piece.n for piece in self.pieces)

    @property
    def k(self) -> int:
        return self.pieces[0].k

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.pieces)


CpuWeight = _native.Matrix | Stack


def pieces_of(weight: CpuWeight) -> list[_native.Matrix]:
    return list(weight.pieces) if isinstance(weight, Stack) else [weight]


_Key = tuple[int, int, int, bool, bool] | None
"""What parts of one matrix have in common: bits, group, zero, minimums, float16 scales; None for floats."""


def pack(
    parts: Sequence[WeightPart],
    bf16: bool,
    new_matrix: Callable[[int, int, _native.WeightFormat], _native.Matrix],
    pool: _native.ThreadPool,
) -> CpuWeight:
    """Row blocks `[N, K]` one below the other. Floats become bfloat16 or float32, groups stay as they are.

    Args:
        new_matrix: Makes an empty matrix of rows, columns and format.
    """
    pieces = []
    for matrix, blocks in _empty_pieces(parts, bf16, new_matrix):
        start = 0
        for block in blocks:
            _pack_block(matrix, block, bf16, start, pool)
            start += len(block)
        pieces.append(matrix)
    return _joined(pieces)


def hollow(
    parts: Sequence[WeightPart], bf16: bool, new_matrix: Callable[[int, int, _native.WeightFormat], _native.Matrix]
) -> CpuWeight:
    """What `pack` would make, but empty, so that it takes no memory."""
    return _joined([matrix for matrix, _ in _empty_pieces(parts, bf16, new_matrix)])


def _joined(pieces: list[_native.Matrix]) -> CpuWeight:
    return pieces[0] if len(pieces) == 1 else Stack(tuple(pieces))


def _empty_pieces(
    parts: Sequence[WeightPart], bf16: bool, new_matrix: Callable[[int, int, _native.WeightFormat], _native.Matrix]
) -> Iterator[tuple[_native.Matrix, list[WeightPart]]]:
    """A matrix for each run of parts in one format, with the parts that belong into it."""
    for key, run in itertools.groupby(parts, _key):
        blocks = list(run)
        yield new_matrix(sum(len(block) for block in blocks), blocks[0].shape[1], _format(key, bf16)), blocks


def as_stored(array: Array, bf16: bool) -> Array:
    """float32 or bfloat16 bits, whichever the kernels want, from either."""
    if bf16 == (array.dtype == np.uint16):
        return np.ascontiguousarray(array)
    return to_bits(array) if bf16 else to_float32(array)


def _key(part: WeightPart) -> _Key:
    if not isinstance(part, GroupedWeight):
        return None
    return part.bits, part.group, part.zero, part.minimums is not None, part.half_scales


def _format(key: _Key, bf16: bool) -> _native.WeightFormat:
    if key is None:
        return _native.WeightFormat.bfloat16() if bf16 else _native.WeightFormat.float32()
    bits, group, zero, minimum, half_scales = key
    return _native.WeightFormat.groups(bits, group, zero=zero, minimum=minimum, half_scales=half_scales)


def _pack_block(matrix: _native.Matrix, block: WeightPart, bf16: bool, start: int, pool: _native.ThreadPool) -> None:
    if isinstance(block, GroupedWeight):
        matrix.pack_groups(block.codes, block.scales, block.minimums, start, pool)
    else:
        matrix.pack(as_stored(block, bf16), start, pool)
