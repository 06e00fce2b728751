"""DecoderSpec: everything that distinguishes one decoder-only model from another, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

from octavo.backends.protocol import Activation, RopeParams, Routing
from octavo.weights.naming import Naming

Norm = Literal["rms", "layer"]

NormPlace = Literal["before", "after", "around", "after_sum"]
"""Where a layer normalises: what its two halves take (before), what they give (after), both (around), or the sum of
what they give and what they took (after_sum, as in the original transformer)."""


class ExpertsSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A layer's mixture of experts in the place of its MLP."""

    num_experts: int
    routing: Routing
    intermediate_size: int
    """Of one expert."""
    shared_size: int = 0
    """Width of the MLP that every token passes through besides; 0 for none. Its output is gated by a sigmoid."""

    @property
    def num_parameters_factor(self) -> int:
        """Elements of one hidden unit's weights, over all experts."""
        gates = self.num_experts + (1 if self.shared_size else 0)
        return 3 * (self.num_experts * self.intermediate_size + self.shared_size) + gates


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's own choices."""

    window: int | None = None
    """Sliding window in tokens, the query's own included; None sees everything."""
    rope: RopeParams | None = None
    experts: ExpertsSpec | None = None
    """None for an MLP of the spec's `intermediate_size`."""


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer. Widths are in elements."""

    family: str
    """The checkpoint's architecture name, for messages."""
    naming: Naming = Naming()
    """Where the checkpoint keeps the weights."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    tied_embeddings: bool
    max_position: int
    """The trained context, in tokens."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    norm: Norm = "rms"
    norm_eps: float
    norm_place: NormPlace = "before"
    norm_bias: bool = False
    """Of layer norms."""
    norm_offset: float = 0.0
    """Added to the stored weights of all norms: 1 where they are stored as differences from 1."""
    final_norm: bool = True
    parallel: bool = False
    """Attention and MLP of a layer take the same input, and both outputs are added to it."""
    shared_norm: bool = False
    """Of parallel layers: one norm serves both."""

    embedding_size: int | None = None
    """Where tokens are embedded narrower than `hidden_size`, and projected to it and back."""
    embedding_scale: float = 1.0
    position_offset: int | None = None
    """Of learned positions: position p is row p + offset of their table; None for no such table."""

    attention_scale: float | None = None
    """Of query times key; None for 1 / sqrt(head_dim)."""
    attention_soft_cap: float | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: Literal["head", "row"] | None = None
    """RMS norms of query and key before they are rotated: of each head, or of all heads together."""

    activation: Activation = "silu"
    gated_mlp: bool = True
    mlp_bias: bool = False

    residual_scale: float = 1.0
    """Of what attention and MLP give, before it is added."""
    logits_scale: float = 1.0
    logits_soft_cap: float | None = None

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def norm_roles(self) -> tuple[str, ...]:
        """Which norms of `LayerWeights` a layer has, in the order in which it applies them."""
        if self.shared_norm:
            return ("attention_norm",)
        return {
            "before": ("attention_norm", "mlp_norm"),
            "after": ("post_attention_norm", "post_mlp_norm"),
            "around": ("attention_norm", "post_attention_norm", "mlp_norm", "post_mlp_norm"),
            "after_sum": ("attention_sum_norm", "mlp_sum_norm"),
        }[self.norm_place]

    @property
    def embedded(self) -> int:
        """Width in which tokens are embedded."""
        return self.hidden_size if self.embedding_size is None else self.embedding_size

    @property
    def num_parameters(self) -> int:
        """Elements of all matrices; norms and biases are left out."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        dense = (3 if self.gated_mlp else 2) * self.intermediate_size
        units = sum(attention + (x.experts.num_parameters_factor if x.experts else dense) for x in self.layers)
        tables = (1 if self.tied_embeddings else 2) * self.vocab_size * self.embedded
        projections = 0 if self.embedding_size is None else 2 * self.embedding_size * self.hidden_size
        positions = 0 if self.position_offset is None else (self.max_position + self.position_offset) * self.hidden_size
        return units * self.hidden_size + tables + projections + positions

    def activation_bytes(self, num_tokens: int) -> int:
        """At most so many bytes of float32 tensors live at once while `num_tokens` tokens are computed."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        inner = max(self.intermediate_size, *(_expert_width(layer) for layer in self.layers))
        width = 4 * self.hidden_size + attention + 3 * inner + self.vocab_size
        return 4 * num_tokens * width

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct windows in order of first use."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))


def _expert_width(layer: LayerSpec) -> int:
    """Columns that a token's experts need at once."""
    if layer.experts is None:
        return 0
    return layer.experts.routing.top_k * layer.experts.intermediate_size + layer.experts.shared_size
