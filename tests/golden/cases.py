"""What the goldens are made of: models, prompts, and how many tokens are generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from golden import family_cases
from support.tiny_models import TinyFamily, TinyLlama

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

FAMILIES = family_cases.MODELS
FAMILY_LENGTHS = (5, 90)
FAMILY_TOKENS = 24

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


def tiny_prompts(model: TinyLlama | TinyFamily) -> list[list[int]]:
    rng = np.random.default_rng(100 + model.seed)
    lengths = TINY_LENGTHS if isinstance(model, TinyLlama) else FAMILY_LENGTHS
    return [rng.integers(3, model.vocab_size, length).tolist() for length in lengths]


def real_prompts() -> list[list[int]]:
    """Token ids of the default model's prompts; see prompts.json for where the texts come from."""
    found: list[dict[str, Any]] = json.loads((HERE / "prompts.json").read_text())["prompts"]
    return [prompt["token_ids"] for prompt in found]


def kept_positions(length: int) -> list[int]:
    """Positions of a text of so many tokens whose logits are kept: evenly spread, the last one included."""
    return sorted({round(p) for p in np.linspace(0, length - 1, min(length, MAX_POSITIONS))})


class BeamCase(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a beam search. All `width` answers are kept."""

    width: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    num_ends: int = 1
    """How many of the model's `BEAM_ENDS` end an answer."""
    min_tokens: int = 0
    repetition_penalty: float = 1.0


BEAMS = (
    *(
        BeamCase(width=width, length_penalty=penalty, early_stopping=early, num_ends=ends)
        for width, ends in ((2, 1), (4, 4), (6, 4))
        for penalty in (1.0, 0.4)
        for early in (False, True)
    ),
    BeamCase(width=4, length_penalty=2.0, early_stopping="never", num_ends=4),
    BeamCase(width=4, length_penalty=-1.0, num_ends=4, min_tokens=6),
    BeamCase(width=6, early_stopping=True, num_ends=4, min_tokens=10, repetition_penalty=1.3),
)
BEAM_WIDTH = max(case.width for case in BEAMS)
NO_TOKEN = -1
"""Behind the end of an answer that is shorter than BEAM_TOKENS."""
BEAM_TOKENS = 40
"""Generated at most."""
BEAM_REAL_PROMPTS = (2, 9)
"""Of `real_prompts`."""
TINY_ENDS = (2, 9, 40, 77)
BEAM_ENDS = {"tinystories": (2, 426, 13, 432), "smollm2": (2, 30, 198, 28)}
"""The model's own token first; then a full stop, a line feed and a comma."""


def beam_ends(name: str) -> tuple[int, ...]:
    return BEAM_ENDS.get(name, TINY_ENDS)


def beam_prompts(name: str) -> list[list[int]]:
    if name in TINY:
        return tiny_prompts(TINY[name])
    if name == "tinystories":
        return [list(prompt) for prompt in STORIES_PROMPTS]
    return [real_prompts()[i] for i in BEAM_REAL_PROMPTS]
