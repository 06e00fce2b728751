"""Who guesses the next tokens of a row. A guess costs time when it is wrong, and never changes an answer."""

from __future__ import annotations

from typing import Protocol

import msgspec
import numpy as np

from octavo.backends.protocol import Backend, Int32Array
from octavo.config import DraftingConfig, EngineConfig
from octavo.models.spec import DecoderSpec
from octavo.worker.batch_state import BatchState


class Drafter(Protocol):
    def propose(self, rows: Int32Array, most: Int32Array) -> Int32Array:
        """Guess up to `most[i]` tokens that follow the known ones of `rows[i]`; returns how many, int32 `[len(rows)]`.

        The guesses are written into the state's `tokens` after the row's `num_tokens`, which stays as it is. They are
        ids of the target's vocabulary. Rows are distinct, each with at least one known token and `most[i]` above 0.
        """
        ...

    def forget(self, row: int) -> None:
        """A row was released: nothing of what it held is kept."""
        ...


class DraftSource(Protocol):
    """What a drafter is made of, opened before the KV memory is sized."""

    @property
    def num_bytes(self) -> int:
        """Memory it will take besides what it holds already."""
        ...

    def make(self, state: BatchState) -> Drafter: ...


class DraftSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a source is opened for."""

    config: EngineConfig
    drafting: DraftingConfig
    spec: DecoderSpec
    """Of the target."""
    backend: Backend
    dtype: str
    kv_dtype: str
    limit: int
    """Tokens of a sequence at most."""


class PromptLookup:
    """Guesses that what followed the last few tokens before follows them again.

    Looks for the longest run of the last `longest` down to `shortest` tokens that stands somewhere earlier in the row,
    prompt and answer alike, and among equals for the latest; what came after it is the guess. Where that runs into the
    row's end the repetition goes on. After Saxena, "Prompt Lookup Decoding" (2023).
    """

    def __init__(self, state: BatchState, *, shortest: int, longest: int) -> None:
        self._state = state
        self._shortest = shortest
        self._longest = longest

    def propose(self, rows: Int32Array, most: Int32Array) -> Int32Array:
        state = self._state
        counts: Int32Array = np.zeros(len(rows), np.int32)
        for i, (row, count) in enumerate(zip(rows.tolist(), most.tolist(), strict=True)):
            length = int(state.num_tokens[row])
            tokens = state.tokens[row]
            start = self._earlier(tokens[:length])
            if start is not None:
                following = tokens[start : min(length, start + count)]
                tokens[length : length + count] = np.resize(following, count)
                counts[i] = count
        return counts

    def _earlier(self, tokens: Int32Array) -> int | None:
        """Where what follows the earlier run begins; None without one."""
        last = len(tokens) - 1
        ends = np.flatnonzero(tokens[:last] == tokens[last])
        size, found = 1, None
        while len(ends):
            if size >= self._shortest:
                found = int(ends[-1]) + 1
            if size == self._longest or last < size:
                break
            ends = ends[ends >= size]
            ends = ends[tokens[ends - size] == tokens[last - size]]
            size += 1
        return found

    def forget(self, row: int) -> None:
        """It remembers nothing."""


class PromptLookupSource:
    """See `DraftSource`."""

    num_bytes = 0

    def __init__(self, settings: DraftSettings) -> None:
        self._drafting = settings.drafting

    def make(self, state: BatchState) -> Drafter:
        drafting = self._drafting
        return PromptLookup(state, shortest=drafting.prompt_lookup_min, longest=drafting.prompt_lookup_max)
