"""What the goldens are made of: models, prompts, and how many tokens are generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from support.tiny_models import TinyLlama

HERE = Path(__file__).parent
EXPECTED = HERE / "expected"

TINY: dict[str, TinyLlama] = {
    "gqa-tied": TinyLlama(),
    "mha-untied": TinyLlama(num_kv_heads=4, tied=False, seed=1),
    "bias": TinyLlama(bias=True, seed=2),
    "mqa-wide-heads": TinyLlama(num_kv_heads=1, head_dim=20, num_layers=3, tied=False, seed=3),
    "rope-linear": TinyLlama(rope={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, seed=4),
    "rope-llama3": TinyLlama(
        rope={
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
        head_dim=16,
        seed=5,
    ),
    "window": TinyLlama(window=24, tied=False, seed=6),
}
"""Random models. The prompts are longer than the window, and than the context the llama3 scaling starts from."""

TINY_LENGTHS = (1, 17, 90)
TINY_TOKENS = 40
STORIES_PROMPTS = ([1], [1, 403, 407, 261, 378], list(range(40, 140)))
STORIES_TOKENS = 60
REAL_TOKENS = 64
"""Generated per prompt of the default model."""
REAL_IDS = np.linspace(0, 49151, 64).astype(np.int32)
"""Vocabulary ids whose logits are kept for the default model; a whole row would be 200 kB."""
MAX_POSITIONS = 12
"""Positions per prompt whose logits are kept."""


def tiny_prompts(model: TinyLlama) -> list[list[int]]:
    rng = np.random.default_rng(100 + model.seed)
    return [rng.integers(3, model.vocab_size, length).tolist() for length in TINY_LENGTHS]


def real_prompts() -> list[list[int]]:
    """Token ids of the default model's prompts; see prompts.json for where the texts come from."""
    found: list[dict[str, Any]] = json.loads((HERE / "prompts.json").read_text())["prompts"]
    return [prompt["token_ids"] for prompt in found]


def kept_positions(length: int) -> list[int]:
    """Positions of a text of so many tokens whose logits are kept: evenly spread, the last one included."""
    return sorted({round(p) for p in np.linspace(0, length - 1, min(length, MAX_POSITIONS))})
