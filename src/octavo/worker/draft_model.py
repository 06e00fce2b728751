"""A smaller model guesses: its own weights, program and KV memory, on the target's back end."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np

from octavo.backends.protocol import Array, Backend, Int32Array, KVMemory, KVShape, Program, StepBatch
from octavo.errors import ConfigError
from octavo.models.decoder import decoder
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.weights.sources import open_checkpoint, resolve
from octavo.worker.batch_state import BatchState
from octavo.worker.drafter import Drafter, DraftSettings
from octavo.worker.sampler import sample_batch

BLOCK_SIZE = 32
KV_TOKENS = 16384
"""Tokens that a draft model's KV memory holds, unless a single sequence is longer or all sequences are shorter."""


class DraftMemory:
    """Blocks for the rows that a draft model follows; whoever was asked for longest ago makes room."""

    def __init__(self, kv: KVMemory, *, erase: bool) -> None:
        self.kv = kv
        self._erase = erase
        self._free = list(range(kv.shape.num_blocks - 1, 0, -1))
        self._blocks: OrderedDict[int, list[int]] = OrderedDict()
        """By row, oldest first: one block of each group per column."""

    def __contains__(self, row: int) -> bool:
        return row in self._blocks

    def grow(self, row: int, num_tokens: int, keep: set[int]) -> bool:
        """Let a row have slots for so many tokens. False, and it has what it had, if the rows to `keep` leave no room;
        other rows may be forgotten."""
        shape = self.kv.shape
        held = self._blocks.get(row, [])
        first = len(held) // shape.num_groups
        last = -(-num_tokens // shape.block_size)
        missing = (last - first) * shape.num_groups
        for other in [other for other in self._blocks if other not in keep and other != row]:
            if missing <= len(self._free):
                break
            self.forget(other)
        if missing > len(self._free):
            return False
        self._blocks[row] = held
        self._blocks.move_to_end(row)
        for column in range(first, last):
            for group in range(shape.num_groups):
                held.append(self._free.pop())
                self.kv.block_tables[group, row, column] = held[-1]
        return True

    def forget(self, row: int) -> None:
        blocks = self._blocks.pop(row, [])
        if blocks and self._erase:
            self.kv.erase_blocks(blocks)
        self._free += reversed(blocks)


class DraftModel:
    """Guesses what a smaller model would say, drawn with the target's own noise and parameters.

    It follows rows by their tokens alone: what it has computed of a row is compared with what the row holds now, and
    the rest is caught up with, at most a step's tokens at a time. So rejected drafts, preemptions and prefix hits need
    not be told. A row it has not caught up with yet gets no draft.

    Args:
        program: Of the draft model, compiled for `max_num_tokens`.
        limit: Tokens of a row past which the draft model does not follow.
        erase: Zero the KV of rows that are forgotten.
    """

    def __init__(
        self,
        backend: Backend,
        program: Program,
        kv: KVMemory,
        state: BatchState,
        *,
        max_num_tokens: int,
        limit: int,
        erase: bool,
    ) -> None:
        self._backend = backend
        self._program = program
        self._state = state
        self._max_num_tokens = max_num_tokens
        self._limit = limit
        self.memory = DraftMemory(kv, erase=erase)
        self._fed: Int32Array = np.zeros((kv.shape.max_num_seqs, limit), np.int32)
        """Tokens whose KV is in the draft model's memory."""
        self._num_fed: Int32Array = np.zeros(kv.shape.max_num_seqs, np.int32)

    def propose(self, rows: Int32Array, most: Int32Array) -> Int32Array:
        counts: Int32Array = np.zeros(len(rows), np.int32)
        known = self._state.num_tokens[rows]
        starts, ends = self._catch_up(rows, known, most)
        places = np.flatnonzero(ends > starts)
        ahead = 0
        while len(places):
            is_last = ends[places] == known[places] + ahead
            tokens = self._compute(rows[places], starts[places], ends[places], is_last, ahead)
            places = places[is_last][tokens >= 0]
            self._state.tokens[rows[places], known[places] + ahead] = tokens[tokens >= 0]
            counts[places] += 1
            ahead += 1
            places = places[most[places] > ahead]
            starts, ends = known + (ahead - 1), known + ahead
        return counts

    def _catch_up(self, rows: Int32Array, known: Int32Array, most: Int32Array) -> tuple[Int32Array, Int32Array]:
        """The known tokens to compute first, from where to where per row; none for a row that cannot be followed."""
        starts, ends = np.zeros_like(known), np.zeros_like(known)
        keep, left = set(rows.tolist()), self._max_num_tokens
        for i, (row, num_known) in enumerate(zip(rows.tolist(), known.tolist(), strict=True)):
            start = self._num_right(row, num_known)
            last = num_known + int(most[i]) - 1  # nothing follows the last draft
            if last <= self._limit and self.memory.grow(row, last, keep):
                starts[i], ends[i] = start, min(num_known, start + left)
                left -= int(ends[i] - starts[i])
        return starts, ends

    def _num_right(self, row: int, num_known: int) -> int:
        """Tokens of a row, without the last one, whose KV is there."""
        if row not in self.memory:
            return 0
        count = min(int(self._num_fed[row]), num_known - 1)
        differs = self._fed[row, :count] != self._state.tokens[row, :count]
        return int(differs.argmax()) if differs.any() else count

    def _compute(
        self, rows: Int32Array, starts: Int32Array, ends: Int32Array, is_last: Array, ahead: int
    ) -> Int32Array:
        """Feed tokens `starts` to `ends - 1` of each row, and draw a token where these are its last ones."""
        state, counts = self._state, ends - starts
        query_start_loc: Int32Array = np.zeros(len(rows) + 1, np.int32)
        np.cumsum(counts, out=query_start_loc[1:])
        token_rows = np.repeat(rows, counts)
        positions = np.arange(query_start_loc[-1], dtype=np.int32) + np.repeat(starts - query_start_loc[:-1], counts)
        token_ids = state.tokens[token_rows, positions]
        logits = self._program.run(
            StepBatch(
                token_ids=token_ids,
                positions=positions,
                batch_rows=rows,
                query_start_loc=query_start_loc,
                seq_lens=ends,
                logits_tokens=query_start_loc[1:][is_last] - 1,
            )
        )
        self._fed[token_rows, positions] = token_ids
        self._num_fed[rows] = ends
        drawn = rows[is_last]
        if not len(drawn):
            return drawn
        batch = sample_batch(state, drawn, np.full(len(drawn), ahead, np.int32))
        batch.num_logprobs = np.full(len(drawn), -1, np.int32)
        return self._backend.sample(logits, batch).token_ids

    def forget(self, row: int) -> None:
        self.memory.forget(row)


class DraftModelSource:
    """See `drafter.DraftSource`. Loads the weights at once.

    Raises:
        ModelError: If the draft model cannot be loaded.
        ConfigError: If its vocabulary is not the target's.
    """

    def __init__(self, settings: DraftSettings) -> None:
        self._settings = settings
        config, backend = settings.config, settings.backend
        files = resolve(settings.drafting.model or "", download_dir=config.model.download_dir)
        checkpoint = open_checkpoint(files, num_threads=config.execution.num_threads)
        try:
            self._spec = spec = decoder_spec(checkpoint.config, settings.limit)
            if spec.vocab_size != settings.spec.vocab_size:
                allowed = f"a model of {settings.spec.vocab_size} tokens, as the target is; it has {spec.vocab_size}"
                raise ConfigError("speculative_config.model", settings.drafting.model, allowed)
            self._weights = load(checkpoint, spec, backend, settings.dtype, settings.config.model.quantization)
        finally:
            checkpoint.close()
        self._limit = min(settings.limit, spec.max_position)

    @property
    def num_bytes(self) -> int:
        shape = self._shape()
        return shape.num_blocks * shape.bytes_per_block + self._spec.activation_bytes(self._max_num_tokens)

    def make(self, state: BatchState) -> Drafter:
        backend = self._settings.backend
        kv = backend.allocate_kv(self._shape())
        return DraftModel(
            backend,
            backend.compile(decoder(self._spec, self._weights), kv, self._max_num_tokens),
            kv,
            state,
            max_num_tokens=self._max_num_tokens,
            limit=self._limit,
            erase=self._settings.config.cache.erase_freed_blocks,
        )

    @property
    def _max_num_tokens(self) -> int:
        scheduler = self._settings.config.scheduler
        return max(scheduler.max_num_batched_tokens, scheduler.max_num_seqs)

    def _shape(self) -> KVShape:
        spec, max_num_seqs = self._spec, self._settings.config.scheduler.max_num_seqs
        num_columns = -(-self._limit // BLOCK_SIZE)
        most = num_columns * max_num_seqs
        return KVShape(
            layer_groups=(0,) * spec.num_layers,  # nothing leaves a window here, so all layers keep KV alike
            num_kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            dtype=self._settings.kv_dtype,
            block_size=BLOCK_SIZE,
            num_blocks=1 + min(most, max(num_columns, KV_TOKENS // BLOCK_SIZE)),
            max_num_seqs=max_num_seqs,
            max_blocks_per_seq=num_columns,
        )
