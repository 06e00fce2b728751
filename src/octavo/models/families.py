"""The families Octavo knows, as a table: how the spec follows from a Hugging Face config. A new one is a row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.config_reader import FILE, Config, activation, flag, number, optional_number, size
from octavo.models.experts import mixtral_experts, olmoe_experts, qwen_experts, with_experts
from octavo.models.family import LLAMA, LLAMA_DEFAULTS, Family, Fields
from octavo.models.family_rules import (
    falcon_kv_heads,
    falcon_naming,
    falcon_norms,
    falcon_parallel,
    four_times_wider,
    gemma_activation,
    opt_embedding,
)
from octavo.models.layers import (
    all_but_every,
    always,
    from_layer,
    layers,
    no_rope,
    ropes_by_kind,
    some_ropes,
    without_rope,
)
from octavo.models.nearest import nearest
from octavo.models.spec import DecoderSpec
from octavo.weights.naming import ExpertsNaming, Naming

LAYER_NORM: Fields = {"norm": "layer", "norm_bias": True, "norm_eps": number("layer_norm_eps")}
EACH_ITS_KV: Fields = {"num_kv_heads": size("num_attention_heads")}
BIASES: Fields = {"qkv_bias": True, "output_bias": True, "mlp_bias": True}
GEMMA: Fields = {
    "norm_offset": 1.0,
    "embedding_scale": lambda c: c.size("hidden_size") ** 0.5,
    "activation": activation("hidden_activation"),
}
GEMMA_2: Fields = {
    **GEMMA,
    "norm_place": "around",
    "attention_scale": lambda c: c.number("query_pre_attn_scalar") ** -0.5,
    "attention_soft_cap": optional_number("attn_logit_softcapping"),
    "logits_soft_cap": optional_number("final_logit_softcapping"),
}
GEMMA_DEFAULTS: Mapping[str, Any] = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "tie_word_embeddings": True,
}
GEMMA_2_DEFAULTS: Mapping[str, Any] = {**GEMMA_DEFAULTS, "query_pre_attn_scalar": 256, "sliding_window": 4096}
GEMMA_3_DEFAULTS: Mapping[str, Any] = {
    **GEMMA_2_DEFAULTS,
    "vocab_size": 262208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 131072,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}
ONE_DIRECTION: Mapping[str, tuple[Any, ...]] = {"use_bidirectional_attention": (False,)}
FOUR_NORMS = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GEMMA_3 = Family(
    fields={
        **GEMMA_2,
        "qk_norm": "head",
        "layers": layers(all_but_every(), ropes=ropes_by_kind("rope_local_base_freq")),
    },
    naming=Naming(norms=FOUR_NORMS),
    defaults=GEMMA_3_DEFAULTS,
    refused=ONE_DIRECTION,
)
QWEN_LAYERS = layers(from_layer, switch="use_sliding_window")
QWEN_DEFAULTS: Mapping[str, Any] = {"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28}
AFTER = Naming(norms=("post_attention_layernorm", "post_feedforward_layernorm"))


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(
        fields={"layers": layers(always)},
        defaults={"max_position_embeddings": 131072, "sliding_window": 4096, "num_key_value_heads": 8},
    ),
    "Qwen2ForCausalLM": Family(
        fields={"layers": QWEN_LAYERS, "qkv_bias": True, "output_bias": False}, defaults=QWEN_DEFAULTS
    ),
    "Qwen3ForCausalLM": Family(
        fields={"layers": QWEN_LAYERS, "qk_norm": "head"}, defaults={**QWEN_DEFAULTS, "head_dim": 128}
    ),
    "GemmaForCausalLM": Family(
        fields={**GEMMA, "activation": gemma_activation},
        defaults={**GEMMA_DEFAULTS, "hidden_activation": None, "hidden_act": "gelu"},
        refused=ONE_DIRECTION,
    ),
    "Gemma2ForCausalLM": Family(
        fields={**GEMMA_2, "layers": layers(all_but_every(2))},
        naming=Naming(norms=FOUR_NORMS),
        defaults={**GEMMA_2_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        refused=ONE_DIRECTION,
    ),
    "Gemma3ForCausalLM": GEMMA_3,
    "Gemma3ForConditionalGeneration": msgspec.structs.replace(
        GEMMA_3,
        inside="text_config",
        naming=Naming(
            roots=("model.language_model.", "language_model.model.", "model.", ""),
            norms=FOUR_NORMS,
            left_out=("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector."),
        ),
    ),
    "Phi3ForCausalLM": Family(
        fields={"layers": layers(always)},
        naming=Naming(qkv=("self_attn.qkv_proj",), up=("mlp.gate_up_proj",)),
        defaults={
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
    ),
    "SmolLM3ForCausalLM": Family(
        fields={"layers": layers(without_rope, ropes=some_ropes, switch="use_sliding_window")},
        defaults={
            "max_position_embeddings": 32768,
            "rope_theta": 2e6,
            "no_rope_layer_interval": 4,
            "num_key_value_heads": 4,
            "tie_word_embeddings": True,
        },
    ),
    "GraniteForCausalLM": Family(
        fields={
            "embedding_scale": number("embedding_multiplier"),
            "attention_scale": number("attention_multiplier"),
            "residual_scale": number("residual_multiplier"),
            "logits_scale": lambda c: 1.0 / c.number("logits_scaling"),
        },
        defaults=dict.fromkeys(
            ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"), 1.0
        ),
    ),
    "MixtralForCausalLM": Family(
        fields={"layers": with_experts(layers(always), mixtral_experts)},
        naming=Naming(
            experts=ExpertsNaming(
                router="block_sparse_moe.gate",
                expert="block_sparse_moe.experts.{number}.{name}",
                up=("w1", "w3"),
                down="w2",
            )
        ),
        defaults={"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
    ),
    "Qwen2MoeForCausalLM": Family(
        fields={
            "layers": with_experts(layers(switch="use_sliding_window"), qwen_experts(shared=True)),
            "qkv_bias": flag("qkv_bias"),
            "output_bias": False,
        },
        defaults={"max_position_embeddings": 32768, "decoder_sparse_step": 1, "qkv_bias": True},
        refused={"use_sliding_window": (False,)},
    ),
    "Qwen3MoeForCausalLM": Family(
        fields={
            "layers": with_experts(layers(always, switch="use_sliding_window"), qwen_experts(shared=False)),
            "qk_norm": "head",
        },
        defaults={"max_position_embeddings": 32768, "sliding_window": 4096, "decoder_sparse_step": 1},
    ),
    "OlmoeForCausalLM": Family(
        fields={"layers": with_experts(layers(), olmoe_experts), "qk_norm": "row"},
        defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
        refused={"clip_qkv": ("null",)},
    ),
    "Olmo2ForCausalLM": Family(
        fields={"norm_place": "after", "qk_norm": "row"}, naming=AFTER, defaults={"rms_norm_eps": 1e-5}
    ),
    "Olmo3ForCausalLM": Family(
        fields={
            "norm_place": "after",
            "qk_norm": "row",
            "layers": layers(all_but_every(4), ropes=ropes_by_kind("rope_theta")),
        },
        naming=AFTER,
        defaults={"rms_norm_eps": 1e-5, "rope_theta": 5e5, "sliding_window": 4096},
    ),
    "OPTForCausalLM": Family(
        fields={
            **LAYER_NORM,
            **EACH_ITS_KV,
            "norm_eps": 1e-5,
            "norm_place": lambda c: "before" if c.flag("do_layer_norm_before") else "after_sum",
            "final_norm": lambda c: c.flag("do_layer_norm_before") and not c.flag("_remove_final_layer_norm"),
            "embedding_size": opt_embedding,
            "position_offset": 2,
            "layers": layers(ropes=no_rope),
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), flag("enable_bias")),
            "gated_mlp": False,
        },
        naming=Naming(
            roots=("model.decoder.", "decoder."),
            norm="final_layer_norm",
            norms=("self_attn_layer_norm", "final_layer_norm"),
            output="self_attn.out_proj",
            up=("fc1",),
            down="fc2",
        ),
        keys={"intermediate_size": "ffn_dim", "hidden_act": "activation_function"},
        defaults={
            "do_layer_norm_before": True,
            "enable_bias": True,
            "activation_function": "relu",
            "tie_word_embeddings": True,
        },
        refused={"layer_norm_elementwise_affine": (True,)},
    ),
    "GPT2LMHeadModel": Family(
        fields={
            **LAYER_NORM,
            **EACH_ITS_KV,
            **BIASES,
            "intermediate_size": four_times_wider,
            "attention_scale": lambda c: None if c.flag("scale_attn_weights") else 1.0,
            "position_offset": 0,
            "layers": layers(ropes=no_rope),
            "gated_mlp": False,
        },
        naming=Naming(
            roots=("transformer.", ""),
            embedding="wte",
            positions="wpe",
            norm="ln_f",
            layer="h.{}.",
            norms=("ln_1", "ln_2"),
            qkv=("attn.c_attn",),
            output="attn.c_proj",
            up=("mlp.c_fc",),
            down="mlp.c_proj",
            transposed=True,
            unused=(".attn.bias", ".attn.masked_bias"),
        ),
        keys={
            "hidden_size": "n_embd",
            "intermediate_size": "n_inner",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "max_position_embeddings": "n_positions",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation_function",
        },
        defaults={
            "layer_norm_epsilon": 1e-5,
            "activation_function": "gelu_new",
            "n_positions": 1024,
            "scale_attn_weights": True,
            "tie_word_embeddings": True,
        },
        refused={"scale_attn_by_inverse_layer_idx": (False,), "add_cross_attention": (False,)},
    ),
    "GPTNeoXForCausalLM": Family(
        fields={
            **LAYER_NORM,
            **EACH_ITS_KV,
            "parallel": flag("use_parallel_residual"),
            "mlp_bias": True,
            "gated_mlp": False,
        },
        naming=Naming(
            roots=("gpt_neox.", ""),
            embedding="embed_in",
            head="embed_out",
            norm="final_layer_norm",
            qkv=("attention.query_key_value",),
            qkv_by_group=True,
            output="attention.dense",
            up=("mlp.dense_h_to_4h",),
            down="mlp.dense_4h_to_h",
            unused=(".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq"),
        ),
        keys={"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"},
        defaults={
            "layer_norm_eps": 1e-5,
            "hidden_act": "gelu",
            "use_parallel_residual": True,
            "attention_bias": True,
            "rotary_emb_base": 10000.0,
            "rotary_pct": 0.25,
        },
    ),
    "FalconForCausalLM": Family(
        fields={
            **LAYER_NORM,
            "num_kv_heads": falcon_kv_heads,
            "parallel": falcon_parallel,
            "shared_norm": lambda c: falcon_parallel(c) and falcon_norms(c) == 1,
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), flag("bias")),
            "intermediate_size": four_times_wider,
            "gated_mlp": False,
        },
        naming=falcon_naming,
        keys={
            "intermediate_size": "ffn_hidden_size",
            "layer_norm_eps": "layer_norm_epsilon",
            "hidden_act": "activation",
        },
        defaults={
            "layer_norm_epsilon": 1e-5,
            "activation": "gelu",
            "multi_query": True,
            "parallel_attn": True,
            "tie_word_embeddings": True,
        },
        refused={"alibi": (False,)},
    ),
    "Starcoder2ForCausalLM": Family(
        fields={
            **LAYER_NORM,
            "layers": layers(always),
            **dict.fromkeys(("qkv_bias", "output_bias", "mlp_bias"), flag("use_bias")),
            "gated_mlp": False,
        },
        naming=Naming(up=("mlp.c_fc",), down="mlp.c_proj"),
        keys={"layer_norm_eps": "norm_epsilon"},
        defaults={
            "norm_epsilon": 1e-5,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 4096,
            "use_bias": True,
            "tie_word_embeddings": True,
        },
    ),
    "StableLmForCausalLM": Family(
        fields={
            **LAYER_NORM,
            "parallel": flag("use_parallel_residual"),
            "shared_norm": flag("use_parallel_residual"),
            "qkv_bias": flag("use_qkv_bias"),
            "output_bias": False,
        },
        naming=lambda c: Naming(
            norms=("input_layernorm",) if c.flag("use_parallel_residual") else Naming().norms,
        ),
        defaults={"layer_norm_eps": 1e-5, "max_position_embeddings": 4096, "partial_rotary_factor": 0.25},
        refused={"qk_layernorm": (False,)},
    ),
}


def decoder_spec(config: Mapping[str, Any], context: int | None = None) -> DecoderSpec:
    """The spec of the model that `config` (the keys of Hugging Face's config.json) describes.

    Args:
        context: Tokens of the longest sequence that will be served; None for the trained context. Some kinds of rotary
            embedding depend on it.

    Raises:
        ModelFileError: Naming the key, if a value is missing or does not fit the others.
        UnsupportedModelError: Naming what the model needs and Octavo lacks, with the nearest that it has.
    """
    name = _architecture(config)
    family = FAMILIES[name]
    c = Config(
        config if family.inside is None else _inside(config, family.inside),
        keys=family.keys,
        defaults={**LLAMA_DEFAULTS, **family.defaults},
        context=context,
    )
    for key, allowed in family.refused.items():
        value = c.values.get(key)
        if value is not None and value not in allowed:
            raise UnsupportedModelError(f"{key} = {str(value)[:40]} of {name}; supported is {allowed[0]}")
    fields = {**LLAMA, **family.fields}
    bos = c.tokens("bos_token_id")
    spec = DecoderSpec(
        family=name,
        naming=family.naming if isinstance(family.naming, Naming) else family.naming(c),
        bos_token_id=bos[0] if bos else None,
        eos_token_ids=c.tokens("eos_token_id"),
        **{field: value(c) if callable(value) else value for field, value in fields.items()},
    )
    if spec.num_heads % spec.num_kv_heads:
        raise c.wrong("num_key_value_heads", f"must divide {c.name('num_attention_heads')} ({spec.num_heads})")
    return spec


def _architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name is None:
        raise ModelFileError(FILE, "architectures", "is missing; must be a list with the model's class")
    if name not in FAMILIES:
        near = nearest(name, FAMILIES)
        known = f"supported are {', '.join(FAMILIES)}" if near is None else f"the nearest supported one is {near!r}"
        raise UnsupportedModelError(f"architecture {name[:60]!r}; {known}")
    return name


def _inside(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The decoder's part, with what the whole model says for all its parts."""
    found = config.get(key)
    if not isinstance(found, dict):
        raise ModelFileError(FILE, key, "is missing; must be an object")
    return {**config, **found}
