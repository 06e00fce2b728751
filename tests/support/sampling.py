"""Rows of sampling parameters, and the rules of `Backend.sample` in plain float64: the twin of every sampler."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import SampleBatch, uniform

Logits = npt.NDArray[np.float32]


class Row(msgspec.Struct, kw_only=True):
    """One row's settings; the defaults draw from the plain softmax."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int = 0
    sequence_index: int = 0
    position: int = 0
    history: list[int] = []
    num_prompt: int = 0
    bias: dict[int, float] = {}
    banned: list[int] = []
    allowed: list[int] | None = None
    num_logprobs: int = -1


def make_batch(rows: list[Row]) -> SampleBatch:
    def column(name: str, dtype: Any) -> Any:
        return np.array([getattr(row, name) for row in rows], dtype)

    def ragged(lists: list[Any], dtype: Any) -> tuple[Any, Any]:
        start = np.cumsum([0, *map(len, lists)], dtype=np.int64)
        return start, np.array([x for values in lists for x in values], dtype)

    history_start, history = ragged([row.history for row in rows], np.int32)
    bias_start, bias_ids = ragged([list(row.bias) for row in rows], np.int32)
    banned_start, banned_ids = ragged([row.banned for row in rows], np.int32)
    masks = [None if row.allowed is None else tuple(row.allowed) for row in rows]
    masked = sorted({mask for mask in masks if mask is not None})
    floats = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    ints = ("top_k", "sequence_index", "position", "num_prompt", "num_logprobs")
    return SampleBatch(
        **{name: column(name, np.float32) for name in floats},
        **{name: column(name, np.int32) for name in ints},
        seed=column("seed", np.int64),
        history_start=history_start,
        history=history,
        bias_start=bias_start,
        bias_ids=bias_ids,
        bias_values=np.array([x for row in rows for x in row.bias.values()], np.float32),
        banned_start=banned_start,
        banned_ids=banned_ids,
        mask_index=np.array([-1 if mask is None else masked.index(mask) for mask in masks], np.int32),
        masks=stack_masks(masked),
    )


def stack_masks(allowed: list[tuple[int, ...]]) -> Any:
    """`SampleBatch.masks`, written bit by bit, as wide as the largest id needs."""
    width = max((max(ids, default=-1) // 32 + 1 for ids in allowed), default=0)
    masks = np.zeros((len(allowed), width), np.uint32)
    for mask, ids in zip(masks, allowed, strict=True):
        for token in ids:
            mask[token // 32] |= np.uint32(1) << np.uint32(token % 32)
    return masks


def edited(logits: Logits, row: Row) -> npt.NDArray[np.float64]:
    """Penalties, bias, bans and masks, in plain float64."""
    x = logits.astype(np.float64)
    for token in set(row.history):
        x[token] = x[token] / row.repetition_penalty if x[token] > 0 else x[token] * row.repetition_penalty
    answer = row.history[row.num_prompt :]
    for token in set(answer):
        x[token] -= row.frequency_penalty * answer.count(token) + row.presence_penalty
    for token, bias in row.bias.items():
        x[token] += bias
    x[row.banned] = -np.inf
    if row.allowed is not None:
        x[np.setdiff1d(np.arange(len(x)), row.allowed)] = -np.inf
    return x


def kept_probabilities(logits: Logits, row: Row) -> npt.NDArray[np.float64]:
    """The distribution that one draw comes from: a sort and the rules, one after another."""
    x = edited(logits, row)
    p = np.exp((x - x.max()) / np.float32(row.temperature))
    p[p < np.float32(row.min_p)] = 0
    order = np.lexsort((np.arange(len(p)), -x))
    if row.top_k:
        p[order[row.top_k :]] = 0
    if row.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= np.float32(row.top_p) * p.sum()]] = 0
    return p / p.sum()


def expected_token(logits: Logits, row: Row) -> int:
    x = edited(logits, row)
    if row.temperature <= 1e-5:
        return int(np.argmax(x))
    cumulative = np.cumsum(kept_probabilities(logits, row))
    return int(np.argmax(cumulative > uniform(row.seed, row.sequence_index, row.position) * cumulative[-1]))


def random_logits(rows: int, vocab: int, seed: int = 0, spread: float = 3.0) -> Logits:
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * spread).astype(np.float32)
