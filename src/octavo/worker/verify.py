"""Lets the target judge drafts: which tokens are sampled, which of them count, and what that makes of the rows."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from octavo.backends.protocol import Int32Array
from octavo.core.step import Drafted, StepPlan
from octavo.messages import TokenLogprobs
from octavo.worker.batch_state import BatchState
from octavo.worker.drafter import Drafter


class Drafts:
    """One step's guesses, and where they are sampled.

    A row with j drafts is sampled at j + 1 positions: at its last known token and at each draft. *Sampled positions*
    are those of all sampled rows, one row after another.
    """

    def __init__(self, counts: Int32Array, sampled: Int32Array, of_sampled: Int32Array) -> None:
        self.counts = counts
        """[B], drafts of each row of the plan."""
        self._sampled = sampled
        self._of_sampled = of_sampled
        num_positions = of_sampled + 1
        self._first = np.cumsum(num_positions) - num_positions
        self.rows: Int32Array = np.repeat(sampled, num_positions)
        """Row of each sampled position."""
        self.ahead: Int32Array = (np.arange(len(self.rows)) - np.repeat(self._first, num_positions)).astype(np.int32)
        """Drafts before each sampled position."""

    def spread(self, last: Int32Array) -> Int32Array:
        """Each sampled position's place in the batch, from that of each sampled row's last token, drafts included."""
        return np.repeat(last - self._of_sampled, self._of_sampled + 1) + self.ahead

    def settle(
        self, state: BatchState, tokens: Sequence[int], logprobs: Sequence[TokenLogprobs | None] | None
    ) -> tuple[list[int], list[TokenLogprobs | None] | None, list[Drafted]]:
        """Append what counts of the tokens sampled at all positions, and set how far the rows are computed.

        A token counts if every draft before it is what was sampled in its place. One that could not be sampled (-1)
        does not, unless it is its row's first: without drafts that row would have failed a step later, and will.

        Returns:
            The first token and logprobs of each sampled row, and the rows with drafts.
        """
        firsts, drafted = [], []
        for row, count, first in zip(
            self._sampled.tolist(), self._of_sampled.tolist(), self._first.tolist(), strict=True
        ):
            firsts.append(tokens[first])
            length = int(state.num_tokens[row])
            if count:
                num_kept = _num_kept(tokens[first : first + count + 1], state.tokens[row, length : length + count])
                kept = range(first + 1, first + num_kept)
                found = None if logprobs is None else [e for i in kept if (e := logprobs[i]) is not None]
                drafted.append(Drafted(row, count, list(tokens[first + 1 : first + num_kept]), found or None))
                state.num_computed[row] -= count - max(0, num_kept - 1)
            elif row in state.num_candidates:
                continue  # a beam: the core chooses
            else:
                num_kept = int(tokens[first] >= 0)
            state.tokens[row, length : length + num_kept] = tokens[first : first + num_kept]
            state.num_tokens[row] = length + num_kept
        return firsts, None if logprobs is None else [logprobs[first] for first in self._first], drafted


def _num_kept(tokens: Sequence[int], drafts: Int32Array) -> int:
    """How many of the tokens sampled at a row's last token and its drafts count."""
    if tokens[0] < 0:
        return 0
    num_kept = 1
    for draft, token, following in zip(drafts.tolist(), tokens, tokens[1:], strict=False):
        if token != draft or following < 0:
            break
        num_kept += 1
    return num_kept


def draft(drafter: Drafter, plan: StepPlan, rows: Int32Array, sampled: Int32Array) -> tuple[Drafts | None, float]:
    """Let a drafter guess for the rows that were granted drafts.

    Returns:
        The drafts, None if it guesses nothing, and the seconds it took: it may have read what it had not seen yet.
    """
    started = time.perf_counter()
    granted = np.array(plan.num_drafts, np.int32)
    places = np.flatnonzero(granted)
    counts = np.zeros_like(granted)
    counts[places] = drafter.propose(rows[places], granted[places])
    seconds = time.perf_counter() - started
    if not counts.any():
        return None, seconds
    by_row = dict(zip(plan.rows, counts.tolist(), strict=True))
    of_sampled = np.array([by_row.get(row, 0) for row in plan.sample_rows], np.int32)
    return Drafts(counts, sampled, of_sampled), seconds
