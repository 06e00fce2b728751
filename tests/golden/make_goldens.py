"""Make the expectations with Hugging Face transformers, in float32.

    python tests/golden/make_goldens.py [NAME ...]

For every prompt: the tokens that greedy decoding gives, the gap between the two best logits at each of them, and
teacher-forced logits of prompt and answer at some positions.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, GgufConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from golden import cases
from support.paths import TINYSTORIES
from support.tiny_models import TinyFamily, TinyLlama, write_tiny_llama

Expectation = dict[str, np.ndarray[Any, Any]]


def tiny_model(model: TinyLlama | TinyFamily) -> Any:
    """transformers' own model of the class that the config names, with our weights."""
    kind = getattr(transformers, model.config()["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        path = write_tiny_llama(Path(folder), model)
        made, found = kind.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
    missing = [name for name in found["missing_keys"] if "vision" not in name and "multi_modal" not in name]
    assert not missing and not found["unexpected_keys"] and not found["mismatched_keys"], found
    made.eval()
    if isinstance(model, TinyFamily) and model.context is not None:
        _serve(made, model.context)
    return made


def _serve(model: Any, context: int) -> None:
    """Fix the frequencies that transformers would change with the length of a sequence: those for so many tokens."""
    rotary = model.model.rotary_emb
    frequencies, rotary.attention_scaling = ROPE_INIT_FUNCTIONS[rotary.rope_type](model.config, seq_len=context)
    rotary.inv_freq = frequencies
    rotary.rope_type = "default"


def stories_model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TINYSTORIES, dtype=torch.float32).eval()


def real_model(gguf: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    ).eval()


@torch.inference_mode()
def expectation(
    model: Any, prompts: list[list[int]], num_tokens: int, ids: np.ndarray[Any, Any] | None = None
) -> Expectation:
    """What the model answers, as arrays named `<kind><prompt>`."""
    found: Expectation = {}
    for i, prompt in enumerate(prompts):
        tokens, gaps = _greedy(model, prompt, num_tokens)
        logits = model(torch.tensor([prompt + tokens[:-1]])).logits[0]
        kept = logits[cases.kept_positions(len(logits))].numpy()
        found[f"tokens{i}"] = np.array(tokens, np.int32)
        found[f"gaps{i}"] = np.array(gaps, np.float32)
        found[f"logits{i}"] = kept if ids is None else kept[:, ids]
        found[f"scale{i}"] = np.abs(kept).max(axis=-1)
    return found


def _greedy(model: Any, prompt: list[int], num_tokens: int) -> tuple[list[int], list[float]]:
    tokens: list[int] = []
    gaps: list[float] = []
    output = model(torch.tensor([prompt]), use_cache=True)
    while True:
        best = output.logits[0, -1].topk(2)
        tokens.append(int(best.indices[0]))
        gaps.append(float(best.values[0] - best.values[1]))
        if len(tokens) == num_tokens:
            return tokens, gaps
        output = model(torch.tensor([tokens[-1:]]), cache=output.cache, use_cache=True)


def make(name: str, *, gguf: Path | None = None, prompts: slice = slice(None), num_tokens: int = 0) -> Expectation:
    """The expectation called `name`: of `cases.TINY`, `cases.FAMILIES`, "tinystories", or "smollm2" (from its GGUF)."""
    if name in cases.TINY:
        model = cases.TINY[name]
        return expectation(tiny_model(model), cases.tiny_prompts(model), cases.TINY_TOKENS)
    if name in cases.FAMILIES:
        family = cases.FAMILIES[name]
        return expectation(tiny_model(family), cases.tiny_prompts(family), cases.FAMILY_TOKENS)
    if name == "tinystories":
        return expectation(stories_model(), [list(p) for p in cases.STORIES_PROMPTS], cases.STORIES_TOKENS)
    assert gguf is not None
    return expectation(real_model(gguf), cases.real_prompts()[prompts], num_tokens or cases.REAL_TOKENS, cases.REAL_IDS)


def default_model() -> Path:
    from octavo.weights.sources import resolve

    return resolve("smollm2-135m").path


def main() -> None:
    cases.EXPECTED.mkdir(exist_ok=True)
    for name in sys.argv[1:] or [*cases.TINY, *cases.FAMILIES, "tinystories", "smollm2"]:
        gguf = default_model() if name == "smollm2" else None
        np.savez_compressed(cases.EXPECTED / f"{name}.npz", **make(name, gguf=gguf))
        print(name, flush=True)


if __name__ == "__main__":
    main()
