from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.families import FAMILIES, decoder_spec
from support.tiny_models import TinyLlama


def config(**changes: Any) -> dict[str, Any]:
    found = {**TinyLlama().config(), **changes}
    return {key: value for key, value in found.items() if value != "absent"}


def test_a_llama() -> None:
    spec = decoder_spec(config(eos_token_id=[2, 7], num_key_value_heads=1, attention_bias=True))
    assert (spec.family, spec.vocab_size, spec.hidden_size, spec.intermediate_size) == ("LlamaForCausalLM", 96, 48, 80)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.num_layers) == (4, 1, 12, 2)
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.tied_embeddings) == (True, True, False, True)
    assert (spec.bos_token_id, spec.eos_token_ids, spec.max_position) == (1, (2, 7), 256)
    assert spec.windows == (None,)


def test_what_a_config_may_leave_out() -> None:
    absent = ("num_key_value_heads", "head_dim", "hidden_act", "bos_token_id", "eos_token_id", "attention_bias")
    spec = decoder_spec(config(**dict.fromkeys(absent, "absent")))
    assert (spec.num_kv_heads, spec.head_dim, spec.bos_token_id, spec.eos_token_ids) == (4, 12, None, ())
    assert decoder_spec(config(head_dim=None)).head_dim == 12


def test_qwen2_has_biases_on_query_key_value_only() -> None:
    spec = decoder_spec(config(architectures=["Qwen2ForCausalLM"], use_sliding_window=False, sliding_window=64))
    assert (spec.qkv_bias, spec.output_bias, spec.mlp_bias, spec.windows) == (True, False, False, (None,))


def test_mistral_has_a_window_unless_it_sees_everything() -> None:
    assert decoder_spec(config(architectures=["MistralForCausalLM"], sliding_window=64)).windows == (64,)
    assert decoder_spec(config(architectures=["MistralForCausalLM"], sliding_window=256)).windows == (None,)
    assert decoder_spec(config(architectures=["MistralForCausalLM"], sliding_window=None)).windows == (None,)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("vocab_size", "absent", "None"),
        ("vocab_size", 0, "0"),
        ("hidden_size", "48", "48"),
        ("hidden_size", 47, "47"),
        ("intermediate_size", -1, "-1"),
        ("num_hidden_layers", 1 << 30, str(1 << 30)),
        ("num_hidden_layers", 2.0, "2.0"),
        ("num_attention_heads", True, "True"),
        ("num_key_value_heads", 3, "3"),
        ("head_dim", 0, "0"),
        ("max_position_embeddings", [], "[]"),
        ("rms_norm_eps", 0.0, "0.0"),
        ("rms_norm_eps", "small", "small"),
        ("tie_word_embeddings", 1, "1"),
        ("attention_bias", "yes", "yes"),
        ("mlp_bias", None, "None"),
        ("eos_token_id", -1, "-1"),
        ("eos_token_id", [2, "x"], "x"),
        ("bos_token_id", 1.5, "1.5"),
        ("architectures", [], "missing"),
        ("architectures", "LlamaForCausalLM", "missing"),
    ],
)
def test_a_bad_value_is_named(key: str, value: Any, said: str) -> None:
    changes = {key: value}
    if key == "hidden_size":
        changes["head_dim"] = None
    with pytest.raises(ModelFileError, match=key) as error:
        decoder_spec(config(**changes))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["GPTNeoXForCausalLM"]}, "GPTNeoXForCausalLM"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_what_is_not_supported_is_named(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said) as error:
        decoder_spec(config(**changes))
    assert "supported" in str(error.value)


def test_an_unknown_architecture_is_told_the_known_ones() -> None:
    with pytest.raises(UnsupportedModelError) as error:
        decoder_spec(config(architectures=["X" * 10_000]))
    assert all(name in str(error.value) for name in FAMILIES)
    assert len(str(error.value)) < 300
