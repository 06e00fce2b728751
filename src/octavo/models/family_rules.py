"""Rules of a family or two that a key alone does not say."""

from __future__ import annotations

from octavo.backends.protocol import Activation
from octavo.models.config_reader import Config, activation
from octavo.weights.naming import Naming


def four_times_wider(c: Config) -> int:
    """The MLP of models that seldom say how wide it is."""
    return c.size("intermediate_size", 4 * c.size("hidden_size"))


def opt_embedding(c: Config) -> int | None:
    """350m embeds tokens in a narrower space and projects them."""
    width = c.size("word_embed_proj_dim", c.size("hidden_size"))
    return None if width == c.size("hidden_size") else width


def falcon_naming(c: Config) -> Naming:
    """Two norms side by side have names of their own."""
    norms = {1: ("input_layernorm",), 2: ("ln_attn", "ln_mlp")}[falcon_norms(c)] if falcon_parallel(c) else None
    return Naming(
        roots=("transformer.", ""),
        embedding="word_embeddings",
        norm="ln_f",
        layer="h.{}.",
        norms=norms or ("input_layernorm", "post_attention_layernorm"),
        qkv=("self_attention.query_key_value",),
        qkv_by_group=True,
        output="self_attention.dense",
        up=("mlp.dense_h_to_4h",),
        down="mlp.dense_4h_to_h",
    )


def falcon_parallel(c: Config) -> bool:
    return c.flag("parallel_attn") or c.flag("new_decoder_architecture")


def falcon_norms(c: Config) -> int:
    """Of a parallel layer."""
    if not c.flag("new_decoder_architecture"):
        return 1
    count = c.size("num_ln_in_parallel_attn", 2)
    if count > 2:
        raise c.wrong("num_ln_in_parallel_attn", "must be 1 or 2")
    return count


def falcon_kv_heads(c: Config) -> int:
    if c.flag("multi_query") and not c.flag("new_decoder_architecture"):
        return 1
    return c.size("num_kv_heads", c.size("num_attention_heads"))


def gemma_activation(c: Config) -> Activation:
    """The first configs say gelu and mean its approximation."""
    if c.get("hidden_activation") is not None:
        found: Activation = activation("hidden_activation")(c)
        return found
    return "gelu_tanh" if c.get("hidden_act") == "gelu" else activation("hidden_act")(c)
