"""The one decoder, written against `backends.protocol.Ops`.

A back end that records runs this once; an eager one runs it on every step. It must not look at values.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from octavo.backends.protocol import Ops, Tensor, Weight
from octavo.models.spec import DecoderSpec, ExpertsSpec, LayerSpec


class NormWeights(msgspec.Struct):
    weight: Weight
    bias: Weight | None = None


class LinearWeights(msgspec.Struct):
    weight: Weight
    bias: Weight | None = None


class MLPWeights(msgspec.Struct):
    """`up` stacks the rows of gate and up if the MLP is gated."""

    up: LinearWeights
    down: LinearWeights


class ExpertsWeights(msgspec.Struct, kw_only=True):
    router: Weight
    gate_up: list[Weight]
    """Of each expert: the rows of gate and up."""
    down: list[Weight]
    shared: MLPWeights | None = None
    shared_gate: Weight | None = None
    """`[1, hidden]`"""


class LayerWeights(msgspec.Struct, kw_only=True):
    """One layer. `qkv` stacks the rows of q, k and v. Which norms there are follows from `DecoderSpec.norm_place`."""

    qkv: LinearWeights
    output: LinearWeights
    mlp: MLPWeights | ExpertsWeights
    """Experts where the layer's spec has them."""
    attention_norm: NormWeights | None = None
    """Of what attention takes; `post_attention_norm` of what it gives, `attention_sum_norm` of the sum."""
    post_attention_norm: NormWeights | None = None
    attention_sum_norm: NormWeights | None = None
    mlp_norm: NormWeights | None = None
    post_mlp_norm: NormWeights | None = None
    mlp_sum_norm: NormWeights | None = None
    query_norm: Weight | None = None
    key_norm: Weight | None = None


class DecoderWeights(msgspec.Struct, kw_only=True):
    """The whole model; `head` is `embedding` itself when they are tied."""

    embedding: Weight
    layers: list[LayerWeights]
    norm: NormWeights | None
    head: Weight
    positions: Weight | None = None
    project_in: Weight | None = None
    project_out: Weight | None = None
    screen: Weight | None = None
    """Of `head`: see `Backend.screen`."""
    unused: tuple[str, ...] = ()
    """What of the checkpoint the decoder does without, for people."""
    formats: tuple[str, ...] = ()
    """How the matrices are kept, for people; what most elements are in first."""
    num_bytes: int = 0
    """Memory that the matrices take."""


def decoder(spec: DecoderSpec, weights: DecoderWeights) -> Callable[[Ops], Tensor]:
    """The function from a step's tokens to the logits `[S, vocab]` of its selected ones."""

    def build(ops: Ops) -> Tensor:
        x = _embed(ops, spec, weights)
        for index, (layer, w) in enumerate(zip(spec.layers, weights.layers, strict=True)):
            x = _layer(ops, spec, layer, w, index, x)
        x = _norm(ops, spec, weights.norm, x)
        if weights.project_out is not None:
            x = ops.linear(x, weights.project_out)
        return _logits(ops, spec, weights, x)

    return build


def _embed(ops: Ops, spec: DecoderSpec, weights: DecoderWeights) -> Tensor:
    x = ops.embedding(weights.embedding)
    if spec.embedding_scale != 1.0:
        x = ops.scale(x, spec.embedding_scale)
    if weights.project_in is not None:
        x = ops.linear(x, weights.project_in)
    if spec.position_offset is not None:
        x = ops.add_positions(x, weights.positions, spec.position_offset)
    return x


def _logits(ops: Ops, spec: DecoderSpec, weights: DecoderWeights, x: Tensor) -> Tensor:
    plain = spec.logits_scale == 1.0 and spec.logits_soft_cap is None
    logits = ops.logits(x, weights.head, weights.screen if plain else None)
    if spec.logits_scale != 1.0:
        logits = ops.scale(logits, spec.logits_scale)
    return logits if spec.logits_soft_cap is None else ops.soft_cap(logits, spec.logits_soft_cap)


def _layer(ops: Ops, spec: DecoderSpec, layer: LayerSpec, w: LayerWeights, index: int, x: Tensor) -> Tensor:
    normed = _norm(ops, spec, w.attention_norm, x)
    attended = _attention(ops, spec, layer, w, index, normed)
    if index + 1 == spec.num_layers:  # past the last layer's KV only the selected tokens matter
        x, attended = ops.select(x), ops.select(attended)
        normed = ops.select(normed) if spec.shared_norm else normed
    given = _given(ops, spec, w.post_attention_norm, _linear(ops, attended, w.output))
    if spec.parallel:
        taken = normed if spec.shared_norm else _norm(ops, spec, w.mlp_norm, x)
        added = _given(ops, spec, w.post_mlp_norm, _feed_forward(ops, spec, layer, w, taken))
        return ops.add(ops.add(x, given), added)
    x = _norm(ops, spec, w.attention_sum_norm, ops.add(x, given))
    fed = _feed_forward(ops, spec, layer, w, _norm(ops, spec, w.mlp_norm, x))
    return _norm(ops, spec, w.mlp_sum_norm, ops.add(x, _given(ops, spec, w.post_mlp_norm, fed)))


def _given(ops: Ops, spec: DecoderSpec, norm: NormWeights | None, x: Tensor) -> Tensor:
    """What half a layer gives to the sum."""
    x = _norm(ops, spec, norm, x)
    return x if spec.residual_scale == 1.0 else ops.scale(x, spec.residual_scale)


def _attention(ops: Ops, spec: DecoderSpec, layer: LayerSpec, w: LayerWeights, index: int, x: Tensor) -> Tensor:
    query_width, kv_width = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    query, key, value = ops.split(_linear(ops, x, w.qkv), (query_width, kv_width, kv_width))
    if w.query_norm is not None:
        query = ops.rms_norm(query, w.query_norm, spec.norm_eps)
        key = ops.rms_norm(key, w.key_norm, spec.norm_eps)
    if layer.rope is not None:
        query = ops.rotary(query, layer.rope, spec.head_dim)
        key = ops.rotary(key, layer.rope, spec.head_dim)
    ops.write_kv(index, key, value)
    scale = spec.head_dim**-0.5 if spec.attention_scale is None else spec.attention_scale
    return ops.paged_attention(index, query, scale=scale, window=layer.window, soft_cap=spec.attention_soft_cap)


def _feed_forward(ops: Ops, spec: DecoderSpec, layer: LayerSpec, w: LayerWeights, x: Tensor) -> Tensor:
    if isinstance(w.mlp, MLPWeights):
        return _mlp(ops, spec, w.mlp, spec.intermediate_size, x)
    assert layer.experts is not None
    return _experts(ops, spec, layer.experts, w.mlp, x)


def _mlp(ops: Ops, spec: DecoderSpec, w: MLPWeights, size: int, x: Tensor) -> Tensor:
    up = _linear(ops, x, w.up)
    if spec.gated_mlp:
        gate, up = ops.split(up, (size, size))
        return _linear(ops, ops.gated(gate, up, spec.activation), w.down)
    return _linear(ops, ops.activation(up, spec.activation), w.down)


def _experts(ops: Ops, spec: DecoderSpec, experts: ExpertsSpec, w: ExpertsWeights, x: Tensor) -> Tensor:
    router_logits = ops.linear(x, w.router)
    mixed = ops.experts(x, router_logits, w.gate_up, w.down, experts.routing, spec.activation)
    if w.shared is None:
        return mixed
    shared = _mlp(ops, spec, w.shared, experts.shared_size, x)
    return ops.add(mixed, ops.sigmoid_gate(shared, ops.linear(x, w.shared_gate)))


def _linear(ops: Ops, x: Tensor, w: LinearWeights) -> Tensor:
    return ops.linear(x, w.weight, w.bias)


def _norm(ops: Ops, spec: DecoderSpec, norm: NormWeights | None, x: Tensor) -> Tensor:
    if norm is None:
        return x
    if spec.norm == "layer":
        return ops.layer_norm(x, norm.weight, norm.bias, spec.norm_eps)
    return ops.rms_norm(x, norm.weight, spec.norm_eps)
