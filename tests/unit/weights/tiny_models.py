"""The same tiny random model as a GGUF file and as a Hugging Face folder, written by code of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.numpy
from gguf_writer import gguf_bytes, value, write

Floats = npt.NDArray[np.float32]

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, WIDE, VOCAB, LAYERS = 64, 4, 2, 16, 96, 32, 2
GGUF_NAMES = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.q_proj.bias": "attn_q.bias",
    "self_attn.k_proj.bias": "attn_k.bias",
    "self_attn.v_proj.bias": "attn_v.bias",
    "self_attn.o_proj.weight": "attn_output.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
TOP_NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def weights(*, tied: bool = True, biases: bool = False, seed: int = 0) -> dict[str, Floats]:
    """Tensors under their Hugging Face names."""
    rng = np.random.default_rng(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,)}
    if not tied:
        shapes["lm_head.weight"] = (VOCAB, HIDDEN)
    rows = {"q": HEADS * HEAD_DIM, "k": KV_HEADS * HEAD_DIM, "v": KV_HEADS * HEAD_DIM}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        shapes |= {at + f"self_attn.{p}_proj.weight": (n, HIDDEN) for p, n in rows.items()}
        if biases:
            shapes |= {at + f"self_attn.{p}_proj.bias": (n,) for p, n in rows.items()}
        shapes |= {
            at + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD_DIM),
            at + "mlp.gate_proj.weight": (WIDE, HIDDEN),
            at + "mlp.up_proj.weight": (WIDE, HIDDEN),
            at + "mlp.down_proj.weight": (HIDDEN, WIDE),
            at + "input_layernorm.weight": (HIDDEN,),
            at + "post_attention_layernorm.weight": (HIDDEN,),
        }
    return {name: rng.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def interleave(values: Floats, num_heads: int) -> Floats:
    """Row i of a head to place 2i, row i + half to place 2i + 1, as llama.cpp's converter writes them."""
    out = np.empty_like(values)
    size = len(values) // num_heads
    for head in range(num_heads):
        for i in range(size // 2):
            out[head * size + 2 * i] = values[head * size + i]
            out[head * size + 2 * i + 1] = values[head * size + size // 2 + i]
    return out


def gguf_metadata(arch: str = "llama") -> dict[str, bytes]:
    return {
        "general.architecture": value("string", arch),
        f"{arch}.block_count": value("uint32", LAYERS),
        f"{arch}.context_length": value("uint32", 128),
        f"{arch}.embedding_length": value("uint32", HIDDEN),
        f"{arch}.feed_forward_length": value("uint32", WIDE),
        f"{arch}.attention.head_count": value("uint32", HEADS),
        f"{arch}.attention.head_count_kv": value("uint32", KV_HEADS),
        f"{arch}.attention.layer_norm_rms_epsilon": value("float32", 2**-17),
        f"{arch}.rope.freq_base": value("float32", 5000.0),
        "tokenizer.ggml.model": value("string", "gpt2"),
        "tokenizer.ggml.tokens": value("string[]", [f"t{i}" for i in range(VOCAB)]),
        "tokenizer.ggml.bos_token_id": value("uint32", 1),
        "tokenizer.ggml.eos_token_id": value("uint32", 2),
        "tokenizer.chat_template": value("string", "{{ messages }}"),
    }


def gguf_file(
    path: Path,
    tensors: dict[str, Floats],
    *,
    arch: str = "llama",
    type_name: str = "F32",
    metadata: dict[str, bytes | None] = {},  # noqa: B006
    extra: list[tuple[str, list[int], int, bytes]] = [],  # noqa: B006
) -> Path:
    """Write `tensors` (Hugging Face names) as GGUF. `metadata` replaces keys, or drops those that are None."""
    kind = gguf.GGMLQuantizationType[type_name]
    stored = []
    for name, values in tensors.items():
        if arch == "llama" and "q_proj" in name:
            values = interleave(values, HEADS)
        if arch == "llama" and "k_proj" in name:
            values = interleave(values, KV_HEADS)
        as_type = kind if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        data = gguf.quantize(values, as_type).tobytes()
        stored.append((gguf_name(name), list(reversed(values.shape)), int(as_type), data))
    pairs = gguf_metadata(arch) | metadata
    held = [(key, content) for key, content in pairs.items() if content is not None]
    return write(path, gguf_bytes(held, stored + extra))


def gguf_name(name: str) -> str:
    """What GGUF calls the tensor of this Hugging Face name."""
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    _, _, layer, part = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[part]}"


def hf_config(**changes: Any) -> dict[str, Any]:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    return config | changes


def hf_folder(path: Path, tensors: dict[str, Floats] | None = None, *, shards: int = 1, **changes: Any) -> Path:
    """Write a folder: config, tokenizer stub, and the weights in `shards` files."""
    path.mkdir(parents=True, exist_ok=True)
    tensors = weights() if tensors is None else tensors
    (path / "config.json").write_text(json.dumps(hf_config(**changes)))
    (path / "tokenizer.json").write_text("{}")
    if shards == 1:
        safetensors.numpy.save_file(tensors, path / "model.safetensors")
        return path
    weight_map = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in list(tensors)[i::shards]}
        safetensors.numpy.save_file(part, path / file)
        weight_map |= dict.fromkeys(part, file)
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return path
