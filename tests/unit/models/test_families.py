from __future__ import annotations

from typing import Any

import pytest

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.families import FAMILIES, decoder_spec
from octavo.models.spec import DecoderSpec
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


def test_qwen2_has_windows_from_a_layer_on_or_where_layer_types_say() -> None:
    changes = {"architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True, "sliding_window": 64}
    changes |= {"num_hidden_layers": 3, "max_window_layers": 2}
    assert [layer.window for layer in decoder_spec(config(**changes)).layers] == [None, None, 64]
    kinds = ["sliding_attention", "full_attention", "full_attention"]
    assert [layer.window for layer in decoder_spec(config(**changes, layer_types=kinds)).layers] == [64, None, None]
    with pytest.raises(ModelFileError, match="layer_types: must be a list of 3 names"):
        decoder_spec(config(**changes, layer_types=kinds[:2]))
    with pytest.raises(UnsupportedModelError, match=r"layer type 'full_atention'; the nearest .* 'full_attention'"):
        decoder_spec(config(**changes, layer_types=["full_atention"] * 3))


def test_a_window_matters_up_to_the_served_context() -> None:
    mistral = config(architectures=["MistralForCausalLM"], sliding_window=300)
    assert decoder_spec(mistral).windows == (None,)
    assert decoder_spec(mistral, context=301).windows == (300,)
    assert decoder_spec(config(architectures=["MistralForCausalLM"], sliding_window=64), context=32).windows == (64,)


def test_what_the_text_part_leaves_out_is_gemma_3s() -> None:
    """As the published 4B config does; the ends of a turn stand outside."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    text["rope_scaling"] = {"factor": 8.0, "rope_type": "linear"}
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": text}
    spec = decoder_spec(outer)
    assert (spec.vocab_size, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (262208, 8, 4, 256)
    assert (spec.eos_token_ids, spec.tied_embeddings, spec.windows) == ((1, 106), True, (1024, None))
    local, full = spec.layers[0].rope, spec.layers[5].rope
    assert local is not None and full is not None
    assert local.inv_freq[0] == 1.0 and full.inv_freq[0] == 0.125
    assert [layer.window for layer in spec.layers[:7]] == [1024] * 5 + [None, 1024]
    with pytest.raises(ModelFileError, match="text_config"):
        decoder_spec({**outer, "text_config": None})


def test_the_first_gemma_says_gelu_and_means_its_approximation() -> None:
    changes = {"architectures": ["GemmaForCausalLM"], "hidden_act": "gelu"}
    assert decoder_spec(config(**changes)).activation == "gelu_tanh"
    assert decoder_spec(config(**changes, hidden_activation="gelu")).activation == "gelu"


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
        ("head_dim", 1 << 22, "4 heads of it must have at most 1048576 elements"),
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
        (
            {"architectures": ["GPTNeoForCausalLM"]},
            "architecture 'GPTNeoForCausalLM'; the nearest .* 'GPTNeoXForCausalLM'",
        ),
        ({"architectures": ["LLaMAForCausalLM"]}, "'LlamaForCausalLM'"),
        ({"hidden_act": "gelu_newer"}, "activation 'gelu_newer'; the nearest supported one is 'gelu_new'"),
        (
            {"architectures": ["GPT2LMHeadModel"], "scale_attn_by_inverse_layer_idx": True},
            "scale_attn_by_inverse_layer",
        ),
        (
            {"architectures": ["FalconForCausalLM"], "alibi": True},
            "alibi = True of Falcon.*; supported is False",
        ),
        ({"architectures": ["StableLmForCausalLM"], "qk_layernorm": True}, "qk_layernorm"),
        (
            {"architectures": ["OPTForCausalLM"], "layer_norm_elementwise_affine": False},
            "layer_norm_elementwise_affine",
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ],
)
def test_what_is_not_supported_is_named_with_the_nearest(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UnsupportedModelError, match=said) as error:
        decoder_spec(config(**changes))
    assert "supported" in str(error.value)


def test_a_long_name_is_shortened() -> None:
    with pytest.raises(UnsupportedModelError) as error:
        decoder_spec(config(architectures=["X" * 10_000]))
    assert len(str(error.value)) < 700


def test_a_key_is_named_as_the_family_names_it() -> None:
    with pytest.raises(ModelFileError, match="n_embd: is None"):
        decoder_spec(config(architectures=["GPT2LMHeadModel"], hidden_size=None))


def test_llamas_name_of_a_key_counts_where_the_own_one_is_missing() -> None:
    model = config(architectures=["GPT2LMHeadModel"], hidden_size=48, num_attention_heads=4)
    assert decoder_spec(model).hidden_size == 48
    assert decoder_spec({**model, "n_embd": 64}).hidden_size == 64


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_name_fields_that_exist(name: str) -> None:
    """A misspelt field, key or norm would be found only by who has such a model."""
    row = FAMILIES[name]
    assert set(row.fields) <= set(DecoderSpec.__struct_fields__)
    assert all(allowed for allowed in row.refused.values())
