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
from octavo.weights.gguf_header import GGUFHeader

_NORMALISES = {"llama": True, "qwen2moe": False, "qwen3moe": True, "olmoe": False}
"""Architectures with experts, and whether llama.cpp divides the probabilities of those chosen by their sum: it goes by
the architecture, not by the metadata."""
_SOFTMAX = 1  # of {arch}.expert_gating_func; 0 and none are the architecture's own
_EXPERTS = re.compile(r"(blk\.\d{1,5}\.ffn_(?:gate|up|down))_exps\.weight")
_SHARED_GATE = re.compile(r"blk\.\d{1,5}\.ffn_gate_inp_shexp\.weight")


def experts_config(header: GGUFHeader) -> dict[str, Any]:
    """What a Hugging Face config says of experts; nothing if there are none.

    Raises:
        ModelFileError: If a number is missing or out of range.
        UnsupportedModelError: If experts are chosen or weighed in a way that Octavo has not.
    """
    name, arch = header.name, header.arch
    count = header.get_int("expert_count") or 0
    if count == 0:
        return {}
    if arch not in _NORMALISES:
        raise UnsupportedModelError(
            f"{name}: architecture {arch[:40]!r} with experts; supported are {', '.join(_NORMALISES)}"
        )
    used = header.get_int("expert_used_count") or 0
    if not 1 <= used <= count <= 1 << 12:
        raise ModelFileError(name, "metadata", f"{used} of {count} experts; must be from 1 to all of at most 4096")
    if (header.get_int("expert_gating_func") or 0) not in (0, _SOFTMAX):
        raise UnsupportedModelError(f"{name}: experts that are not chosen by softmax")
    if (header.get_float("expert_weights_scale") or 0.0) not in (0.0, 1.0):
        raise UnsupportedModelError(f"{name}: experts whose outputs are scaled; supported are mixtures as they are")
    if arch == "llama":
        family = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
        return {**family, "num_local_experts": count, "num_experts_per_tok": used}
    config = {"num_experts": count, "num_experts_per_tok": used, "norm_topk_prob": _NORMALISES[arch]}
    if arch == "olmoe":
        return config
    inner = header.get_int("feed_forward_length") or 0
    config["moe_intermediate_size"] = header.get_int("expert_feed_forward_length") or inner // used
    if arch == "qwen2moe":
        config["shared_expert_intermediate_size"] = header.get_int("expert_shared_feed_forward_length") or inner
    layers = min(header.get_int("block_count") or 0, len(header.file.tensors))
    dense = [i for i in range(layers) if not header.has(f"blk.{i}.ffn_gate_inp.weight")]
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
