"""The tiny models that a GGUF file can hold, by the architecture it names."""

from __future__ import annotations

from typing import Any

import msgspec

from golden.family_cases import MODELS, WINDOW
from support.tiny_models import TinyFamily


def _with(name: str, **changes: Any) -> TinyFamily:
    model = MODELS[name]
    return msgspec.structs.replace(model, changes={**model.changes, **changes})


WIDTH = {"query_pre_attn_scalar": 16}
"""That of a head: the only one that the metadata of Gemma's files mean, but for the largest models."""

GGUF_MODELS: dict[str, dict[str, TinyFamily]] = {
    "llama": {
        "llama": TinyFamily(architecture="LlamaForCausalLM", model_type="llama"),
        "mistral": TinyFamily(
            architecture="MistralForCausalLM", model_type="mistral", changes={"sliding_window": WINDOW}
        ),
        "mixtral": _with("mixtral"),
    },
    "qwen2": {"qwen2": TinyFamily(architecture="Qwen2ForCausalLM", model_type="qwen2")},
    "qwen3": {"qwen3": _with("qwen3")},
    "qwen2moe": {"qwen2-moe": _with("qwen2-moe", mlp_only_layers=[])},
    "qwen3moe": {"qwen3-moe": _with("qwen3-moe", decoder_sparse_step=1)},
    "olmoe": {"olmoe": _with("olmoe")},
    "gemma": {"gemma": _with("gemma")},
    "gemma2": {"gemma2": _with("gemma2", **WIDTH)},
    "gemma3": {"gemma3": _with("gemma3", **WIDTH)},
    "phi3": {name: _with(name) for name in ("phi3", "phi3-long", "phi3-short")},
    "smollm3": {"smollm3": _with("smollm3", no_rope_layer_interval=4, num_hidden_layers=5)},
    "granite": {"granite": _with("granite")},
    "olmo2": {name: _with(name) for name in ("olmo2", "olmo3")},
    "gpt2": {"gpt2": _with("gpt2")},
    "gptneox": {name: _with(name) for name in ("gpt-neox", "gpt-neox-sequential")},
    "falcon": {name: _with(name) for name in ("falcon-7b", "falcon-11b", "falcon-40b")},
    "starcoder2": {"starcoder2": _with("starcoder2")},
    "stablelm": {name: _with(name) for name in ("stablelm", "stablelm-parallel")},
}
PAIRS = [(arch, name) for arch, models in GGUF_MODELS.items() for name in models]
