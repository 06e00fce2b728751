"""The metadata of a GGUF model in the words of a Hugging Face config."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.dequantize import dequantize
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_experts import experts_config
from octavo.weights.gguf_vocabulary import token_id


class GGUFArchitecture(msgspec.Struct, frozen=True):
    """What the name in `general.architecture` stands for."""

    model_type: str
    class_name: str
    permutes_rotary: bool
    """Whether llama.cpp's converter reorders the rows of the query and key projections."""


ARCHITECTURES = {
    "llama": GGUFArchitecture("llama", "LlamaForCausalLM", True),
    "qwen2": GGUFArchitecture("qwen2", "Qwen2ForCausalLM", False),
    "qwen2moe": GGUFArchitecture("qwen2_moe", "Qwen2MoeForCausalLM", False),
    "qwen3moe": GGUFArchitecture("qwen3_moe", "Qwen3MoeForCausalLM", False),
    "olmoe": GGUFArchitecture("olmoe", "OlmoeForCausalLM", False),
}


def config_of(file: GGUFFile) -> dict[str, Any]:
    """The config of the model in `file`.

    Frequency factors (`rope_freqs.weight`) become `rope_type` "longrope" with the same list as short and long factors
    and an attention factor of 1, which is what they compute: inv_freq[i] / factor[i] at every length.

    Raises:
        ModelFileError: If a number is missing or of the wrong type.
        UnsupportedModelError: If the architecture, or a feature of it, is not supported.
    """
    meta, name = file.metadata, file.path.name
    arch = meta.get_str("general.architecture")
    if arch is None:
        raise ModelFileError(name, "metadata", "'general.architecture' is missing")
    if arch not in ARCHITECTURES:
        raise UnsupportedModelError(f"{name}: architecture {arch[:40]!r}; supported are {', '.join(ARCHITECTURES)}")
    if (meta.get_int("split.count") or 1) > 1:
        raise UnsupportedModelError(f"{name}: one of several parts of a split model; merge them first")
    family = ARCHITECTURES[arch]
    config: dict[str, Any] = {
        "architectures": [family.class_name],
        "model_type": family.model_type,
        "hidden_act": "silu",
        **_sizes(file, arch),
        "rms_norm_eps": _needed_float(file, f"{arch}.attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        **_biases(file),
    }
    window = meta.get_int(f"{arch}.attention.sliding_window")
    if window and arch == "llama":  # GGUF files the first Mistral under llama; in Hugging Face a window is its mark
        config |= {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": window}
    return config | experts_config(file, arch) | _rope(file, arch, config) | _special_tokens(file, config["vocab_size"])


def _sizes(file: GGUFFile, arch: str) -> dict[str, int]:
    meta, name = file.metadata, file.path.name
    embedding = file.tensor("token_embd.weight")
    hidden = _needed_int(file, f"{arch}.embedding_length")
    if len(embedding.shape) != 2 or embedding.shape[1] != hidden:
        raise ModelFileError(
            name, "tensor 'token_embd.weight'", f"has the shape {embedding.shape}; must be (vocabulary, {hidden})"
        )
    heads = _needed_int(file, f"{arch}.attention.head_count")
    kv_heads = meta.get_int(f"{arch}.attention.head_count_kv") or heads
    if not 1 <= heads <= hidden or not 1 <= kv_heads <= heads or heads % kv_heads:
        raise ModelFileError(name, "metadata", f"{heads} heads over {kv_heads} KV heads and a width of {hidden}")
    head_dim = meta.get_int(f"{arch}.attention.key_length") or hidden // heads
    if (meta.get_int(f"{arch}.attention.value_length") or head_dim) != head_dim:
        raise UnsupportedModelError(f"{name}: heads whose keys and values differ in width")
    if head_dim % 2:
        raise ModelFileError(name, "metadata", f"heads of {head_dim} elements; must be even")
    return {
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": _needed_int(file, f"{arch}.feed_forward_length"),
        "num_hidden_layers": _needed_int(file, f"{arch}.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "max_position_embeddings": _needed_int(file, f"{arch}.context_length"),
    }


def _biases(file: GGUFFile) -> dict[str, bool]:
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _rope(file: GGUFFile, arch: str, config: dict[str, Any]) -> dict[str, Any]:
    """`rope_theta` and `rope_parameters`."""
    meta = file.metadata
    theta = meta.get_float(f"{arch}.rope.freq_base") or 10000.0
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotated = meta.get_int(f"{arch}.rope.dimension_count")
    if rotated is not None and rotated != config["head_dim"]:
        if not 2 <= rotated < config["head_dim"] or rotated % 2:
            raise ModelFileError(file.path.name, f"metadata '{arch}.rope.dimension_count'", f"is {rotated}")
        rope["partial_rotary_factor"] = rotated / config["head_dim"]
    rope |= _scaling(file, arch)
    factors = _frequency_factors(file, rotated or config["head_dim"])
    if factors is not None:
        if rope["rope_type"] != "default":
            raise UnsupportedModelError(f"{file.path.name}: {rope['rope_type']} rope scaling with frequency factors")
        rope |= {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            "original_max_position_embeddings": config["max_position_embeddings"],
        }
    return {"rope_theta": theta, "rope_parameters": rope}


def _scaling(file: GGUFFile, arch: str) -> dict[str, Any]:
    meta, prefix = file.metadata, f"{arch}.rope.scaling"
    kind = meta.get_str(f"{prefix}.type") or "none"
    legacy = meta.get_float(f"{arch}.rope.scale_linear")
    if kind == "none":
        return {"rope_type": "linear", "factor": legacy} if legacy not in (None, 0.0, 1.0) else {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(f"{file.path.name}: rope scaling {kind[:40]!r}; supported are linear and yarn")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": _needed_float(file, f"{prefix}.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = _needed_int(file, f"{prefix}.original_context_length")
        for key, ours in (("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")):
            value = meta.get_float(f"{prefix}.{key}")
            if value is not None:
                scaling[ours] = value
    return scaling


def _frequency_factors(file: GGUFFile, rotated: int) -> list[float] | None:
    tensor = file.tensors.get("rope_freqs.weight")
    if tensor is None:
        return None
    what = "tensor 'rope_freqs.weight'"
    if tensor.shape != (rotated // 2,) or tensor.type.name != "f32":
        raise ModelFileError(
            file.path.name, what, f"is {tensor.type.name} of shape {tensor.shape}; must be f32 of ({rotated // 2},)"
        )
    factors = dequantize(file.tensor_data(tensor.name), "f32", tensor.shape, "float32")
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(file.path.name, what, "holds a factor that is not a finite number above 0")
    values: list[float] = factors.tolist()
    return values


def _special_tokens(file: GGUFFile, vocab_size: int) -> dict[str, Any]:
    """`bos_token_id`, and in `eos_token_id` every token that ends an answer, each if there is one."""
    found: dict[str, Any] = {}
    bos = token_id(file, "bos", vocab_size)
    if bos is not None:
        found["bos_token_id"] = bos
    ends = [token_id(file, role, vocab_size) for role in ("eos", "eot", "eom")]
    ids = list(dict.fromkeys(end for end in ends if end is not None))
    if ids:
        found["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return found


def _needed_int(file: GGUFFile, key: str) -> int:
    value = file.metadata.get_int(key)
    if value is None:
        raise ModelFileError(file.path.name, "metadata", f"{key!r} is missing")
    return value


def _needed_float(file: GGUFFile, key: str) -> float:
    value = file.metadata.get_float(key)
    if value is None:
        raise ModelFileError(file.path.name, "metadata", f"{key!r} is missing")
    return value
