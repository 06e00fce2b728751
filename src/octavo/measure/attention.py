"""Attention over full KV memory: decode over scattered and over contiguous blocks, and prefill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from octavo import _native
from octavo.measure.cases import Case, Clock
from octavo.measure.shapes import Shapes

KV_ARITHMETIC = {"bfloat16": "bfloat16", "int8": "bfloat16", "float32": "float32"}
"""KV dtype -> the arithmetic that bounds attention over it. (int8's values are widened; no peak is its own.)"""


@dataclass(frozen=True)
class Layout:
    """Where the blocks of a batch lie."""

    name: str
    block_size: int
    """Tokens."""
    scattered: bool
    """In random order, or each sequence's next to each other."""
    shared: bool = True
    """All layers in one memory, as they are served: a block holds its tokens' KV of every layer. Otherwise each layer
    has a memory of its own, in which neighbouring blocks follow each other without a gap."""


PAGED = Layout("blocks of 16", 16, scattered=True)
CONTIGUOUS = Layout("contiguous", 256, scattered=False, shared=False)
"""The largest blocks, in order: as near to one long array a sequence as the kernel can be given."""


@dataclass(frozen=True)
class Batch:
    """Sequences of one length; the last `new` tokens of each are the queries."""

    num_seqs: int
    context: int
    new: int = 1

    @property
    def size(self) -> str:
        what = "decode" if self.new == 1 else f"prefill {self.new} of"
        return f"{what} {self.num_seqs} x {self.context}" if self.new == 1 else f"{what} {self.context}"


DECODES = (Batch(1, 512), Batch(1, 4096), Batch(16, 512), Batch(16, 4096))
PREFILLS = (Batch(1, 512, 512), Batch(1, 4096, 512))


def make_memory(
    shapes: Shapes, batch: Batch, dtype: str, num_layers: int, block_size: int, *, scattered: bool
) -> _native.KVMemory:
    """A full KV memory: every block of every layer holds finite values."""
    columns = -(-batch.context // block_size)
    num_blocks = batch.num_seqs * columns + 1
    kv = _native.KVMemory(
        layer_groups=(0,) * num_layers,
        num_kv_heads=shapes.num_kv_heads,
        head_dim=shapes.head_dim,
        dtype=dtype,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=batch.num_seqs,
        max_blocks_per_seq=columns,
    )
    rng = np.random.default_rng(0)
    pool = _native.ThreadPool(1)
    key, value = rng.standard_normal((2, block_size, shapes.kv_width), np.float32)
    tokens = np.arange(block_size, dtype=np.int32)
    kv.block_tables[0, 0, 0] = 1
    for layer in range(num_layers):
        _native.write_kv(kv, layer, key, value, tokens, np.zeros_like(tokens), pool, "portable")
    data = kv.export_block(1)
    blocks = np.arange(1, num_blocks)
    for block in blocks.tolist():
        kv.import_block(block, data)
    kv.block_tables[0] = (rng.permutation(blocks) if scattered else blocks).reshape(batch.num_seqs, columns)
    return kv


class AttentionPass:
    """Attention of all layers over one batch."""

    def __init__(
        self,
        shapes: Shapes,
        batch: Batch,
        dtype: str,
        pool: _native.ThreadPool,
        isa: str,
        layout: Layout = PAGED,
    ) -> None:
        self._shapes, self._batch, self._dtype, self._pool, self._isa = shapes, batch, dtype, pool, isa
        self._layout = layout
        layers, size, scattered = shapes.num_layers, layout.block_size, layout.scattered
        if layout.shared:
            kv = make_memory(shapes, batch, dtype, layers, size, scattered=scattered)
            self._layers = [(kv, layer) for layer in range(layers)]
        else:
            memories = [make_memory(shapes, batch, dtype, 1, size, scattered=scattered) for _ in range(layers)]
            self._layers = [(kv, 0) for kv in memories]

    @property
    def kv(self) -> _native.KVMemory:
        """The memory of the first layer."""
        return self._layers[0][0]

    def case(self) -> Case:
        """Floor: every key and value of the batch once, or two products for every pair of query and key it sees."""
        shapes, batch = self._shapes, self._batch
        rng = np.random.default_rng(1)
        query = rng.standard_normal((batch.num_seqs * batch.new, shapes.query_width), np.float32)
        out: Any = np.zeros_like(query)
        rows = np.arange(batch.num_seqs, dtype=np.int32)
        starts = np.arange(batch.num_seqs + 1, dtype=np.int32) * batch.new
        lengths = np.full(batch.num_seqs, batch.context, np.int32)
        scale = float(shapes.head_dim**-0.5)

        def run(clock: Clock) -> float:
            start = clock()
            _native.attention_layers(
                self._layers, query, out, shapes.num_heads, scale, rows, starts, lengths, self._pool, self._isa
            )
            return clock() - start

        seen = batch.num_seqs * sum(range(batch.context - batch.new + 1, batch.context + 1))
        return Case(
            kernel="attention",
            form=f"{self._dtype}, {self._layout.name}",
            size=batch.size,
            run=run,
            num_bytes=self._num_bytes(),
            num_ops=shapes.num_layers * seen * 4 * shapes.query_width,
            arithmetic=KV_ARITHMETIC[self._dtype],
            num_calls=shapes.num_layers,
        )

    def _num_bytes(self) -> float:
        """Of the batch's tokens, in all layers."""
        memories = 1 if self._layout.shared else len(self._layers)
        per_token = self.kv.bytes_per_block / self._layout.block_size * memories
        return float(self._batch.num_seqs * self._batch.context * per_token)


def attention_cases(
    shapes: Shapes, dtypes: Sequence[str], max_context: int, pool: _native.ThreadPool, isa: str
) -> Iterator[list[Case]]:
    """The forms of each batch: every dtype in blocks, then the first one contiguous where that is a question."""
    for batch in (*DECODES, *PREFILLS):
        if batch.context > max_context:
            continue
        passes = [AttentionPass(shapes, batch, dtype, pool, isa) for dtype in dtypes]
        passes.append(AttentionPass(shapes, batch, dtypes[0], pool, isa, CONTIGUOUS))
        yield [each.case() for each in passes]
