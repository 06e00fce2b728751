"""What a worker remembers about each row: its tokens, its progress, and how to sample for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import Float32Array, Int32Array, TokenMask
from octavo.core.step import RowFork, RowSetup
from octavo.messages import GREEDY_TEMPERATURE

Int64Array = npt.NDArray[np.int64]


def state_bytes(max_num_seqs: int, max_model_len: int) -> int:
    """Memory of a BatchState, nearly: its tokens."""
    return 4 * max_num_seqs * (max_model_len + 2)


def mask_of(token_ids: Iterable[int]) -> TokenMask:
    """A mask with the bits of these tokens, as wide as they need."""
    ids = np.array(sorted(set(token_ids)), np.int64)
    mask: TokenMask = np.zeros(int(ids.max(initial=-1)) // 32 + 1, np.uint32)
    np.bitwise_or.at(mask, ids // 32, np.uint32(1) << (ids % 32).astype(np.uint32))
    return mask


class BatchState:
    """Arrays with one entry per row. Written when a row is set up and when a token is sampled, never per step.

    The last sampled token of a row lives here, so a plan can be made before it is known.
    """

    def __init__(self, max_num_seqs: int, max_model_len: int) -> None:
        n = max_num_seqs
        # One column past the context: at depth 2 a row that has just finished computes one more slot.
        self.tokens: Int32Array = np.zeros((n, max_model_len + 2), np.int32)
        self.num_tokens: Int32Array = np.zeros(n, np.int32)
        self.num_computed: Int32Array = np.zeros(n, np.int32)
        self.num_prompt: Int32Array = np.zeros(n, np.int32)
        self.temperature: Float32Array = np.zeros(n, np.float32)
        self.top_k: Int32Array = np.zeros(n, np.int32)
        self.top_p: Float32Array = np.ones(n, np.float32)
        self.min_p: Float32Array = np.zeros(n, np.float32)
        self.repetition_penalty: Float32Array = np.ones(n, np.float32)
        self.presence_penalty: Float32Array = np.zeros(n, np.float32)
        self.frequency_penalty: Float32Array = np.zeros(n, np.float32)
        self.seed: Int64Array = np.zeros(n, np.int64)
        self.sequence_index: Int32Array = np.zeros(n, np.int32)
        self.num_logprobs: Int32Array = np.full(n, -1, np.int32)
        self.num_prompt_logprobs: Int32Array = np.full(n, -1, np.int32)
        self.min_tokens: Int32Array = np.zeros(n, np.int32)
        self.has_penalties = np.zeros(n, np.bool_)
        self.takes_largest = np.zeros(n, np.bool_)
        """Rows whose next token is that of their largest logit, and nothing else of the logits is asked for."""
        self.bias: dict[int, tuple[Int32Array, Float32Array]] = {}
        """Rows with a logit bias: token ids and what is added."""
        self.stop_ids: dict[int, Int32Array] = {}
        """Rows with `min_tokens`: the tokens that may not be chosen before."""
        self.allowed: dict[int, TokenMask] = {}
        """Rows that may choose among some tokens only."""
        self.bad_token_ids: dict[int, tuple[tuple[int, ...], ...]] = {}
        """Rows with runs of tokens whose last one may not be chosen after the others."""
        self.num_candidates: dict[int, int] = {}
        """Rows of beams: how many of the likeliest tokens they report instead of having one chosen."""
        self.version = 0
        """Counts changes of what rows wish for: while it stays, only tokens and progress change."""
        self._arrays = [a for a in vars(self).values() if isinstance(a, np.ndarray) and a is not self.tokens]
        self._wishes: list[dict[int, Any]] = [d for d in vars(self).values() if isinstance(d, dict)]

    def set_up(self, setup: RowSetup) -> None:
        """Take a newly admitted row. Whatever the row held before is gone."""
        row, params, tokens = setup.row, setup.sampling, setup.token_ids
        self.release(row)
        self.tokens[row, : len(tokens)] = tokens
        self.num_tokens[row] = len(tokens)
        self.num_computed[row] = setup.num_computed_tokens
        self.num_prompt[row] = setup.num_prompt_tokens
        self.temperature[row] = params.temperature
        self.top_k[row] = min(params.top_k, np.iinfo(np.int32).max)
        self.top_p[row] = params.top_p
        self.min_p[row] = params.min_p
        self.repetition_penalty[row] = params.repetition_penalty
        self.presence_penalty[row] = params.presence_penalty
        self.frequency_penalty[row] = params.frequency_penalty
        self.seed[row] = setup.seed
        self.sequence_index[row] = setup.sequence_index
        self.num_logprobs[row] = -1 if params.logprobs is None else params.logprobs
        if params.prompt_logprobs is not None and setup.sequence_index == 0:
            self.num_prompt_logprobs[row] = params.prompt_logprobs
        self.has_penalties[row] = (
            params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
        )
        if params.logit_bias:
            ids = np.array(list(params.logit_bias), np.int32)
            self.bias[row] = ids, np.array(list(params.logit_bias.values()), np.float32)
        if params.min_tokens > 0:
            eos = () if params.ignore_eos else setup.eos_token_ids
            self.min_tokens[row] = params.min_tokens
            self.stop_ids[row] = np.array([*eos, *params.stop_token_ids], np.int32)
        if params.allowed_token_ids is not None:
            self.allowed[row] = mask_of(params.allowed_token_ids)
        if setup.bad_token_ids:
            self.bad_token_ids[row] = setup.bad_token_ids
        wants_more = params.logprobs is not None or setup.num_candidates > 0
        edits = self.has_penalties[row] or setup.grammar_id is not None or any(row in w for w in self._wishes)
        self.takes_largest[row] = params.temperature <= GREEDY_TEMPERATURE and not wants_more and not edits
        if setup.num_candidates > 0:
            self.num_candidates[row] = max(setup.num_candidates, params.logprobs or 0)

    def fork(self, fork: RowFork) -> None:
        """Make a row the twin of another, but for its index. Whatever the row held before is gone.

        Raises:
            ValueError: If the source holds no sequence.
        """
        source, row, length = fork.source_row, fork.row, int(self.num_tokens[fork.source_row])
        if length == 0:
            raise ValueError(f"row {row} is forked from row {source}, which holds no sequence")
        self.tokens[row, :length] = self.tokens[source, :length]
        for array in self._arrays:
            array[row] = array[source]
        for wishes in self._wishes:
            wishes.pop(row, None)
            if source in wishes:
                wishes[row] = wishes[source]  # never changed in place, so twins may share it
        self.version += 1
        self.sequence_index[row] = fork.sequence_index
        if fork.sequence_index != 0:
            self.num_prompt_logprobs[row] = -1

    def release(self, row: int) -> None:
        """Forget a row's wishes, so that nothing of it reaches the next one."""
        self.version += 1
        for wishes in self._wishes:
            wishes.pop(row, None)
        self.num_tokens[row] = 0
        self.num_logprobs[row] = -1
        self.num_prompt_logprobs[row] = -1
        self.min_tokens[row] = 0
        self.has_penalties[row] = False
        self.takes_largest[row] = False

    def banned_stops(self, row: int, length: int | None = None) -> Int32Array | None:
        """The tokens by which a row of so many tokens (by default, those it has) may not stop yet."""
        stops = self.stop_ids.get(row)
        if stops is None:
            return None
        generated = (self.num_tokens[row] if length is None else length) - self.num_prompt[row]
        return stops if generated < self.min_tokens[row] else None

    def append(self, rows: Int32Array, token_ids: Int32Array) -> None:
        """Add each row's sampled token."""
        self.tokens[rows, self.num_tokens[rows]] = token_ids
        self.num_tokens[rows] += 1
