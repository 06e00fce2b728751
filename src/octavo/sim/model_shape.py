"""Models by their shapes, and the four of the paper with the memory it gives them."""

from __future__ import annotations

import msgspec


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """What a decoder weighs and what it keeps."""

    name: str
    hidden: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn: int
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
    window: int | None = None
    """Sliding window of every layer, in tokens."""

    @property
    def layer_weights(self) -> int:
        """Elements of one layer's matrices."""
        query = self.hidden * self.num_heads * self.head_dim
        kv = 2 * self.hidden * self.num_kv_heads * self.head_dim
        return 2 * query + kv + (3 if self.gated else 2) * self.hidden * self.ffn

    @property
    def layer_bytes(self) -> float:
        return self.layer_weights * self.weight_bytes

    @property
    def head_bytes(self) -> float:
        """The output projection."""
        return self.vocab * self.hidden * self.weight_bytes

    @property
    def total_bytes(self) -> float:
        """All weights."""
        return self.num_layers * self.layer_bytes + (1 if self.tied else 2) * self.head_bytes

    @property
    def kv_bytes_per_token(self) -> float:
        """Over all layers (paper, section 3)."""
        return 2 * self.num_kv_heads * self.head_dim * self.num_layers * self.kv_bytes


class PaperModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model of the paper on the machine it had there (paper, Table 1)."""

    shape: ModelShape
    device: str
    num_devices: int
    kv_slots: int
    """Tokens of KV memory."""

    def num_blocks(self, block_size: int = 16) -> int:
        return self.kv_slots // block_size


def _opt(name: str, num_layers: int, hidden: int, num_heads: int) -> ModelShape:
    return ModelShape(
        name=name,
        hidden=hidden,
        num_layers=num_layers,
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
    num_layers=40,
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
