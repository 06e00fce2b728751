"""Mixtures of experts in GGUF files.

A tensor `blk.N.ffn_gate_exps.weight` holds the weights of all experts of a layer, `[experts, inner, hidden]`. It is cut
into what old files have instead, one `blk.N.ffn_gate.E.weight` for each expert.
"""

from __future__ import annotations

import re
from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.cut import cut
from octavo.weights.gguf import GGUFFile

_NORMALISES = {"llama": True, "qwen2moe": False, "qwen3moe": True, "olmoe": False}
"""Architectures with experts, and whether llama.cpp divides the probabilities of those chosen by their sum: it goes by
the architecture, not by the metadata."""
_SOFTMAX = 1  # of {arch}.expert_gating_func; 0 and none are the architecture's own
_EXPERTS = re.compile(r"(blk\.\d{1,5}\.ffn_(?:gate|up|down))_exps\.weight")
_SHARED_GATE = re.compile(r"blk\.\d{1,5}\.ffn_gate_inp_shexp\.weight")

_MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate.": "block_sparse_moe.experts.{}.w1",
    "ffn_up.": "block_sparse_moe.experts.{}.w3",
    "ffn_down.": "block_sparse_moe.experts.{}.w2",
}
_OTHERS = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate.": "mlp.experts.{}.gate_proj",
    "ffn_up.": "mlp.experts.{}.up_proj",
    "ffn_down.": "mlp.experts.{}.down_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
}
_NAME = re.compile(r"blk\.(\d{1,5})\.(ffn_[a-z_]+\.?)(\d{0,5})\.weight")


def experts_config(file: GGUFFile, arch: str) -> dict[str, Any]:
    """What a Hugging Face config says of experts; nothing if there are none.

    Raises:
        ModelFileError: If a number is missing or out of range.
        UnsupportedModelError: If experts are chosen or weighed in a way that Octavo has not.
    """
    meta, name = file.metadata, file.path.name
    count = meta.get_int(f"{arch}.expert_count") or 0
    if count == 0:
        return {}
    if arch not in _NORMALISES:
        raise UnsupportedModelError(
            f"{name}: architecture {arch[:40]!r} with experts; supported are {', '.join(_NORMALISES)}"
        )
    used = meta.get_int(f"{arch}.expert_used_count") or 0
    if not 1 <= used <= count <= 1 << 12:
        raise ModelFileError(name, "metadata", f"{used} of {count} experts; must be from 1 to all of at most 4096")
    if (meta.get_int(f"{arch}.expert_gating_func") or 0) not in (0, _SOFTMAX):
        raise UnsupportedModelError(f"{name}: experts that are not chosen by softmax")
    if (meta.get_float(f"{arch}.expert_weights_scale") or 0.0) not in (0.0, 1.0):
        raise UnsupportedModelError(f"{name}: experts whose outputs are scaled; supported are mixtures as they are")
    if arch == "llama":
        family = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        return {**family, "num_local_experts": count, "num_experts_per_tok": used}
    config = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": _NORMALISES[arch]}
    if arch == "olmoe":
        return config
    inner = meta.get_int(f"{arch}.feed_forward_length") or 0
    config["moe_intermediate_size"] = meta.get_int(f"{arch}.expert_feed_forward_length") or inner // used
    if arch == "qwen2moe":
        config["shared_expert_intermediate_size"] = meta.get_int(f"{arch}.expert_shared_feed_forward_length") or inner
    layers = min(meta.get_int(f"{arch}.block_count") or 0, len(file.tensors))
    dense = [i for i in range(layers) if f"blk.{i}.ffn_gate_inp.weight" not in file.tensors]
    return {**config, "mlp_only_layers": dense}


def cut_experts(file: GGUFFile, num_experts: int) -> None:
    """Put the weights of each expert in the place of tensors that hold those of all, and the gate of the shared expert,
    a vector, as a matrix of one row.

    Raises:
        ModelFileError: If such a tensor has not so many experts.
    """
    for name, tensor in list(file.tensors.items()):
        if match := _EXPERTS.fullmatch(name):
            if len(tensor.shape) != 3 or tensor.shape[0] != num_experts:
                what = f"has shape {tensor.shape}; must hold {num_experts} matrices"
                raise ModelFileError(file.path.name, f"tensor {name!r}", what)
            cut(file.tensors, name, [f"{match[1]}.{e}.weight" for e in range(num_experts)], file.path.name)
        elif _SHARED_GATE.fullmatch(name) and len(tensor.shape) == 1:
            cut(file.tensors, name, [name], file.path.name)


def experts_name(name: str, *, mixtral: bool) -> str | None:
    """The Hugging Face name of a tensor of a layer's experts, cut as above; None for another."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    layer, part, expert = match.groups()
    module = (_MIXTRAL if mixtral else _OTHERS).get(part)
    if module is None or part.endswith(".") != bool(expert):
        return None
    return f"model.layers.{int(layer)}.{module.format(int(expert or 0))}.weight"
