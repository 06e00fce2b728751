"""Small Llama checkpoints with random weights, the same on every machine: a Hugging Face folder made by numpy alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.models.families import decoder_spec
from octavo.models.loader import expected_shapes


class TinyLlama(msgspec.Struct, frozen=True, kw_only=True):
    """What distinguishes one tiny model from another."""

    num_layers: int = 2
    vocab_size: int = 96
    hidden_size: int = 48
    intermediate_size: int = 80
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 12
    tied: bool = True
    bias: bool = False
    window: int | None = None
    max_position: int = 256
    rope: dict[str, Any] = msgspec.field(default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    seed: int = 0

    def config(self) -> dict[str, Any]:
        """The keys of Hugging Face's config.json."""
        name = "MistralForCausalLM" if self.window else "LlamaForCausalLM"
        return {
            "architectures": [name],
            "model_type": name.removesuffix("ForCausalLM").lower(),
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": self.tied,
            "attention_bias": self.bias,
            "mlp_bias": self.bias,
            "sliding_window": self.window,
            "max_position_embeddings": self.max_position,
            "rope_parameters": self.rope,
            "bos_token_id": 1,
            "eos_token_id": 2,
        }


def tensors(model: TinyLlama) -> dict[str, np.ndarray[Any, np.dtype[np.float32]]]:
    """Weights by Hugging Face's names. Large enough that logits differ clearly and attention is not flat."""
    rng = np.random.default_rng(model.seed)
    made = {}
    for name, shape in expected_shapes(decoder_spec(model.config())).items():
        values = rng.standard_normal(shape)
        if name.endswith("norm.weight"):
            made[name] = (1.0 + 0.2 * values).astype(np.float32)
        elif name.endswith(".bias"):
            made[name] = (0.3 * values).astype(np.float32)
        else:
            made[name] = (values * 1.6 / np.sqrt(shape[-1])).astype(np.float32)
    return made


def write_tiny_llama(folder: Path, model: TinyLlama) -> Path:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.config()))
    header: dict[str, Any] = {}
    data = bytearray()
    for name, tensor in tensors(model).items():
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes],
        }
        data += tensor.tobytes()
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw + data)
    return folder
