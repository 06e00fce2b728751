"""Models by their shapes, and the four of the paper with the memory it gives them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from octavo.core.kv_groups import group_layers
from octavo.core.kv_spec import KVSpec


class Experts(msgspec.Struct, frozen=True, kw_only=True):
    """A mixture of experts in the place of a layer's feed-forward part. Each expert has three matrices."""

    num_experts: int
    top_k: int
    """Experts that a token passes through."""
    ffn: int
    """Width of one expert."""
    shared_ffn: int = 0
    """Width of the expert that every token passes through besides, behind a gate; 0 for none."""

    def expected_active(self, num_tokens: int) -> float:
        """Distinct experts that so many tokens are expected to choose between them: what of a layer's experts is read.

        An assumption: routing is uniform and independent, so that a token leaves an expert out with probability
        1 - top_k / num_experts. Trained routers choose less evenly, and tokens of one text choose alike: they touch
        fewer experts.
        """
        return self.num_experts * (1 - (1 - self.top_k / self.num_experts) ** num_tokens)


class LayerShape(msgspec.Struct, frozen=True, kw_only=True):
    """In what a layer may differ from the others."""

    window: int | None = None
    """Sliding window in tokens, the query's own included; None for full attention."""
    experts: Experts | None = None
    """None for a feed-forward part of the model's width."""


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoder weighs and what it keeps."""

    name: str
    hidden: int
    layers: tuple[LayerShape, ...]
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
    """Width of the feed-forward part where it is no mixture of experts."""
    vocab: int
    gated: bool
    """Whether the feed-forward part has three matrices (SwiGLU) or two."""
    max_len: int
    tied: bool = False
    """Whether embedding and output projection are one matrix."""
    weight_bytes: float = 2.0
    """Per element."""
    kv_bytes: float = 2.0
    """Per element, scales included."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def kinds(self) -> dict[Experts | None, int]:
        """How many layers have which experts, and how many none: as to their weights, layers differ in nothing else."""
        return dict(Counter(layer.experts for layer in self.layers))

    def dense_bytes(self, experts: Experts | None) -> float:
        """What every token is multiplied with in a layer with these experts: attention, and the feed-forward part or
        the router with the shared expert and its gate."""
        query = self.hidden * self.num_heads * self.head_dim
        kv = 2 * self.hidden * self.num_kv_heads * self.head_dim
        if experts is None:
            width = (3 if self.gated else 2) * self.ffn
        else:
            width = experts.num_experts + (3 * experts.shared_ffn + 1 if experts.shared_ffn else 0)
        return (2 * query + kv + self.hidden * width) * self.weight_bytes

    def expert_bytes(self, experts: Experts) -> float:
        """Of one expert."""
        return 3 * self.hidden * experts.ffn * self.weight_bytes

    def layer_bytes(self, experts: Experts | None) -> float:
        """All weights of a layer with these experts."""
        routed = 0.0 if experts is None else experts.num_experts * self.expert_bytes(experts)
        return self.dense_bytes(experts) + routed

    @property
    def widest_ffn(self) -> int:
        """The most columns that a token has within a feed-forward part; those of all its experts count."""
        return max(self.ffn if x is None else x.top_k * x.ffn + x.shared_ffn for x in self.kinds)

    @property
    def head_bytes(self) -> float:
        """The output projection."""
        return self.vocab * self.hidden * self.weight_bytes

    @property
    def total_bytes(self) -> float:
        """All weights."""
        layers = sum(count * self.layer_bytes(experts) for experts, count in self.kinds.items())
        return layers + (1 if self.tied else 2) * self.head_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Over all layers (paper, section 3)."""
        return self.kv_bytes_of(self.num_layers)

    def kv_spec(self, block_size: int, max_model_len: int) -> KVSpec:
        """How an engine keeps the model's KV: the groups of layers that `octavo serve` makes, and the bytes of a page.

        Args:
            block_size: Tokens per block.
            max_model_len: The served context, in tokens.
        """
        groups = group_layers([layer.window for layer in self.layers], max_model_len, block_size)
        spec = KVSpec(groups=groups, block_size=block_size, bytes_per_block=0)
        page = self.kv_bytes_of(spec.layers_per_page) * block_size
        return msgspec.structs.replace(spec, bytes_per_block=round(page))

    def kv_bytes_of(self, num_layers: int) -> float:
        """Of a token in some of the layers."""
        return 2 * self.num_kv_heads * self.head_dim * num_layers * self.kv_bytes


class PaperModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the paper on the machine it had there (paper, Table 1)."""

    shape: ModelShape
    device: str
    num_devices: int
    kv_slots: int
    """Tokens of KV memory."""

    def num_blocks(self, block_size: int = 16) -> int:
        return self.kv_slots // block_size


def alike(num_layers: int, **choices: Any) -> tuple[LayerShape, ...]:
    """Layers that are all alike; choices are the fields of `LayerShape`."""
    return (LayerShape(**choices),) * num_layers


def _opt(name: str, num_layers: int, hidden: int, num_heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=alike(num_layers),
        num_heads=num_heads,
        num_kv_heads=num_heads,
        head_dim=128,
        ffn=4 * hidden,
        vocab=50272,
        gated=False,
        max_len=2048,
        tied=True,
    )


_LLAMA_13B = ModelShape(
    name="llama-13b",
    hidden=5120,
    layers=alike(40),
    num_heads=40,
    num_kv_heads=40,
    head_dim=128,
    ffn=13824,
    vocab=32000,
    gated=True,
    max_len=2048,
)

PAPER_MODELS: dict[str, PaperModel] = {
    # Slots as Table 1 prints them: 12 GB of 800 KiB a token are 983 blocks of 16, 9.7 K slots 606, 60.1 K 3,756.
    "opt-13b": PaperModel(shape=_opt("opt-13b", 40, 5120, 40), device="a100-40gb", num_devices=1, kv_slots=15_728),
    "opt-66b": PaperModel(shape=_opt("opt-66b", 64, 9216, 72), device="a100-40gb", num_devices=4, kv_slots=9_696),
    "opt-175b": PaperModel(shape=_opt("opt-175b", 96, 12288, 96), device="a100-80gb", num_devices=8, kv_slots=60_096),
    # Not in Table 1. The artifact's rule (95 % of the card, less weights, activations and 1 GiB) gives 980 blocks.
    "llama-13b": PaperModel(shape=_LLAMA_13B, device="a100-40gb", num_devices=1, kv_slots=15_680),
}
"""By name."""
