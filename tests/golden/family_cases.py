"""A tiny model for each family and variant. Prompts are longer than every window and every original context."""

from __future__ import annotations

from typing import Any

from support.tiny_models import TinyFamily


def _model(architecture: str, model_type: str, **changes: Any) -> TinyFamily:
    return TinyFamily(architecture=architecture, model_type=model_type, changes=changes)


def _rope(kind: str, **settings: Any) -> TinyFamily:
    return _model("LlamaForCausalLM", "llama", rope_parameters={"rope_type": kind, "rope_theta": 1e4, **settings})


WINDOW = 24
OPT: dict[str, Any] = {"word_embed_proj_dim": 48, "tie_word_embeddings": True}
GEMMA: dict[str, Any] = {"head_dim": 16, "tie_word_embeddings": True}
GEMMA_3: dict[str, Any] = {
    **GEMMA,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "query_pre_attn_scalar": 20,
    "sliding_window": WINDOW,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
}
PHI_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.2, 1.4, 1.7],
    "long_factor": [1.0, 1.5, 2.5, 6.0, 9.0],
    "partial_rotary_factor": 0.84,
}
FALCON: dict[str, Any] = {"ffn_hidden_size": 80, "tie_word_embeddings": True}

MODELS: dict[str, TinyFamily] = {
    "opt": _model("OPTForCausalLM", "opt", **OPT),
    "opt-350m": _model("OPTForCausalLM", "opt", **{**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 24}),
    "gpt2": _model("GPT2LMHeadModel", "gpt2", n_inner=80, tie_word_embeddings=True),
    "gpt-neox": _model("GPTNeoXForCausalLM", "gpt_neox", rotary_pct=0.5),
    "gpt-neox-sequential": _model("GPTNeoXForCausalLM", "gpt_neox", rotary_pct=0.5, use_parallel_residual=False),
    "qwen2-windows": _model(
        "Qwen2ForCausalLM", "qwen2", use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),
    "qwen3": _model("Qwen3ForCausalLM", "qwen3", head_dim=16),
    "gemma": _model("GemmaForCausalLM", "gemma", **GEMMA),
    "gemma2": _model(
        "Gemma2ForCausalLM",
        "gemma2",
        **GEMMA,
        query_pre_attn_scalar=20,
        sliding_window=WINDOW,
        attn_logit_softcapping=1.5,
        final_logit_softcapping=2.0,
    ),
    "gemma3": _model("Gemma3ForCausalLM", "gemma3_text", **GEMMA_3),
    "gemma3-images": TinyFamily(
        architecture="Gemma3ForConditionalGeneration",
        model_type="gemma3",
        changes={**GEMMA_3, "model_type": "gemma3_text"},
        text={
            "vision_config": {
                "hidden_size": 8,
                "intermediate_size": 8,
                "num_hidden_layers": 1,
                "num_attention_heads": 1,
                "image_size": 28,
                "patch_size": 14,
                "model_type": "siglip_vision_model",
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 95,
        },
    ),
    "phi3": _model("Phi3ForCausalLM", "phi3", sliding_window=WINDOW, pad_token_id=0),
    "phi3-long": TinyFamily(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        changes={"original_max_position_embeddings": 32, "rope_parameters": PHI_ROPE, "pad_token_id": 0},
        context=128,
    ),
    "phi3-short": TinyFamily(
        architecture="Phi3ForCausalLM",
        model_type="phi3",
        changes={"original_max_position_embeddings": 128, "rope_parameters": PHI_ROPE, "pad_token_id": 0},
        context=128,
    ),
    "smollm3": _model("SmolLM3ForCausalLM", "smollm3", no_rope_layer_interval=2, pad_token_id=0),
    "falcon-7b": _model("FalconForCausalLM", "falcon", **FALCON),
    "falcon-40b": _model("FalconForCausalLM", "falcon", **FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-11b": _model(
        "FalconForCausalLM",
        "falcon",
        **FALCON,
        new_decoder_architecture=True,
        num_kv_heads=2,
        num_ln_in_parallel_attn=1,
    ),
    "falcon-sequential": _model(
        "FalconForCausalLM", "falcon", **FALCON, parallel_attn=False, multi_query=False, bias=True
    ),
    "granite": _model(
        "GraniteForCausalLM",
        "granite",
        embedding_multiplier=3.0,
        attention_multiplier=0.2,
        residual_multiplier=0.6,
        logits_scaling=2.5,
    ),
    "olmo2": _model("Olmo2ForCausalLM", "olmo2", pad_token_id=0),
    "olmo3": _model(
        "Olmo3ForCausalLM",
        "olmo3",
        pad_token_id=0,
        sliding_window=WINDOW,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "starcoder2": _model("Starcoder2ForCausalLM", "starcoder2", sliding_window=WINDOW),
    "stablelm": _model("StableLmForCausalLM", "stablelm", use_qkv_bias=True, partial_rotary_factor=0.5),
    "stablelm-parallel": _model(
        "StableLmForCausalLM", "stablelm", use_parallel_residual=True, partial_rotary_factor=0.5
    ),
    "mixtral": _model("MixtralForCausalLM", "mixtral", num_local_experts=16, num_experts_per_tok=2),
    "qwen2-moe": _model(
        "Qwen2MoeForCausalLM",
        "qwen2_moe",
        num_hidden_layers=3,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=20,
        shared_expert_intermediate_size=28,
        norm_topk_prob=False,
        mlp_only_layers=[1],
    ),
    "qwen3-moe": _model(
        "Qwen3MoeForCausalLM",
        "qwen3_moe",
        num_hidden_layers=3,
        head_dim=16,
        num_experts=8,
        num_experts_per_tok=3,
        moe_intermediate_size=20,
        norm_topk_prob=True,
        decoder_sparse_step=2,
    ),
    "olmoe": _model(
        "OlmoeForCausalLM", "olmoe", num_experts=8, num_experts_per_tok=4, norm_topk_prob=False, pad_token_id=0
    ),
    "rope-yarn": _rope("yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=8.0),
    "rope-yarn-mscale": _rope(
        "yarn", factor=8.0, original_max_position_embeddings=32, beta_fast=8.0, mscale=1.0, mscale_all_dim=0.4
    ),
    "rope-dynamic": TinyFamily(
        architecture="LlamaForCausalLM",
        model_type="llama",
        changes={
            "max_position_embeddings": 48,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
        },
        context=120,
    ),
}
"""By the names of their expectations."""
