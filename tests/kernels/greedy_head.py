"""A head that is asked for the largest of its products, beside all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from octavo import _native
from support.paged_steps import kv_shape, scatter_blocks, step

Array = np.ndarray[Any, Any]


class GreedyHead:
    """A program of one product, of selected rows of `x` with a head, and the head's screen.

    Args:
        pack: Makes the head's matrix.
    """

    def __init__(
        self, x: Array, isa: str, threads: int, pack: Callable[[_native.Arena, _native.ThreadPool], _native.Matrix]
    ) -> None:
        arena, pool = _native.Arena(), _native.ThreadPool(threads)
        shape = kv_shape(max_tokens=1024)
        kv = _native.KVMemory(
            layer_groups=list(shape.layer_groups),
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            dtype="float32",
            block_size=shape.block_size,
            num_blocks=shape.num_blocks,
            max_num_seqs=shape.max_num_seqs,
            max_blocks_per_seq=shape.max_blocks_per_seq,
        )
        kv.shape = shape
        scatter_blocks(kv, [len(x)])
        self.table = _native.Matrix(arena, *x.shape, _native.WeightFormat.float32(), isa)
        self.table.pack(np.ascontiguousarray(x, np.float32), 0, pool)
        self.head = pack(arena, pool)
        self.screen = _native.Screen(self.head, arena, pool)
        self.program = _native.Program(isa, kv, pool, len(x))
        width = x.shape[1]
        rows, picked = self.program.add_slot(width, False), self.program.add_slot(width, True)
        self.logits = self.program.add_slot(self.head.n, True)
        self.program.embedding(self.table, rows)
        self.program.select((rows, 0, width), picked)
        self.program.linear((picked, 0, width), self.head, [], self.logits)
        self.program.set_output((self.logits, 0, self.head.n))
        self.program.set_screen(self.screen)

    def expected(self, rows: range) -> list[int]:
        """From all logits."""
        found = []
        for logits in np.array(self.program.run(*self._step(rows))):
            finite = not np.isnan(logits).any() and np.isfinite(logits.max())
            found.append(int(np.flatnonzero(logits == logits.max())[0]) if finite else -1)
        return found

    def greedy(self, rows: range, *, wanted: bool = True) -> list[int]:
        """The tokens of the rows; of none of them unless they are wanted."""
        tokens: list[int] = self.program.run_greedy(*self._step(rows, wanted=wanted)).tolist()
        return tokens

    @staticmethod
    def _step(rows: range, *, wanted: bool = True) -> tuple[Any, ...]:
        s = step([np.array(rows)], [(0, 0, len(rows))])
        chosen = s.logits_tokens if wanted else s.logits_tokens[:0]
        return s.token_ids, s.positions, s.batch_rows, s.query_start_loc, s.seq_lens, chosen
