"""What transformers makes of a real checkpoint, in float32."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from golden.compare import Expectation
from golden.make_goldens import expectation, real_model


def expectations(path: Path, prompts: list[list[int]], num_tokens: int) -> list[Expectation]:
    """Of a folder, or of a GGUF file as transformers reads it. The model lives only as long as this takes."""
    if path.is_dir():
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    else:
        model = real_model(path)
    found = expectation(model, prompts, num_tokens)
    rows = [[found[f"{kind}{i}"] for kind in ("tokens", "gaps", "logits", "scale")] for i in range(len(prompts))]
    return [Expectation(tokens.tolist(), gaps.tolist(), logits, scale) for tokens, gaps, logits, scale in rows]
