"""Sequences in a poisoned KV memory, and attention over them in plain float64: the oracle of the attention kernels."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo import _native

Array = npt.NDArray[Any]

POISON = 0xFF
"""Every byte of a fresh memory: a NaN in bfloat16 and in float32, and so in the scales of int8."""


def to_bfloat16(x: Array) -> Array:
    """float32 to the upper halves of its words, rounded to nearest even. No NaNs."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def round_to_bfloat16(x: Array) -> Array:
    return (to_bfloat16(x).astype(np.uint32) << 16).view(np.float32)


def quantise(x: Array, limit: int = 127) -> tuple[Array, Array]:
    """Integers and scales of finite float32 vectors `[..., n]`: with 127, what the contract says of int8."""
    scale = np.abs(x).max(axis=-1, keepdims=True) / np.float32(limit)
    quotient = np.divide(x, scale, out=np.zeros_like(x), where=scale > 0)
    return np.clip(np.rint(quotient), -limit, limit).astype(np.int16), scale


def dequantise(stored: Array, scales: Array) -> Array:
    return stored.astype(np.float64) * scales.astype(np.float64)


class PagedSequences:
    """Sequences with random keys and values, in random blocks of a memory whose every other byte is poison.

    Row r of the block tables holds sequence r. Its last block's tail, the null block and the blocks of nobody stay
    poisoned, and every table entry past a sequence's end points to a poisoned block.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        isa: str,
        dtype: str = "bfloat16",
        num_kv_heads: int = 2,
        head_dim: int = 16,
        block_size: int = 16,
        layer: int = 1,
        layer_groups: tuple[int, ...] = (0, 1, 0),
        seed: int = 0,
        block_seed: int = 0,
        pool: Any = None,
    ) -> None:
        self.lengths, self.isa, self.dtype, self.layer = list(lengths), isa, dtype, layer
        self.num_kv_heads, self.head_dim, self.block_size = num_kv_heads, head_dim, block_size
        self.pool = pool or _native.ThreadPool(1)
        needed = [-(-length // block_size) for length in lengths]
        self.group = layer_groups[layer]
        self.kv = _native.KVMemory(
            layer_groups=layer_groups,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=dtype,
            block_size=block_size,
            num_blocks=sum(needed) + 3,
            max_num_seqs=len(lengths),
            max_blocks_per_seq=max(needed) + 2,
        )
        num_blocks = sum(needed) + 3
        self.poison = bytes([POISON]) * self.kv.bytes_per_block
        for block in range(num_blocks):
            self.kv.import_block(block, self.poison)
        ids = np.random.default_rng(block_seed).permutation(np.arange(1, num_blocks)).astype(np.int32)
        self.unused = [0, *ids[sum(needed) :].tolist()]
        self.kv.block_tables[:] = self.unused[-1]
        starts = np.cumsum([0, *needed])
        for row, count in enumerate(needed):
            self.kv.block_tables[self.group, row, :count] = ids[starts[row] : starts[row] + count]
        width = num_kv_heads * head_dim
        rngs = [np.random.default_rng([seed, row]) for row in range(len(lengths))]
        self.keys = [rng.standard_normal((n, width), np.float32) for rng, n in zip(rngs, lengths, strict=True)]
        self.values = [rng.standard_normal((n, width), np.float32) for rng, n in zip(rngs, lengths, strict=True)]
        for row in range(len(lengths)):
            self.write(row, 0, lengths[row])

    def write(self, row: int, begin: int, end: int) -> None:
        """Write tokens [begin, end) of a row through the kernel, from strided arrays."""
        width = self.num_kv_heads * self.head_dim
        both = np.concatenate([self.keys[row][begin:end], self.values[row][begin:end]], axis=1)
        positions = np.arange(begin, end, dtype=np.int32)
        rows = np.full(end - begin, row, np.int32)
        _native.write_kv(self.kv, self.layer, both[:, :width], both[:, width:], positions, rows, self.pool, self.isa)

    def stored(self, x: Array) -> Array:
        if self.dtype == "int8":
            return dequantise(*quantise(x.reshape(len(x), -1, self.head_dim))).reshape(x.shape)
        return round_to_bfloat16(x) if self.dtype == "bfloat16" else x

    def queries(self, row: int, num_heads: int, seed: int = 1) -> Array:
        """A query for every token of a row: float32 `[length, num_heads * head_dim]`."""
        rng = np.random.default_rng([seed, row])
        return rng.standard_normal((self.lengths[row], num_heads * self.head_dim), np.float32)

    def attend(
        self,
        chunks: Sequence[tuple[int, Array]],
        num_heads: int,
        *,
        seq_lens: Sequence[int] | None = None,
        window: int = 0,
        scale: float | None = None,
        soft_cap: float = 0.0,
        pool: Any = None,
        isa: str | None = None,
    ) -> list[Array]:
        """One call of the kernel: each (row, queries) attends with its last tokens; one output per chunk.

        Queries and outputs are strided, with guard columns around the output that must stay untouched.
        """
        width = num_heads * self.head_dim
        counts = [len(q) for _, q in chunks]
        start = np.cumsum([0, *counts]).astype(np.int32)
        query = np.full((start[-1], width + 3), np.nan, np.float32)
        query[:, 1:-2] = np.concatenate([q for _, q in chunks])
        out = np.full((start[-1] + 2, width + 5), 12345.0, np.float32)
        _native.attention(
            self.kv,
            self.layer,
            query[:, 1:-2],
            out[1:-1, 2:-3],
            num_heads,
            self.head_dim**-0.5 if scale is None else scale,
            window,
            np.array([row for row, _ in chunks], np.int32),
            start,
            np.array(seq_lens or [self.lengths[row] for row, _ in chunks], np.int32),
            pool or self.pool,
            isa or self.isa,
            soft_cap,
        )
        assert (out[[0, -1]] == 12345.0).all() and (out[:, :2] == 12345.0).all() and (out[:, -3:] == 12345.0).all()
        return [out[1:-1, 2:-3][a:b].copy() for a, b in itertools.pairwise(start)]

    def rounded_queries(self, queries: Array) -> Array:
        """As the kernels multiply them."""
        if self.dtype == "int8":
            limit = min(2**15 - 1, (2**31 - 1) // 127 // self.head_dim)
            return dequantise(*quantise(queries.reshape(-1, self.head_dim), limit)).reshape(queries.shape)
        # The bf16 dot instruction takes bf16 queries; the other paths keep them in float32.
        return round_to_bfloat16(queries) if self.isa == "avx512" and self.dtype == "bfloat16" else queries

    def dots_values(self) -> bool:
        """Whether values are weighted by the bf16 dot instruction, which takes bf16 numerators."""
        return self.isa == "avx512" and self.dtype == "bfloat16"

    def numerators(self, scores: Array) -> Array:
        """exp(scores) up to a factor per row; the bf16 dot instruction takes them rounded, relative to the greatest
        of each 128 tokens."""
        if not self.dots_values():
            return np.asarray(np.exp(scores - scores.max(axis=-1, keepdims=True)))
        weights = np.zeros_like(scores)
        top = scores.max(axis=-1, keepdims=True)
        for begin in range(0, scores.shape[-1], 128):
            piece = scores[..., begin : begin + 128]
            piece_top = piece.max(axis=-1, keepdims=True)
            piece_top = np.where(np.isneginf(piece_top), top, piece_top)
            rounded = round_to_bfloat16(np.exp(piece - piece_top).astype(np.float32))
            weights[..., begin : begin + 128] = rounded * np.exp(piece_top - top)
        return weights

    def expect(
        self,
        row: int,
        queries: Array,
        num_heads: int,
        *,
        end: int | None = None,
        window: int = 0,
        soft_cap: float = 0.0,
    ) -> Array:
        """The textbook formula in float64 for the last tokens of the first `end` of a row, roundings of the path
        included."""
        end = self.lengths[row] if end is None else end
        group = num_heads // self.num_kv_heads
        shape = (-1, self.num_kv_heads, self.head_dim)
        keys, values = (
            np.repeat(self.stored(x[row])[:end].reshape(shape).astype(np.float64), group, axis=1)
            for x in (self.keys, self.values)
        )
        q = self.rounded_queries(queries).astype(np.float64)
        q = q.reshape(-1, num_heads, self.head_dim)
        scores = q.transpose(1, 0, 2) @ keys.transpose(1, 2, 0) * self.head_dim**-0.5
        if soft_cap:
            scores = soft_cap * np.tanh(scores / soft_cap)
        position = np.arange(end - len(queries), end)[:, None]
        token = np.arange(end)
        hidden = token > position
        if window:
            hidden |= token <= position - window
        scores[:, hidden] = -np.inf
        weights = self.numerators(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray((weights @ values.transpose(1, 0, 2)).transpose(1, 0, 2)).reshape(len(queries), -1)
