"""The architectures that GGUF files may name, as a table: the names of their tensors and what llama.cpp takes for
granted of them. A new one is a row.

Facts are those of llama.cpp's converter and graphs; the names are checked against the `gguf` package in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from octavo.weights.gguf_header import GGUFHeader
from octavo.weights.gguf_rope import FACTORS
from octavo.weights.naming import ExpertsNaming, Naming

Rule = Callable[[GGUFHeader, Mapping[str, Any]], dict[str, Any]]
"""What a Hugging Face config says besides, given the sizes it has already."""

LLAMA = Naming(
    roots=("",),
    embedding="token_embd",
    head="output",
    norm="output_norm",
    positions="position_embd",
    layer="blk.{}.",
    norms=("attn_norm", "ffn_norm"),
    qkv=("attn_q", "attn_k", "attn_v"),
    query_norm="attn_q_norm",
    key_norm="attn_k_norm",
    output="attn_output",
    up=("ffn_gate", "ffn_up"),
    down="ffn_down",
    experts=ExpertsNaming(
        router="ffn_gate_inp",
        expert="ffn_{name}.{number}",
        up=("gate", "up"),
        down="down",
        shared="ffn_{name}_shexp",
        shared_gate="ffn_gate_inp_shexp",
    ),
    unused=FACTORS,
)
FUSED: Mapping[str, Any] = {"qkv": ("attn_qkv",), "up": ("ffn_up",)}
"""Rows of the queries first, then of the keys and the values, whatever order the family's own checkpoints have."""
WITH_OFFSET: Mapping[str, Any] = {"offset_in_norms": True}
"""The converter adds the 1 of Gemma's norms."""
FOUR_NORMS = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")


def named(**changes: Any) -> Naming:
    """As in Llama's files but for these."""
    return msgspec.structs.replace(LLAMA, **changes)


def _nothing(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {}


class GGUFArchitecture(msgspec.Struct, frozen=True, kw_only=True):
    """What the name in `general.architecture` stands for. The defaults are Llama's."""

    class_name: str
    """Of Hugging Face's `architectures`."""
    model_type: str
    naming: Naming | Callable[[GGUFHeader], Naming] = LLAMA
    permutes_rotary: bool = False
    """llama.cpp's converter reorders the rows of the query and key projections."""
    layer_norm: bool = False
    """Layer norms in the place of RMS norms."""
    biases: Mapping[str, str] = MappingProxyType(
        {"attention_bias": "blk.0.attn_q.bias", "mlp_bias": "blk.0.ffn_up.bias"}
    )
    """Flags of the config, and the tensor whose presence sets each."""
    windows: bool = False
    """Whether `attention.sliding_window` means anything."""
    rule: Rule = _nothing


def _llama(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """The first Mistral is filed under llama; in Hugging Face a window is its mark."""
    if not header.get_int("attention.sliding_window"):
        return {}
    return {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}


def _gemma(layers_of_27b: int) -> Rule:
    """The largest of each generation scales its queries by the width per head, which is not that of a head."""

    def rule(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
        widest = sizes["num_hidden_layers"] == layers_of_27b
        scalar = sizes["hidden_size"] / sizes["num_attention_heads"] if widest else sizes["head_dim"]
        return {
            "query_pre_attn_scalar": scalar,
            "rope_local_base_freq": header.get_float("rope.freq_base_swa") or 10000.0,
            "attn_logit_softcapping": header.get_float("attn_logit_softcapping"),
            "final_logit_softcapping": header.get_float("final_logit_softcapping"),
        }

    return rule


def _granite(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_multiplier": header.get_float("attention.scale") or sizes["head_dim"] ** -0.5,
        **header.floats(
            embedding_multiplier="embedding_scale", residual_multiplier="residual_scale", logits_scaling="logit_scale"
        ),
    }


def _olmo2(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Olmo 3 is filed under olmo2; a window is its mark. Windowed layers keep the plain rotary embedding."""
    if not header.get_int("attention.sliding_window"):
        return {}
    return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3"}


def _falcon(header: GGUFHeader, sizes: Mapping[str, Any]) -> dict[str, Any]:
    kv_heads = sizes["num_key_value_heads"]
    return {
        "new_decoder_architecture": kv_heads > 1,
        "num_kv_heads": kv_heads,
        "num_ln_in_parallel_attn": 2 if header.has("blk.0.attn_norm_2.weight") else 1,
    }


def _falcon_naming(header: GGUFHeader) -> Naming:
    """Where there are two norms, the one called the second is that of attention."""
    two = header.has("blk.0.attn_norm_2.weight")
    return named(**FUSED, norms=("attn_norm_2", "attn_norm") if two else ("attn_norm",))


def _is_parallel(header: GGUFHeader) -> bool:
    """Of StableLM: one norm stands before attention and MLP."""
    return not header.has("blk.0.ffn_norm.weight")


def _phi3_naming(header: GGUFHeader) -> Naming:
    return named(up=FUSED["up"], qkv=FUSED["qkv"] if header.has("blk.0.attn_qkv.weight") else LLAMA.qkv)


ARCHITECTURES = {
    "llama": GGUFArchitecture(
        class_name="LlamaForCausalLM", model_type="llama", permutes_rotary=True, windows=True, rule=_llama
    ),
    "qwen2": GGUFArchitecture(class_name="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": GGUFArchitecture(class_name="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen2moe": GGUFArchitecture(class_name="Qwen2MoeForCausalLM", model_type="qwen2_moe"),
    "qwen3moe": GGUFArchitecture(class_name="Qwen3MoeForCausalLM", model_type="qwen3_moe"),
    "olmoe": GGUFArchitecture(class_name="OlmoeForCausalLM", model_type="olmoe"),
    "gemma": GGUFArchitecture(class_name="GemmaForCausalLM", model_type="gemma", naming=named(**WITH_OFFSET)),
    "gemma2": GGUFArchitecture(
        class_name="Gemma2ForCausalLM",
        model_type="gemma2",
        naming=named(**WITH_OFFSET, norms=FOUR_NORMS),
        windows=True,
        rule=_gemma(46),
    ),
    "gemma3": GGUFArchitecture(
        class_name="Gemma3ForCausalLM",
        model_type="gemma3_text",
        naming=named(**WITH_OFFSET, norms=FOUR_NORMS),
        windows=True,
        rule=_gemma(62),
    ),
    "phi3": GGUFArchitecture(class_name="Phi3ForCausalLM", model_type="phi3", naming=_phi3_naming, windows=True),
    "smollm3": GGUFArchitecture(class_name="SmolLM3ForCausalLM", model_type="smollm3", permutes_rotary=True),
    "granite": GGUFArchitecture(
        class_name="GraniteForCausalLM", model_type="granite", permutes_rotary=True, rule=_granite
    ),
    "olmo2": GGUFArchitecture(
        class_name="Olmo2ForCausalLM",
        model_type="olmo2",
        naming=named(norms=("post_attention_norm", "post_ffw_norm")),
        windows=True,
        rule=_olmo2,
    ),
    "gpt2": GGUFArchitecture(
        class_name="GPT2LMHeadModel", model_type="gpt2", naming=named(**FUSED), layer_norm=True, biases={}
    ),
    "gptneox": GGUFArchitecture(
        class_name="GPTNeoXForCausalLM",
        model_type="gpt_neox",
        naming=named(**FUSED),
        layer_norm=True,
        biases={"attention_bias": "blk.0.attn_qkv.bias"},
        rule=lambda header, sizes: {"use_parallel_residual": header.get_bool("use_parallel_residual") is not False},
    ),
    "falcon": GGUFArchitecture(
        class_name="FalconForCausalLM",
        model_type="falcon",
        naming=_falcon_naming,
        layer_norm=True,
        biases={"bias": "blk.0.attn_qkv.bias"},
        rule=_falcon,
    ),
    "starcoder2": GGUFArchitecture(
        class_name="Starcoder2ForCausalLM",
        model_type="starcoder2",
        naming=named(up=FUSED["up"]),
        layer_norm=True,
        biases={"use_bias": "blk.0.ffn_up.bias"},
        windows=True,
    ),
    "stablelm": GGUFArchitecture(
        class_name="StableLmForCausalLM",
        model_type="stablelm",
        naming=lambda header: named(norms=LLAMA.norms[:1]) if _is_parallel(header) else LLAMA,
        layer_norm=True,
        biases={"use_qkv_bias": "blk.0.attn_q.bias"},
        rule=lambda header, sizes: {
            "use_parallel_residual": _is_parallel(header),
            "qk_layernorm": header.has("blk.0.attn_q_norm.weight"),
        },
    ),
}
