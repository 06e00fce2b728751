"""Shapes of well-known models, so that planning for them needs no file. From their published config.json."""

from __future__ import annotations

from octavo.sim.model_shape import PAPER_MODELS, Experts, LayerShape, ModelShape, alike


def _gated(
    name: str,
    layers: tuple[LayerShape, ...],
    hidden: int,
    heads: tuple[int, int],
    ffn: int,
    vocab: int,
    max_len: int,
    *,
    head_dim: int | None = None,
    tied: bool = False,
) -> ModelShape:
    """Feed-forward parts of three matrices; heads of (query, key and value) that share the width if not told theirs."""
    num_heads, num_kv_heads = heads
    return ModelShape(
        name=name,
        hidden=hidden,
        layers=layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden // num_heads if head_dim is None else head_dim,
        ffn=ffn,
        vocab=vocab,
        gated=True,
        max_len=max_len,
        tied=tied,
    )


def _local(num_layers: int, window: int, period: int) -> tuple[LayerShape, ...]:
    """Every `period`-th layer sees everything, the others have a window."""
    return tuple(LayerShape(window=None if i % period == 0 else window) for i in range(1, num_layers + 1))


_MIXTRAL = Experts(num_experts=8, top_k=2, ffn=14336)
_QWEN3 = Experts(num_experts=128, top_k=8, ffn=768)

KNOWN_MODELS: dict[str, ModelShape] = {name: model.shape for name, model in PAPER_MODELS.items()} | {
    shape.name: shape
    for shape in (
        _gated("smollm2-135m", alike(30), 576, (9, 3), 1536, 49152, 8192, tied=True),
        _gated("llama-3.2-1b", alike(16), 2048, (32, 8), 8192, 128256, 131072, tied=True),
        _gated("llama-3.1-8b", alike(32), 4096, (32, 8), 14336, 128256, 131072),
        _gated("llama-3.1-70b", alike(80), 8192, (64, 8), 28672, 128256, 131072),
        _gated("mistral-7b-v0.3", alike(32), 4096, (32, 8), 14336, 32768, 32768),
        _gated("qwen2.5-0.5b", alike(24), 896, (14, 2), 4864, 151936, 32768, tied=True),
        _gated("qwen2.5-7b", alike(28), 3584, (28, 4), 18944, 152064, 32768),
        _gated("qwen2.5-72b", alike(80), 8192, (64, 8), 29568, 152064, 32768),
        _gated("qwen3-8b", alike(36), 4096, (32, 8), 12288, 151936, 40960, head_dim=128),
        _gated("gemma-2-9b", _local(42, 4096, 2), 3584, (16, 8), 14336, 256000, 8192, head_dim=256, tied=True),
        _gated("gemma-3-1b", _local(26, 512, 6), 1152, (4, 1), 6912, 262144, 32768, head_dim=256, tied=True),
        _gated("mixtral-8x7b", alike(32, experts=_MIXTRAL), 4096, (32, 8), 14336, 32000, 32768),
        _gated("qwen3-30b-a3b", alike(48, experts=_QWEN3), 2048, (32, 4), 6144, 151936, 40960, head_dim=128),
    )
}
"""By name: the paper's and some of today's."""
