"""The ops in plain float64: what every back end is measured against. Dense, unpaged, one formula each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import RopeParams
from octavo.models.spec import DecoderSpec

Array = npt.NDArray[Any]


def to_bfloat16(x: Array) -> Array:
    """The upper half of a float32, rounded to nearest even. No NaNs."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def rounded(x: Array, dtype: str) -> Array:
    """float64 of what is left of x in `dtype`."""
    if dtype == "float32":
        return x.astype(np.float32).astype(np.float64)
    return (to_bfloat16(x).astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def int8(x: Array, head_dim: int, limit: int = 127) -> Array:
    """float64 of what is left of vectors of head_dim as integers with a float32 scale each."""
    vectors = x.astype(np.float32).reshape(-1, head_dim)
    scale = np.abs(vectors).max(axis=1, keepdims=True) / np.float32(limit)
    stored = np.rint(vectors / np.where(scale == 0, np.float32(1), scale))
    return (stored.astype(np.float64) * scale).reshape(x.shape)


def kept(x: Array, dtype: str, head_dim: int) -> Array:
    """float64 of what is left of vectors of head_dim in `dtype`; int8 and int16 with scales."""
    limits = {"int8": 127, "int16": 32767}
    return int8(x, head_dim, limits[dtype]) if dtype in limits else rounded(x, dtype)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    return x / np.sqrt(np.square(x).mean(axis=1, keepdims=True) + eps) * weight


def layer_norm(x: Array, weight: Array, bias: Array | float, eps: float) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt(np.square(centred).mean(axis=1, keepdims=True) + eps) * weight + bias


def rotary(x: Array, positions: Array, rope: RopeParams, head_dim: int) -> Array:
    half = len(rope.inv_freq)
    out = x.reshape(len(x), -1, head_dim).copy()
    for t, position in enumerate(positions):
        for i, frequency in enumerate(rope.inv_freq):
            turn = rope.scale * np.exp(1j * float(position) * frequency)
            pair = (out[t, :, i] + 1j * out[t, :, i + half]) * turn
            out[t, :, i], out[t, :, i + half] = pair.real, pair.imag
    return out.reshape(x.shape)


def attention(
    query: Array,
    key: Array,
    value: Array,
    num_kv_heads: int,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
) -> Array:
    """One whole sequence; query `[tokens, num_heads * head_dim]`, key and value `[tokens, num_kv_heads * head_dim]`."""
    tokens, head_dim = len(key), key.shape[1] // num_kv_heads
    q = query.reshape(tokens, -1, head_dim)
    k, v = (
        np.repeat(x.reshape(tokens, num_kv_heads, head_dim), q.shape[1] // num_kv_heads, axis=1) for x in (key, value)
    )
    scores = np.einsum("qhd,khd->hqk", q, k) * scale
    if soft_cap is not None:
        scores = soft_cap * np.tanh(scores / soft_cap)
    distance = np.arange(tokens)[:, None] - np.arange(tokens)
    scores[:, (distance < 0) | (distance >= (window or tokens))] = -np.inf
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(query.shape)


def activation(x: Array, kind: str) -> Array:
    """Of finite elements, float64; also where the formula of the contract would cancel or overflow."""
    if kind == "relu":
        return np.maximum(x, 0.0)
    if kind == "gelu":
        return x * np.array([math.erfc(-value / math.sqrt(2.0)) for value in x.flat]).reshape(x.shape) / 2
    u = x if kind == "silu" else 2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-u))


def silu_mul(gate: Array, up: Array) -> Array:
    return activation(gate, "silu") * up


def decoder(spec: DecoderSpec, w: dict[str, Array], token_ids: Sequence[int], kv_dtype: str = "float32") -> Array:
    """Logits of every token of one sequence, from weights under Hugging Face's names."""
    x = w["model.embed_tokens.weight"][list(token_ids)]
    positions = np.arange(len(token_ids))
    for index, layer in enumerate(spec.layers):
        prefix = f"model.layers.{index}."

        def linear(x: Array, name: str, prefix: str = prefix) -> Array:
            return x @ w[f"{prefix}{name}.weight"].T + w.get(f"{prefix}{name}.bias", 0.0)

        h = rms_norm(x, w[f"{prefix}input_layernorm.weight"], spec.norm_eps)
        q, k, v = (linear(h, f"self_attn.{name}_proj") for name in "qkv")
        if layer.rope is not None:
            q, k = (rotary(each, positions, layer.rope, spec.head_dim) for each in (q, k))
        k, v = (kept(each, kv_dtype, spec.head_dim) for each in (k, v))
        h = attention(q, k, v, spec.num_kv_heads, scale=spec.head_dim**-0.5, window=layer.window)
        x = x + linear(h, "self_attn.o_proj")
        h = rms_norm(x, w[f"{prefix}post_attention_layernorm.weight"], spec.norm_eps)
        x = x + linear(silu_mul(linear(h, "mlp.gate_proj"), linear(h, "mlp.up_proj")), "mlp.down_proj")
    x = rms_norm(x, w["model.norm.weight"], spec.norm_eps)
    return x @ w["model.embed_tokens.weight" if spec.tied_embeddings else "lm_head.weight"].T
