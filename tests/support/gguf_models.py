"""Tiny models of any family as GGUF files.

Names of tensors are those of the `gguf` package's tables; keys, layouts and reordered rows those of llama.cpp's
converter. Nothing here asks Octavo what a GGUF file looks like.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from octavo.models.families import FAMILIES
from support.tiny_models import TinyFamily, tensors

Floats = npt.NDArray[np.float32]
Tensors = dict[str, Floats]
Change = Callable[[Tensors, dict[str, Any]], Tensors]

_EXPERT = re.compile(r"(model\.layers\.(\d+)\..*experts)\.(\d+)\.(\w+)\.weight")


def write_gguf(path: Path, model: TinyFamily, arch: str, weights: Mapping[str, Any] | None = None) -> Path:
    """Write `model` under the architecture's name.

    Args:
        weights: By Hugging Face's names; None for the model's own, float32. An array of blocks (`in_blocks`) is written
            as it is.
    """
    config = _in_llamas_words(model.config())
    writer = gguf.GGUFWriter(path, arch)
    _add_sizes(writer, config, arch)
    _add_rope(writer, config, arch)
    for add in MORE_KEYS.get(arch, ()):
        add(writer, config)
    writer.add_token_list([f"t{i}" for i in range(config["vocab_size"])])
    writer.add_tokenizer_model("gpt2")
    writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    for name, values in _stored(dict(weights or tensors(model)), config, arch).items():
        if values.dtype.names is None:
            writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        else:
            kind = gguf.GGMLQuantizationType[values.dtype.names[0]]
            writer.add_tensor(name, np.ascontiguousarray(values).view(np.uint8), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def in_blocks(data: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    """Rows of bytes `[N, bytes]` of a ggml type as rows of its blocks, so that rows can be moved and stacked."""
    return data.view(np.dtype([(kind, f"V{gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]}")]))


def _in_llamas_words(config: dict[str, Any]) -> dict[str, Any]:
    family = FAMILIES[config["architectures"][0]]
    return {**config, **{key: config[own] for key, own in family.keys.items() if own in config}}


def _head_dim(config: dict[str, Any]) -> int:
    found: int = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return found


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], arch: str) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(heads)
    if arch not in ("gpt2", "gptneox"):
        writer.add_head_count_kv(KV_HEADS.get(arch, lambda c: c["num_key_value_heads"])(config))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    if arch in LAYER_NORMS:
        writer.add_layer_norm_eps(1e-5)
    else:
        writer.add_layer_norm_rms_eps(1e-5 if config["architectures"][0] in LARGER_EPSILON else 1e-6)
    if "sliding_window" in config:
        writer.add_sliding_window(config["sliding_window"])
        kinds = config.get("layer_types")
        if kinds:
            writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in kinds])
    if "num_experts_per_tok" in config:
        writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


LAYER_NORMS = ("gpt2", "gptneox", "falcon", "starcoder2", "stablelm")
LARGER_EPSILON = tuple(f"{name}ForCausalLM" for name in ("Phi3", "Olmo2", "Olmo3", "Olmoe", "Mixtral"))
KV_HEADS: dict[str, Callable[[dict[str, Any]], int]] = {"falcon": lambda c: c.get("num_kv_heads", 1)}


def _add_rope(writer: gguf.GGUFWriter, config: dict[str, Any], arch: str) -> None:
    if arch == "gpt2":
        return
    rope = config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope.get("rope_theta") or THETA_OF.get(config["architectures"][0], 1e4))
    share = rope.get("partial_rotary_factor") or config.get("partial_rotary_factor")
    if share:
        writer.add_rope_dimension_count(int(share * _head_dim(config)))
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if "short_factor" in rope:
        original, whole = config["original_max_position_embeddings"], config["max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = whole / original
        writer.add_rope_scaling_attn_factors(
            1.0 if stretch <= 1 else float(np.sqrt(1 + np.log(stretch) / np.log(original)))
        )
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight", np.array(rope[f"{name}_factor"], np.float32))


THETA_OF = {"MixtralForCausalLM": 1e6, "SmolLM3ForCausalLM": 2e6, "Olmo3ForCausalLM": 5e5}
"""What configs that say nothing mean."""


def _granite(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _soft_caps(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])


def _parallel(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_parallel_residual(config.get("use_parallel_residual", True))


MORE_KEYS: dict[str, tuple[Callable[[gguf.GGUFWriter, dict[str, Any]], None], ...]] = {
    "granite": (_granite,),
    "gemma2": (_soft_caps,),
    "gptneox": (_parallel,),
    "stablelm": (_parallel,),
}


def _stored(weights: Tensors, config: dict[str, Any], arch: str) -> Tensors:
    """The tensors under GGUF's names."""
    for change in CHANGES.get(arch, ()):
        weights = change(weights, config)
    weights = _stacked_experts(weights, arch)
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == arch)
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    stored: Tensors = {}
    for name, values in weights.items():
        found = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert found is not None, name
        stored[found] = values
    return stored


def _stacked_experts(weights: Tensors, arch: str) -> Tensors:
    """One tensor for all experts of a layer; the gate of a shared expert is a vector."""
    stacked: dict[str, list[Floats]] = {}
    rest: Tensors = {}
    for name, values in weights.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            rest[name] = values[0] if name.endswith("shared_expert_gate.weight") else values
            continue
        module = f"layers.{match[2]}.feed_forward.experts" if arch == "llama" else match[1]
        stacked.setdefault(f"{module}.{match[4]}.weight", []).append(values)
    return rest | {name: np.stack(parts) for name, parts in stacked.items()}


def _neighbours_turn(weights: Tensors, config: dict[str, Any]) -> Tensors:
    """Row i of a head to place 2i, row i + half to place 2i + 1."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}

    def turned(name: str, values: Floats) -> Floats:
        count = heads.get(name.split(".")[-2])
        if count is None:
            return values
        halves = values.reshape(count, 2, len(values) // count // 2, *values.shape[1:])
        return halves.swapaxes(1, 2).reshape(values.shape)

    return {name: turned(name, values) for name, values in weights.items()}


def _one_added(weights: Tensors, config: dict[str, Any]) -> Tensors:
    return {name: values + np.float32(1) if "norm" in name else values for name, values in weights.items()}


def _transposed(weights: Tensors, config: dict[str, Any]) -> Tensors:
    """Blocks run along the rows of the file already."""
    inside = ("c_attn.weight", "c_proj.weight", "c_fc.weight")
    return {n: v.T if n.endswith(inside) and v.dtype.names is None else v for n, v in weights.items()}


def _all_queries_first(weights: Tensors, config: dict[str, Any]) -> Tensors:
    """Fused rows that lie by KV head."""
    groups = config.get("num_kv_heads", 1) if config["model_type"] == "falcon" else config["num_attention_heads"]
    each, width = config["num_attention_heads"] // groups, _head_dim(config)

    def ordered(values: Floats) -> Floats:
        by_group = values.reshape(groups, each + 2, width, *values.shape[1:])
        parts = by_group[:, :each], by_group[:, each], by_group[:, each + 1]
        return np.concatenate([part.reshape(-1, *values.shape[1:]) for part in parts])

    return {name: ordered(v) if ".query_key_value." in name else v for name, v in weights.items()}


CHANGES: dict[str, tuple[Change, ...]] = {
    "llama": (_neighbours_turn,),
    "granite": (_neighbours_turn,),
    "smollm3": (_neighbours_turn,),
    "gemma": (_one_added,),
    "gemma2": (_one_added,),
    "gemma3": (_one_added,),
    "gpt2": (_transposed,),
    "gptneox": (_all_queries_first,),
    "falcon": (_all_queries_first,),
}
