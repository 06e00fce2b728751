"""The reference back end: numpy, slow, and obviously right. The oracle of every kernel test.

Everything is computed in float64 and rounded to float32 where the protocol says a tensor is float32; the rounding
makes a row's bits independent of what else was in the matrix product, up to float64's own noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.bfloat16 import to_bits, to_float32
from octavo.backends.greedy import greedy
from octavo.backends.grouped import expand
from octavo.backends.int8 import dequantise, quantise
from octavo.backends.protocol import (
    Activation,
    Array,
    Float32Array,
    GroupedWeight,
    Int32Array,
    KVShape,
    Ops,
    Program,
    RopeParams,
    Routing,
    SampleBatch,
    SampleOutput,
    StepBatch,
    Tensor,
    TokenMask,
    Weight,
    WeightPart,
    uniform,
)
from octavo.messages import GREEDY_TEMPERATURE

Float64Array = npt.NDArray[np.float64]


class ReferenceKVMemory:
    """Keys and values as `[num_blocks, layers_per_page, 2, block_size, num_kv_heads]` vectors of bytes.

    A vector is its elements; with int8, these and then its scale.
    """

    def __init__(self, shape: KVShape) -> None:
        self.shape = shape
        page = (shape.layers_per_page, 2, shape.block_size, shape.num_kv_heads, shape.bytes_per_vector)
        self.blocks: Array = np.zeros((shape.num_blocks, *page), np.uint8)
        self.block_tables = np.zeros((shape.num_groups, shape.max_num_seqs, shape.max_blocks_per_seq), np.int32)
        self.slots = [shape.layer_groups[:i].count(g) for i, g in enumerate(shape.layer_groups)]
        """Place of each layer in its group's page."""

    def expect(self, block: int) -> None:
        pass

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, destination in pairs:
            self.blocks[destination] = self.blocks[source]

    def erase_blocks(self, blocks: Sequence[int]) -> None:
        self.blocks[list(blocks)] = 0

    def export_block(self, block: int) -> bytes:
        data: bytes = self.blocks[block].tobytes()
        return data

    def import_block(self, block: int, data: bytes) -> None:
        if len(data) != self.shape.bytes_per_block:
            raise ValueError(f"a block has {self.shape.bytes_per_block} bytes, not {len(data)}")
        self.blocks[block] = np.frombuffer(data, np.uint8).reshape(self.blocks.shape[1:])

    def swap_out(self, block: int, slot: Array) -> None:
        if slot.nbytes != self.shape.bytes_per_block:
            raise ValueError(f"a block has {self.shape.bytes_per_block} bytes, not {slot.nbytes}")
        slot[:] = np.frombuffer(self.export_block(block), np.uint8)

    def swap_in(self, slot: Array, block: int) -> None:
        self.import_block(block, slot.tobytes())

    def store(self, layer: int, row: int, position: int, key: Array, value: Array) -> None:
        """One token's key and value, `[num_kv_heads, head_dim]`."""
        table = self.block_tables[self.shape.layer_groups[layer], row]
        block, offset = table[position // self.shape.block_size], position % self.shape.block_size
        pair = np.stack([key, value])
        self.blocks[block, self.slots[layer], :, offset] = _as_bytes(pair, self.shape.dtype)

    def gather(self, layer: int, row: int, first: int, last: int) -> tuple[Array, Array]:
        """Keys and values of positions `first` to `last`, each `[tokens, num_kv_heads, head_dim]`."""
        positions = np.arange(first, last)
        table = self.block_tables[self.shape.layer_groups[layer], row]
        blocks, offsets = table[positions // self.shape.block_size], positions % self.shape.block_size
        pairs = _from_bytes(self.blocks[blocks, self.slots[layer], :, offsets], self.shape.dtype)
        return pairs[:, 0], pairs[:, 1]


def _as_bytes(x: Array, dtype: str) -> Array:
    """float32 vectors `[..., head_dim]` as the bytes that the cache keeps of them, `[..., bytes_per_vector]`."""
    if dtype == "int8":
        stored, scale = quantise(x)
        return np.concatenate([stored.view(np.uint8), scale.view(np.uint8)], axis=-1)
    return (to_bits(x) if dtype == "bfloat16" else np.ascontiguousarray(x, np.float32)).view(np.uint8)


def _from_bytes(data: Array, dtype: str) -> Array:
    """What `_as_bytes` kept, as float32 or float64, exact."""
    if dtype == "int8":
        return dequantise(data[..., :-4].view(np.int8), np.ascontiguousarray(data[..., -4:]).view(np.float32))
    return to_float32(data.view(np.uint16 if dtype == "bfloat16" else np.float32))


class _EagerOps:
    """The ops on numpy arrays, for one step."""

    def __init__(self, kv: ReferenceKVMemory, batch: StepBatch) -> None:
        self._kv = kv
        self._batch = batch

    def embedding(self, table: Weight) -> Tensor:
        return table[self._batch.token_ids]

    def add_positions(self, x: Tensor, table: Weight, offset: int) -> Tensor:
        return x + table[self._batch.positions + offset]

    def rms_norm(self, x: Tensor, weight: Weight, eps: float) -> Tensor:
        exact = x.astype(np.float64).reshape(len(x), x.shape[1] // len(weight), len(weight))
        mean = np.square(exact).mean(axis=-1, keepdims=True)
        return (exact / np.sqrt(mean + eps) * weight).astype(np.float32).reshape(x.shape)

    def layer_norm(self, x: Tensor, weight: Weight, bias: Weight | None, eps: float) -> Tensor:
        exact = x.astype(np.float64)
        centred = exact - exact.mean(axis=-1, keepdims=True)
        normed = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + eps) * weight
        return (normed if bias is None else normed + bias).astype(np.float32)

    def scale(self, x: Tensor, factor: float) -> Tensor:
        return (x.astype(np.float64) * factor).astype(np.float32)

    def linear(self, x: Tensor, weight: Weight, bias: Weight | None = None) -> Tensor:
        product = x.astype(np.float64) @ weight.T.astype(np.float64)
        return (product if bias is None else product + bias).astype(np.float32)

    def split(self, x: Tensor, widths: Sequence[int]) -> list[Tensor]:
        return np.split(x, np.cumsum(widths)[:-1], axis=1)

    def rotary(self, x: Tensor, rope: RopeParams, head_dim: int) -> Tensor:
        half = len(rope.inv_freq)
        angle = self._batch.positions[:, None].astype(np.float64) * np.array(rope.inv_freq)
        cos, sin = ((f(angle) * rope.scale).astype(np.float32)[:, None, :] for f in (np.cos, np.sin))
        heads = x.reshape(len(x), -1, head_dim).copy()
        first, second = heads[..., :half].copy(), heads[..., half : 2 * half].copy()
        heads[..., :half] = first * cos - second * sin
        heads[..., half : 2 * half] = second * cos + first * sin
        return heads.reshape(x.shape)

    def write_kv(self, layer: int, key: Tensor, value: Tensor) -> None:
        shape = (len(key), self._kv.shape.num_kv_heads, self._kv.shape.head_dim)
        keys, values = key.reshape(shape), value.reshape(shape)
        for i, row in enumerate(self._batch.batch_rows):
            for t in range(self._batch.query_start_loc[i], self._batch.query_start_loc[i + 1]):
                self._kv.store(layer, int(row), int(self._batch.positions[t]), keys[t], values[t])

    def paged_attention(
        self, layer: int, query: Tensor, *, scale: float, window: int | None = None, soft_cap: float | None = None
    ) -> Tensor:
        head_dim, num_kv_heads = self._kv.shape.head_dim, self._kv.shape.num_kv_heads
        queries = query.reshape(len(query), -1, head_dim)
        group = queries.shape[1] // num_kv_heads
        output = np.empty_like(queries)
        for i, row in enumerate(self._batch.batch_rows):
            for t in range(self._batch.query_start_loc[i], self._batch.query_start_loc[i + 1]):
                end = int(self._batch.positions[t]) + 1
                start = 0 if window is None else max(0, end - window)
                keys, values = (
                    np.repeat(x, group, axis=1).astype(np.float64) for x in self._kv.gather(layer, int(row), start, end)
                )
                scores = np.einsum("hd,khd->hk", queries[t].astype(np.float64), keys) * scale
                if soft_cap is not None:
                    scores = soft_cap * np.tanh(scores / soft_cap)
                weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
                weights /= weights.sum(axis=-1, keepdims=True)
                output[t] = np.einsum("hk,khd->hd", weights, values)
        return output.reshape(query.shape)

    def activation(self, x: Tensor, kind: Activation) -> Tensor:
        return _activated(x, kind).astype(np.float32)

    def gated(self, gate: Tensor, up: Tensor, kind: Activation) -> Tensor:
        return (_activated(gate, kind) * up).astype(np.float32)

    def experts(
        self,
        x: Tensor,
        router_logits: Tensor,
        gate_up: Sequence[Weight],
        down: Sequence[Weight],
        routing: Routing,
        kind: Activation,
    ) -> Tensor:
        total = np.zeros((len(x), len(down[0])))
        for token, shares in enumerate(_shares(row, routing) for row in router_logits.astype(np.float64)):
            for expert in np.flatnonzero(shares != 0).tolist():
                gate, up = np.split(self.linear(x[token : token + 1], gate_up[expert]), 2, axis=1)
                total[token] += shares[expert] * self.linear(self.gated(gate, up, kind), down[expert])[0]
        return total.astype(np.float32)

    def sigmoid_gate(self, x: Tensor, gate: Tensor) -> Tensor:
        with np.errstate(over="ignore"):
            return (x / (1.0 + np.exp(-gate.astype(np.float64)))).astype(np.float32)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        return (cap * np.tanh(x.astype(np.float64) / cap)).astype(np.float32)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + y

    def logits(self, x: Tensor, head: Weight, screen: Weight | None) -> Tensor:
        return self.linear(x, head)

    def select(self, x: Tensor) -> Tensor:
        return x[self._batch.logits_tokens]


def _activated(x: Array, kind: Activation) -> Float64Array:
    exact = x.astype(np.float64)
    if kind == "relu":
        return np.maximum(exact, 0.0)
    if kind == "gelu":
        return exact * (1.0 + _erf(exact / math.sqrt(2.0))) / 2.0
    if kind == "gelu_tanh":
        return exact * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (exact + 0.044715 * exact**3))) / 2.0
    with np.errstate(over="ignore"):
        return exact / (1.0 + np.exp(-exact))


def _erf(x: Float64Array) -> Float64Array:
    return np.array([math.erf(value) for value in x.flat]).reshape(x.shape)


def _shares(logits: Float64Array, routing: Routing) -> Float64Array:
    """What each expert's output is multiplied with, `[experts]`; 0 for those not chosen."""
    if np.isnan(logits).any():
        return np.full(len(logits), np.nan)
    probabilities: Float64Array = np.exp(logits - logits.max())
    probabilities /= probabilities.sum()
    chosen = np.argsort(-logits, kind="stable")[: routing.top_k]
    shares: Float64Array = np.zeros_like(probabilities)
    shares[chosen] = probabilities[chosen]
    return shares / shares.sum() if routing.normalise else shares


class _EagerProgram:
    def __init__(self, build: Callable[[Ops], Tensor], kv: ReferenceKVMemory, max_num_tokens: int) -> None:
        self._build = build
        self._kv = kv
        self._max_num_tokens = max_num_tokens

    def run(self, batch: StepBatch) -> Array:
        if len(batch.token_ids) > self._max_num_tokens:
            raise ValueError(f"{len(batch.token_ids)} tokens in a program compiled for {self._max_num_tokens}")
        result: Array = self._build(_EagerOps(self._kv, batch))
        return result

    def run_greedy(self, batch: StepBatch) -> Int32Array:
        return greedy(self.run(batch))


class ReferenceBackend:
    """See `protocol.Backend`. Weights keep their dtype's precision, those in groups their float32 values; arithmetic is
    exact whatever the dtype."""

    name = "reference"
    keeps_groups = False

    def __init__(self, dtype: str, *, num_threads: int | None = None, isa: str | None = None) -> None:
        self.dtype = dtype

    @staticmethod
    def default_dtype(isa: str | None = None) -> str:
        return "float32"

    def describe(self) -> dict[str, str]:
        return {
            "kernel_path": "numpy",
            "num_threads": "1",
            "kv_layout_version": "1",
            "arithmetic": "float64, rounded to float32 after each op",
        }

    def matrix(self, parts: Sequence[WeightPart]) -> Weight:
        return np.concatenate(
            [expand(part) if isinstance(part, GroupedWeight) else self._rounded(part) for part in parts]
        )

    def num_bytes(self, weight: Weight) -> int:
        return int(weight.nbytes)

    def matrix_bytes(self, parts: Sequence[WeightPart]) -> int:
        return 4 * sum(math.prod(part.shape) for part in parts)

    def screen(self, head: Weight) -> Weight | None:
        return None

    def screen_bytes(self, parts: Sequence[WeightPart]) -> int:
        return 0

    def vector(self, data: Array) -> Weight:
        return to_float32(data)

    def allocate_kv(self, shape: KVShape) -> ReferenceKVMemory:
        return ReferenceKVMemory(shape)

    def compile(self, build: Callable[[Ops], Tensor], kv: Any, max_num_tokens: int) -> Program:
        return _EagerProgram(build, kv, max_num_tokens)

    def sample(self, logits: Array, batch: SampleBatch) -> SampleOutput:
        return sample(logits, batch)

    def close(self) -> None:
        """Nothing to stop."""

    def _rounded(self, part: Array) -> Float32Array:
        return to_float32(to_bits(part)) if self.dtype == "bfloat16" and part.dtype != np.uint16 else (to_float32(part))


def sample(logits: Array, batch: SampleBatch) -> SampleOutput:
    """`protocol.Backend.sample`, one row after another."""
    most = min(int(batch.num_logprobs.max(initial=-1)), logits.shape[1])
    rows = [_sample_row(logits[i].astype(np.float64), batch, i, max(most, 0)) for i in range(len(logits))]
    asked = most >= 0
    return SampleOutput(
        token_ids=np.array([row[0] for row in rows], np.int32),
        logprobs=np.array([row[1] for row in rows], np.float32) if asked else None,
        ranks=np.array([row[2] for row in rows], np.int32) if asked else None,
        top_ids=np.array([row[3] for row in rows], np.int32).reshape(len(rows), most) if asked else None,
        top_logprobs=np.array([row[4] for row in rows], np.float32).reshape(len(rows), most) if asked else None,
    )


def _sample_row(row: Array, batch: SampleBatch, i: int, most: int) -> tuple[int, float, int, Array, Array]:
    top_ids, top_logprobs = np.full(most, -1), np.full(most, -np.inf)
    if np.isnan(row).any():
        return -1, -np.inf, 0, top_ids, top_logprobs
    processed = adjusted(row, batch, i)
    if not np.isfinite(processed.max()):
        return -1, -np.inf, 0, top_ids, top_logprobs
    greedy = batch.temperature[i] <= GREEDY_TEMPERATURE
    token = int(processed.argmax()) if greedy else _draw(processed, batch, i)
    peak = row.max()
    logprobs = row - (peak + np.log(np.exp(row - peak).sum()))
    k = min(int(batch.num_logprobs[i]), len(row))
    if k > 0:
        best = np.argsort(-row, kind="stable")[:k]
        top_ids[:k], top_logprobs[:k] = best, logprobs[best]
    return token, logprobs[token], 1 + int((row > row[token]).sum()), top_ids, top_logprobs


def adjusted(row: Array, batch: SampleBatch, i: int) -> Array:
    """Row `i`'s scores after penalties, bias, bans and mask; `row` is unchanged."""
    x = row.copy()
    history = batch.history[batch.history_start[i] : batch.history_start[i + 1]]
    seen = np.unique(history)
    penalty = float(batch.repetition_penalty[i])
    x[seen] = np.where(x[seen] > 0, x[seen] / penalty, x[seen] * penalty)
    answered, times = np.unique(history[batch.num_prompt[i] :], return_counts=True)
    x[answered] -= times * float(batch.frequency_penalty[i]) + float(batch.presence_penalty[i])
    biased = slice(batch.bias_start[i], batch.bias_start[i + 1])
    np.add.at(x, batch.bias_ids[biased], batch.bias_values[biased].astype(np.float64))
    x[batch.banned_ids[batch.banned_start[i] : batch.banned_start[i + 1]]] = -np.inf
    if batch.mask_index[i] >= 0:
        x[~_allowed(batch.masks[batch.mask_index[i]], len(x))] = -np.inf
    return x


def _allowed(mask: TokenMask, vocab_size: int) -> Array:
    """A mask as one truth value per token."""
    token = np.arange(vocab_size)
    inside = token < 32 * len(mask)
    allowed = np.zeros(vocab_size, np.bool_)
    allowed[inside] = mask[token[inside] // 32] >> (token[inside] % 32).astype(np.uint32) & 1
    return allowed


def _draw(x: Array, batch: SampleBatch, i: int) -> int:
    scaled = x / float(batch.temperature[i])
    p = np.exp(scaled - scaled.max())
    keep = p >= float(batch.min_p[i])
    order = np.argsort(-p, kind="stable")
    order = order[keep[order]]
    if 0 < batch.top_k[i] < len(order):
        order = order[: batch.top_k[i]]
    if batch.top_p[i] < 1.0:
        running = np.cumsum(p[order])
        order = order[: int(np.searchsorted(running, float(batch.top_p[i]) * running[-1])) + 1]
    kept = np.sort(order)
    running = np.cumsum(p[kept])
    u = uniform(int(batch.seed[i]), int(batch.sequence_index[i]), int(batch.position[i]))
    place = int(np.searchsorted(running, u * running[-1], side="right"))
    return int(kept[min(place, len(kept) - 1)])
