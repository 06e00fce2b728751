"""The one decoder, written against `backends.protocol.Ops`.

A back end that records runs this once; an eager one runs it on every step. It must not look at values.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.backends.protocol import Ops, Tensor, Weight
from octavo.models.spec import DecoderSpec, LayerSpec


class LayerWeights(msgspec.Struct, kw_only=True):
    """One layer. `qkv` stacks the rows of q, k and v; `gate_up` those of gate and up."""

    attention_norm: Weight
    qkv: Weight
    qkv_bias: Weight | None
    output: Weight
    output_bias: Weight | None
    mlp_norm: Weight
    gate_up: Weight
    gate_up_bias: Weight | None
    down: Weight
    down_bias: Weight | None


class DecoderWeights(msgspec.Struct, kw_only=True):
    """The whole model; `head` is `embedding` itself when they are tied."""

    embedding: Weight
    layers: list[LayerWeights]
    norm: Weight
    head: Weight
    screen: Weight | None = None
    """Of `head`: see `Backend.screen`."""
    formats: tuple[str, ...] = ()
    """How the matrices are kept, for people; what most elements are in first."""
    num_bytes: int = 0
    """Memory that the matrices take."""


def decoder(spec: DecoderSpec, weights: DecoderWeights) -> Callable[[Ops], Tensor]:
    """The function from a step's tokens to the logits `[S, vocab]` of its selected ones."""

    def build(ops: Ops) -> Tensor:
        x = ops.embedding(weights.embedding)
        for index, (layer, w) in enumerate(zip(spec.layers, weights.layers, strict=True)):
            attended = _attention(ops, spec, layer, w, index, ops.rms_norm(x, w.attention_norm, spec.norm_eps))
            if index + 1 == spec.num_layers:  # past the last layer's KV only the selected tokens matter
                x, attended = ops.select(x), ops.select(attended)
            x = ops.add(x, ops.linear(attended, w.output, w.output_bias))
            x = ops.add(x, _mlp(ops, spec, w, ops.rms_norm(x, w.mlp_norm, spec.norm_eps)))
        return ops.logits(ops.rms_norm(x, weights.norm, spec.norm_eps), weights.head, weights.screen)

    return build


def _attention(ops: Ops, spec: DecoderSpec, layer: LayerSpec, w: LayerWeights, index: int, x: Tensor) -> Tensor:
    query_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    qkv = ops.linear(x, w.qkv, w.qkv_bias)
    query, key, value = ops.split(qkv, (query_width, kv_width, kv_width))
    if layer.rope is not None:
        query = ops.rotary(query, layer.rope, spec.head_dim)
        key = ops.rotary(key, layer.rope, spec.head_dim)
    ops.write_kv(index, key, value)
    return ops.paged_attention(index, query, scale=spec.head_dim**-0.5, window=layer.window)


def _mlp(ops: Ops, spec: DecoderSpec, w: LayerWeights, x: Tensor) -> Tensor:
    gate_up = ops.linear(x, w.gate_up, w.gate_up_bias)
    gate, up = ops.split(gate_up, (spec.intermediate_size, spec.intermediate_size))
    return ops.linear(ops.silu_mul(gate, up), w.down, w.down_bias)
