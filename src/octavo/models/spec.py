"""DecoderSpec: everything that distinguishes one decoder-only model from another, as data."""

from __future__ import annotations

import msgspec

from octavo.backends.protocol import RopeParams


class LayerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's own choices."""

    window: int | None = None
    """Sliding window in tokens, the query's own included; None sees everything."""
    rope: RopeParams | None = None


class DecoderSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A decoder-only transformer. Widths are in elements."""

    family: str
    """The checkpoint's architecture name, for messages."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    tied_embeddings: bool
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    max_position: int
    """The trained context, in tokens."""
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def num_parameters(self) -> int:
        """Elements of all matrices; norms and biases are left out."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim * self.hidden_size
        layer = attention + 3 * self.intermediate_size * self.hidden_size
        tables = 1 if self.tied_embeddings else 2
        return self.num_layers * layer + tables * self.vocab_size * self.hidden_size

    def activation_bytes(self, num_tokens: int) -> int:
        """At most so many bytes of float32 tensors live at once while `num_tokens` tokens are computed."""
        attention = 2 * (self.num_heads + self.num_kv_heads) * self.head_dim
        width = 4 * self.hidden_size + attention + 3 * self.intermediate_size + self.vocab_size
        return 4 * num_tokens * width

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Distinct windows in order of first use: one KV group each."""
        return tuple(dict.fromkeys(layer.window for layer in self.layers))

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """KV group of each layer."""
        order = self.windows
        return tuple(order.index(layer.window) for layer in self.layers)
