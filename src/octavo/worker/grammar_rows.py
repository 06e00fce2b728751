"""Where each row is in its grammar, and which tokens may follow there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from octavo.backends.protocol import Int32Array, TokenMask
from octavo.core.step import RowFork, RowSetup
from octavo.worker.batch_state import BatchState
from octavo.worker.grammar_errors import explained, gave_up
from octavo.worker.grammar_store import GrammarStore

if TYPE_CHECKING:
    import llguidance


TIME_AT_FIRST_S = 1.0
TIME_PER_TOKEN_S = 0.02
"""CPU time that a row's grammar may take: a step waits for its masks, and everybody in it with them."""


class _Row(msgspec.Struct):
    matcher: llguidance.LLMatcher | None
    mask: TokenMask
    eos: TokenMask
    """The tokens that end the answer, where they are to wait until nothing else is left (`ignore_eos`); else none."""
    time_left_s: float = TIME_AT_FIRST_S
    failure: str | None = None
    """Why nothing can follow any more."""


class GrammarRows:
    """The matchers of rows that obey a grammar. Masks are built on a thread of its own, while the forward pass runs.

    Args:
        store: Where the grammars of `RowSetup.grammar_id` are; without one no row can have any.
        state: What is known of the rows.
    """

    def __init__(self, store: GrammarStore | None, state: BatchState) -> None:
        self._store = store
        self._state = state
        self._rows: dict[int, _Row] = {}
        self._thread: ThreadPoolExecutor | None = None
        self._building: Future[dict[int, TokenMask]] | None = None

    def __bool__(self) -> bool:
        return bool(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._rows

    def set_up(self, setup: RowSetup) -> None:
        """Begin with a row's grammar, and follow it through the tokens that its answer has already."""
        self.release(setup.row)
        if setup.grammar_id is None:
            return
        matcher = None if self._store is None else self._store.matcher(setup.grammar_id)
        mask = np.zeros(0 if self._store is None else self._store.mask_words, np.uint32)
        eos = np.zeros_like(mask)
        if setup.sampling.ignore_eos:
            _set_bits(eos, setup.eos_token_ids)
        row = self._rows[setup.row] = _Row(matcher, mask, eos)
        if matcher is None:
            row.failure = "the grammar is gone"
        elif not matcher.consume_tokens(setup.token_ids[setup.num_prompt_tokens :]):
            row.failure = explained(matcher)

    def fork(self, fork: RowFork) -> None:
        """A row begins where another one is."""
        source = self._rows.get(fork.source_row)
        self.release(fork.row)
        if source is not None:
            matcher = None if source.matcher is None else source.matcher.deep_copy()
            self._rows[fork.row] = _Row(
                matcher, np.zeros_like(source.mask), source.eos, source.time_left_s, source.failure
            )

    def release(self, row: int) -> None:
        self._rows.pop(row, None)

    def failure(self, row: int) -> str | None:
        """Why a row cannot go on; None if it can, or has no grammar."""
        found = self._rows.get(row)
        return None if found is None else found.failure

    # ---- a step

    def begin(self, rows: Iterable[int]) -> None:
        """Start to build the masks of those of `rows` that have a grammar. Until `masks` nothing else may be called."""
        wanted = [row for row in rows if row in self._rows]
        if wanted:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "octavo-masks")
            self._building = self._thread.submit(self._build, wanted)

    def masks(self) -> dict[int, TokenMask]:
        """What may follow, by row, once it is known. An empty mask for a row that has failed."""
        if self._building is None:
            return {}
        building, self._building = self._building, None
        return building.result()

    def accept(self, rows: Int32Array, token_ids: Int32Array) -> None:
        """Rows go on with what was sampled for them; -1 for those that failed."""
        for row, token_id in zip(rows.tolist(), token_ids.tolist(), strict=True):
            found = self._rows.get(row)
            if found is None or found.matcher is None or token_id < 0 or found.failure is not None:
                continue
            started_s = time.thread_time()
            taken = found.matcher.consume_token(token_id)
            _spend(found, time.thread_time() - started_s)
            if not taken:
                why = (
                    explained(found.matcher) if gave_up(found.matcher) else f"token {token_id} is none that may follow"
                )
                found.failure = found.failure or why

    def close(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._thread.shutdown()

    def _build(self, rows: list[int]) -> dict[int, TokenMask]:
        return {row: self._mask(row, self._rows[row]) for row in rows}

    def _mask(self, number: int, row: _Row) -> TokenMask:
        mask = row.mask
        if row.failure is None and row.matcher is not None:
            started_s = time.thread_time()
            row.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            _spend(row, time.thread_time() - started_s)
            row.time_left_s += TIME_PER_TOKEN_S
            if row.matcher.is_error():
                row.failure = explained(row.matcher)
        if row.failure is not None:
            mask[:] = 0
            return mask
        unwanted = row.eos
        if (banned := self._state.banned_stops(number)) is not None:
            unwanted = unwanted.copy()
            _set_bits(unwanted, banned.tolist())
        if unwanted.any():
            left = mask & ~unwanted
            if left.any():  # or else the answer is complete, and nothing but its end is left
                mask[:] = left
        return mask


def _spend(row: _Row, seconds: float) -> None:
    row.time_left_s -= seconds
    if row.time_left_s < 0 and row.failure is None:
        row.failure = "the grammar takes too much time: what may follow is too hard to tell, token after token"


def _set_bits(mask: TokenMask, token_ids: Iterable[int]) -> None:
    for token_id in token_ids:
        if token_id // 32 < len(mask):
            mask[token_id // 32] |= np.uint32(1 << token_id % 32)
