"""From rows and logits to the arrays a back end samples by, and back to results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from octavo.backends.protocol import Array, Float32Array, Int32Array, SampleBatch, SampleOutput, TokenMask
from octavo.messages import TokenLogprobs
from octavo.worker.batch_state import BatchState

_NO_IDS: Int32Array = np.zeros(0, np.int32)
_NO_VALUES: Float32Array = np.zeros(0, np.float32)
_NO_MASKS: TokenMask = np.zeros((0, 0), np.uint32)
_GROUP = 64


def sample_batch(
    state: BatchState,
    rows: Int32Array,
    ahead: Int32Array | None = None,
    masks: Mapping[int, TokenMask] | None = None,
) -> SampleBatch:
    """The sampling parameters of `rows`, in their order.

    Args:
        ahead: Tokens past each row's known ones, written in `state.tokens`, that count as known for its sample.
        masks: What the grammars of some rows allow, by row. They have settled when such a row may stop.
    """
    listed: list[int] = rows.tolist()
    lengths: Int32Array = state.num_tokens[rows] if ahead is None else state.num_tokens[rows] + ahead
    history_start, history = _ragged(
        rows, bool(state.has_penalties[rows].any()), lambda i: _history(state, listed[i], lengths[i]), _NO_IDS
    )
    bias_start, bias_ids = _ragged(
        rows, bool(state.bias), lambda i: state.bias.get(listed[i], (_NO_IDS, _NO_VALUES))[0], _NO_IDS
    )
    _, bias_values = _ragged(
        rows, bool(state.bias), lambda i: state.bias.get(listed[i], (_NO_IDS, _NO_VALUES))[1], _NO_VALUES
    )
    banned_start, banned_ids = _ragged(
        rows,
        bool(state.stop_ids or state.bad_token_ids),
        lambda i: _banned(state, listed[i], int(lengths[i]), listed[i] in (masks or ())),
        _NO_IDS,
    )
    mask_index, stacked = _masks(state, listed, masks or {})
    return SampleBatch(
        temperature=state.temperature[rows],
        top_k=state.top_k[rows],
        top_p=state.top_p[rows],
        min_p=state.min_p[rows],
        repetition_penalty=state.repetition_penalty[rows],
        presence_penalty=state.presence_penalty[rows],
        frequency_penalty=state.frequency_penalty[rows],
        seed=state.seed[rows],
        sequence_index=state.sequence_index[rows],
        position=lengths,
        history_start=history_start,
        history=history,
        num_prompt=state.num_prompt[rows],
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias_values=bias_values,
        banned_start=banned_start,
        banned_ids=banned_ids,
        mask_index=mask_index,
        masks=stacked,
        num_logprobs=state.num_logprobs[rows],
    )


def _history(state: BatchState, row: int, length: int) -> Int32Array:
    return state.tokens[row, :length] if state.has_penalties[row] else _NO_IDS


def _banned(state: BatchState, row: int, length: int, has_grammar: bool) -> Int32Array:
    stops = None if has_grammar else state.banned_stops(row, length)
    bad = state.bad_token_ids.get(row)
    if bad is None:
        return _NO_IDS if stops is None else stops
    first = int(state.num_prompt[row])
    ends: Int32Array = np.array(
        [
            run[-1]
            for run in bad
            if length - first >= len(run) - 1
            and state.tokens[row, length - len(run) + 1 : length].tolist() == list(run[:-1])
        ],
        np.int32,
    )
    return ends if stops is None else np.concatenate([stops, ends])


def _masks(state: BatchState, rows: list[int], masks: Mapping[int, TokenMask]) -> tuple[Int32Array, TokenMask]:
    """`SampleBatch.mask_index` and `masks`: of a row's grammar, of its own allowed tokens, or of both."""
    index: Int32Array = np.full(len(rows), -1, np.int32)
    if not masks and not state.allowed:
        return index, _NO_MASKS
    found: list[TokenMask] = []
    for i, row in enumerate(rows):
        both = [mask for mask in (masks.get(row), state.allowed.get(row)) if mask is not None]
        if both:
            index[i] = len(found)
            width = min(map(len, both))
            found.append(both[0] if len(both) == 1 else both[0][:width] & both[1][:width])
    stacked: TokenMask = np.zeros((len(found), max(map(len, found), default=0)), np.uint32)
    for line, mask in zip(stacked, found, strict=True):
        line[: len(mask)] = mask
    return index, stacked


def _ragged(rows: Int32Array, present: bool, part: Callable[[int], Array], empty: Array) -> tuple[Array, Array]:
    """Concatenate `part(i)` of every row; `present` is False when all are known to be empty."""
    starts = np.zeros(len(rows) + 1, np.int64)
    if not present:
        return starts, empty
    parts = [part(i) for i in range(len(rows))]
    np.cumsum([len(p) for p in parts], out=starts[1:])
    return starts, np.concatenate(parts)


def token_logprobs(output: SampleOutput, num_logprobs: Int32Array) -> list[TokenLogprobs | None] | None:
    """One entry per sampled row, None for rows that did not ask; None when nobody asked."""
    if output.logprobs is None or output.ranks is None:
        return None
    tokens, logprobs, ranks = output.token_ids.tolist(), output.logprobs.tolist(), output.ranks.tolist()
    found: list[TokenLogprobs | None] = []
    for i, k in enumerate(num_logprobs.tolist()):
        if k < 0 or tokens[i] < 0:
            found.append(None)
            continue
        top: list[tuple[int, float]] = []
        if k > 0 and output.top_ids is not None and output.top_logprobs is not None:
            top = list(zip(output.top_ids[i, :k].tolist(), output.top_logprobs[i, :k].tolist(), strict=True))
        found.append(TokenLogprobs(tokens[i], logprobs[i], ranks[i], top))
    return found


def logprobs_of(logits: Iterable[Array], tokens: Sequence[int], k: int) -> list[TokenLogprobs]:
    """Logprobs of given tokens (a prompt's) under rows of logits, with the k likeliest of each position.

    Row by row in float64, so a position's figures do not depend on the chunk it came in.
    """
    return [_logprobs_of_row(row.astype(np.float64), token, k) for row, token in zip(logits, tokens, strict=True)]


def _logprobs_of_row(row: Array, token: int, k: int) -> TokenLogprobs:
    peak = row.max()
    logprobs = row - (peak + np.log(np.exp(row - peak).sum()))
    top = top_ids(row, min(k, len(row)))
    rank = 1 + int((row > row[token]).sum())
    return TokenLogprobs(token, float(logprobs[token]), rank, [(i, float(logprobs[i])) for i in top])


def top_ids(row: Array, k: int) -> list[int]:
    """The ids of the `k` largest of a row's scores, largest first, lower ids first among equals."""
    if k <= 0:
        return []
    # The k largest of the groups' maxima are k of the row's scores, so its k largest are no smaller than the least.
    groups = row[: len(row) // _GROUP * _GROUP].reshape(_GROUP, -1).max(axis=0) if len(row) >= _GROUP * k else row
    least = np.partition(groups, -k)[-k]
    candidates = np.flatnonzero(row >= least)  # in order of id
    best: list[int] = candidates[np.argsort(-row[candidates], kind="stable")][:k].tolist()
    return best
