"""A ModelRunner over one attention layer on the reference back end, small enough to reason about."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.backends.reference import ReferenceBackend
from octavo.core.step import RowSetup, StepPlan
from octavo.messages import SamplingParams
from octavo.worker.batch_state import BatchState
from octavo.worker.model_runner import ModelRunner
from octavo.worker.tier_store import HostTier
from support.paged_steps import kv_shape

VOCAB = 20
GREEDY = SamplingParams(temperature=0.0, max_tokens=9)


class NotedKV:
    """The reference KV memory, with a note of what is done to it."""

    def __init__(self, kv: Any, notes: list[Any]) -> None:
        self._kv = kv
        self._notes = notes

    def swap_out(self, block: int, slot: Any) -> None:
        self._notes.append(("swap out", block))
        self._kv.swap_out(block, slot)

    def swap_in(self, slot: Any, block: int) -> None:
        self._notes.append(("swap in", block))
        self._kv.swap_in(slot, block)

    def erase_blocks(self, blocks: Any) -> None:
        self._notes.append(("erase", list(blocks), self.block_tables[0, 0, :2].tolist()))
        self._kv.erase_blocks(blocks)

    def copy_blocks(self, pairs: Any) -> None:
        self._notes.append(("copy", list(pairs)))
        self._kv.copy_blocks(pairs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kv, name)


class NotedTier(HostTier):
    """A host tier with a note of what it forgets."""

    def __init__(self, num_slots: int, bytes_per_slot: int, notes: list[Any]) -> None:
        super().__init__(num_slots, bytes_per_slot, erase=True)
        self._notes = notes

    def discard(self, key: int) -> None:
        self._notes.append(("discard", key))
        super().discard(key)


class Worker:
    """A runner over one attention layer per group on embeddings, whose logits depend on the whole sequence."""

    def __init__(self, table: Any = None, *, num_groups: int = 1, tier: Any = None) -> None:
        self.backend = ReferenceBackend("float32")
        self.notes: list[Any] = []
        self.kv = NotedKV(
            self.backend.allocate_kv(kv_shape(range(num_groups), block_size=4, max_tokens=64)), self.notes
        )
        x = np.random.default_rng(1).standard_normal((VOCAB, 16)).astype(np.float32) if table is None else table
        weight = self.backend.matrix([x])
        head = self.backend.matrix([np.random.default_rng(2).standard_normal((VOCAB, 16)).astype(np.float32)])

        def build(ops: Any) -> Any:
            self.notes.append(("forward",))
            embedded = ops.embedding(weight)
            x = embedded
            for layer in range(num_groups):
                ops.write_kv(layer, embedded, embedded)
                x = ops.add(ops.paged_attention(layer, x, scale=0.5), embedded)
            return ops.linear(ops.select(x), head)

        self.state = BatchState(4, 64)
        self.tier = tier or NotedTier(8, self.kv.shape.bytes_per_block, self.notes)
        program = self.backend.compile(build, self.kv, 64)
        self.runner = ModelRunner(self.backend, program, self.kv, self.state, self.tier)
        self.num_steps = 0

    def run(self, rows: dict[int, int], sampled: list[int], **more: Any) -> Any:
        """One plan: new tokens per row."""
        self.num_steps += 1
        plan = StepPlan(self.num_steps, list(rows), list(rows.values()), sampled, [], [], [])
        for name, value in more.items():
            setattr(plan, name, value)
        return self.runner.execute(plan)


def admit(
    row: int, tokens: list[int], sampling: SamplingParams = GREEDY, num_prompt: int | None = None, **more: Any
) -> RowSetup:
    settings: dict[str, Any] = {"seed": row, "sequence_index": 0, **more}
    return RowSetup(row, tokens, num_prompt or len(tokens), 0, sampling, **settings)


def blocks_of(row: int, count: int = 8, group: int = 0) -> list[tuple[int, int, int, int]]:
    first = 1 + (group * 4 + row) * 16
    return [(group, row, column, first + column) for column in range(count)]
