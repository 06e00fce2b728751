"""Llama checkpoints of llama2.c's first format, as folders in Hugging Face's layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy

FloatArray = np.ndarray[Any, np.dtype[np.float32]]


def convert(path: Path, folder: Path) -> Path:
    """Write config.json and model.safetensors of the file at `path` into `folder`, and return that.

    The file: seven int32 (width, MLP width, layers, heads, KV heads, vocabulary, context), then float32 tensors, each
    of all layers at once, with two tables of rotary angles after the last norm. A negative vocabulary means a head of
    its own, which is not read.
    """
    data = path.read_bytes()
    hidden, inner, layers, heads, kv_heads, vocabulary, context = np.frombuffer(data, np.int32, 7).tolist()
    assert vocabulary > 0, "a head of its own"
    head_dim = hidden // heads
    shapes = {
        "embed_tokens": (vocabulary, hidden),
        "input_layernorm": (layers, hidden),
        "self_attn.q_proj": (layers, hidden, hidden),
        "self_attn.k_proj": (layers, kv_heads * head_dim, hidden),
        "self_attn.v_proj": (layers, kv_heads * head_dim, hidden),
        "self_attn.o_proj": (layers, hidden, hidden),
        "post_attention_layernorm": (layers, hidden),
        "mlp.gate_proj": (layers, inner, hidden),
        "mlp.down_proj": (layers, hidden, inner),
        "mlp.up_proj": (layers, inner, hidden),
        "norm": (hidden,),
    }
    values, at = np.frombuffer(data, np.float32, offset=28), 0
    tensors: dict[str, FloatArray] = {}
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        tensor, at = values[at : at + size].reshape(shape), at + size
        if name in ("embed_tokens", "norm"):
            tensors[f"model.{name}.weight"] = tensor
        else:
            for layer in range(layers):
                tensors[f"model.layers.{layer}.{name}.weight"] = _rotate_half(name, tensor[layer], head_dim)
    assert at + context * head_dim == len(values), "the sizes do not add up"
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.numpy.save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors")
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return folder


def _rotate_half(name: str, tensor: FloatArray, head_dim: int) -> FloatArray:
    """llama2.c rotates neighbouring rows of a head, Hugging Face row i with row i + half."""
    if name not in ("self_attn.q_proj", "self_attn.k_proj"):
        return tensor
    return tensor.reshape(-1, head_dim // 2, 2, tensor.shape[1]).swapaxes(1, 2).reshape(tensor.shape)
