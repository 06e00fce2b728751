"""The families Octavo knows: from a Hugging Face config to a DecoderSpec. A new one is a row in the table."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.rope import rope_params
from octavo.models.spec import DecoderSpec, LayerSpec

_FILE = "config"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """Where a family departs from Llama."""

    qkv_bias: bool | None = None
    """Fixed by the family, or None to read `attention_bias`."""
    output_bias: bool | None = None
    window_key: str | None = None
    """Config key of a window that all layers use."""


FAMILIES: dict[str, Family] = {
    "LlamaForCausalLM": Family(),
    "MistralForCausalLM": Family(window_key="sliding_window"),
    "Qwen2ForCausalLM": Family(qkv_bias=True, output_bias=False),
}


def decoder_spec(config: dict[str, Any]) -> DecoderSpec:
    """The spec of the model that `config` (the keys of Hugging Face's config.json) describes.

    Raises:
        ModelFileError: Naming the key, if a value is missing or does not fit the others.
        UnsupportedModelError: Naming what the model needs and Octavo lacks, with what it has.
    """
    name, family = _family(config)
    hidden, heads = _size(config, "hidden_size"), _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads", heads)
    if heads % kv_heads:
        raise ModelFileError(_FILE, "num_key_value_heads", f"is {kv_heads}; must divide num_attention_heads ({heads})")
    if config.get("head_dim") is None and hidden % heads:
        raise ModelFileError(_FILE, "hidden_size", f"is {hidden}; must be a multiple of num_attention_heads ({heads})")
    head_dim = _size(config, "head_dim", hidden // heads)
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedModelError(f"activation {str(activation)[:40]!r}; supported is silu")
    if config.get("use_sliding_window") and name == "Qwen2ForCausalLM":
        raise UnsupportedModelError("Qwen2 with use_sliding_window; supported is full attention")
    context = _size(config, "max_position_embeddings", 2048)
    window = _window(config, family, context)
    rope = rope_params(config, head_dim, context)
    attention_bias = _flag(config, "attention_bias")
    return DecoderSpec(
        family=name,
        vocab_size=_size(config, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_size(config, "intermediate_size"),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        layers=tuple(LayerSpec(window=window, rope=rope) for _ in range(_size(config, "num_hidden_layers"))),
        norm_eps=_eps(config),
        tied_embeddings=_flag(config, "tie_word_embeddings"),
        qkv_bias=attention_bias if family.qkv_bias is None else family.qkv_bias,
        output_bias=attention_bias if family.output_bias is None else family.output_bias,
        mlp_bias=_flag(config, "mlp_bias"),
        max_position=context,
        bos_token_id=_token(config, "bos_token_id"),
        eos_token_ids=_tokens(config, "eos_token_id"),
    )


def _family(config: dict[str, Any]) -> tuple[str, Family]:
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names and isinstance(names[0], str) else None
    if name is None:
        raise ModelFileError(_FILE, "architectures", "is missing; must be a list with the model's class")
    if name not in FAMILIES:
        raise UnsupportedModelError(f"architecture {name[:60]!r}; supported are {', '.join(FAMILIES)}")
    return name, FAMILIES[name]


def _window(config: dict[str, Any], family: Family, context: int) -> int | None:
    if family.window_key is None or config.get(family.window_key) is None:
        return None
    window = _size(config, family.window_key)
    return window if window < context else None


def _size(config: dict[str, Any], key: str, default: int | None = None) -> int:
    value = config.get(key)
    value = default if value is None else value
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1 << 24:
        raise ModelFileError(_FILE, key, f"is {str(value)[:40]}; must be an integer from 1 to {1 << 24}")
    return value


def _flag(config: dict[str, Any], key: str) -> bool:
    value = config.get(key, False)
    if not isinstance(value, bool):
        raise ModelFileError(_FILE, key, f"is {str(value)[:40]}; must be true or false")
    return value


def _eps(config: dict[str, Any]) -> float:
    value = config.get("rms_norm_eps", 1e-6)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 < value < 1.0:
        raise ModelFileError(_FILE, "rms_norm_eps", f"is {str(value)[:40]}; must be a number between 0 and 1")
    return float(value)


def _tokens(config: dict[str, Any], key: str) -> tuple[int, ...]:
    value = config.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in ids):
        raise ModelFileError(_FILE, key, f"is {str(value)[:40]}; must be a token id or a list of them")
    return tuple(ids)


def _token(config: dict[str, Any], key: str) -> int | None:
    ids = _tokens(config, key)
    return ids[0] if ids else None
