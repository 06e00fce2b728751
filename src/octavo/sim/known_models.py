"""Shapes of well-known models, so that planning for them needs no file. From their published config.json."""

from __future__ import annotations

from octavo.sim.model_shape import PAPER_MODELS, ModelShape


def _llama_like(
    name: str,
    num_layers: int,
    hidden: int,
    heads: tuple[int, int],
    ffn: int,
    vocab: int,
    max_len: int,
    tied: bool = False,
) -> ModelShape:
    """SwiGLU, heads of (query, key and value); heads share the width."""
    num_heads, num_kv_heads = heads
    return ModelShape(
        name=name,
        hidden=hidden,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=hidden // num_heads,
        ffn=ffn,
        vocab=vocab,
        gated=True,
        max_len=max_len,
        tied=tied,
    )


KNOWN_MODELS: dict[str, ModelShape] = {name: model.shape for name, model in PAPER_MODELS.items()} | {
    shape.name: shape
    for shape in (
        _llama_like("smollm2-135m", 30, 576, (9, 3), 1536, 49152, 8192, tied=True),
        _llama_like("llama-3.2-1b", 16, 2048, (32, 8), 8192, 128256, 131072, tied=True),
        _llama_like("llama-3.1-8b", 32, 4096, (32, 8), 14336, 128256, 131072),
        _llama_like("llama-3.1-70b", 80, 8192, (64, 8), 28672, 128256, 131072),
        _llama_like("mistral-7b-v0.3", 32, 4096, (32, 8), 14336, 32768, 32768),
        _llama_like("qwen2.5-0.5b", 24, 896, (14, 2), 4864, 151936, 32768, tied=True),
        _llama_like("qwen2.5-7b", 28, 3584, (28, 4), 18944, 152064, 32768),
        _llama_like("qwen2.5-72b", 80, 8192, (64, 8), 29568, 152064, 32768),
    )
}
"""By name: the paper's and some of today's."""
