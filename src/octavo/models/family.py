"""What a row of the table of families says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from octavo.models.config_reader import Rule, activation, flag, number, size
from octavo.models.layers import layers
from octavo.weights.naming import Naming

Fields = Mapping[str, Any]
"""Fields of a DecoderSpec: values, and rules that read them from the config."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table."""

    fields: Fields = {}
    """Where the spec departs from Llama's."""
    naming: Naming | Rule = Naming()
    keys: Mapping[str, str] = {}
    """The family's names for keys of the config."""
    defaults: Mapping[str, Any] = {}
    """Of keys that a config may leave out, where they are not Llama's."""
    refused: Mapping[str, tuple[Any, ...]] = {}
    """Options that change the maths in a way that Octavo lacks, each with the values that leave it as it is."""
    inside: str | None = None
    """Key of the object that the decoder's config is in, for models of more than text."""


LLAMA: Fields = {
    "vocab_size": size("vocab_size"),
    "hidden_size": size("hidden_size"),
    "intermediate_size": size("intermediate_size"),
    "num_heads": size("num_attention_heads"),
    "num_kv_heads": lambda c: c.size("num_key_value_heads", c.size("num_attention_heads")),
    "head_dim": lambda c: c.head_dim,
    "layers": layers(),
    "tied_embeddings": flag("tie_word_embeddings"),
    "max_position": size("max_position_embeddings"),
    "norm_eps": number("rms_norm_eps"),
    "qkv_bias": flag("attention_bias"),
    "output_bias": flag("attention_bias"),
    "mlp_bias": flag("mlp_bias"),
    "activation": activation("hidden_act"),
}
LLAMA_DEFAULTS: Mapping[str, Any] = {
    "hidden_act": "silu",
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
