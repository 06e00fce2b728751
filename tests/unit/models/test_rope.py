"""Frequencies against the numbers of transformers 5.24 (`LlamaRotaryEmbedding.inv_freq`, float32)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.backends.protocol import RopeParams
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.config_reader import Config
from octavo.models.rope import rope_params

LONGROPE = {"original_max_position_embeddings": 1024, "short_factor": [1.0, 1.1, 1.5, 2.0]}
LONGROPE |= {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": LONGROPE["short_factor"]}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}

# rope_parameters, head_dim, trained context, served context, inv_freq, scale
TRANSFORMERS: dict[str, tuple[dict[str, Any], int, int, int, list[float], float]] = {
    "default": (
        {"rope_type": "default", "rope_theta": 10000.0},
        16,
        2048,
        2048,
        [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786],
        1.0,
    ),
    "theta": (
        {"rope_type": "default", "rope_theta": 500000.0},
        16,
        2048,
        2048,
        [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.00141421345, 0.000274248188, 5.31829573e-05, 1.03133852e-05],
        1.0,
    ),
    "linear": (
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        16,
        2048,
        2048,
        [0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.0,
    ),
    "llama3": (
        LLAMA3,
        32,
        131072,
        131072,
        [
            *(1.0, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508, 0.00321144611),
            *(0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06, 2.92749974e-06),
            *(1.28917316e-06, 5.6770881e-07),
        ],
        1.0,
    ),
    "longrope": (LONGROPE, 8, 4096, 4096, [1.0, 0.0909090936, 0.00666666683, 0.000500000024], 1.0954451150103321),
    "longrope with a factor": (
        {**LONGROPE, "factor": 4.0},
        8,
        4096,
        4096,
        [1.0, 0.0909090936, 0.00666666683, 0.000500000024],
        1.0954451150103321,
    ),
    "longrope with an attention factor": (
        {**LONGROPE, "factor": 4.0, "attention_factor": 1.3},
        8,
        4096,
        4096,
        [1.0, 0.0909090936, 0.00666666683, 0.000500000024],
        1.3,
    ),
    "yarn": (
        {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 1024},
        16,
        4096,
        4096,
        [1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.138629436111989,
    ),
    "yarn, not truncated": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "truncate": False,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
        },
        16,
        4096,
        4096,
        [1.0, 0.316227764, 0.100000001, 0.0187018048, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.138629436111989,
    ),
    "yarn with an attention factor": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "attention_factor": 1.25,
        },
        16,
        4096,
        4096,
        [1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.25,
    ),
    "yarn with mscale": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "mscale": 0.8,
            "mscale_all_dim": 0.4,
        },
        16,
        4096,
        4096,
        [1.0, 0.316227764, 0.0812500045, 0.0197642371, 0.00437500002, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.0525384255230092,
    ),
    "yarn of half a head": (
        {
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 1024,
            "partial_rotary_factor": 0.5,
        },
        16,
        4096,
        4096,
        [1.0, 0.0749999955, 0.00499999989, 0.000250000012],
        1.138629436111989,
    ),
    "longrope, long": (
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 1024,
            "short_factor": [1.0, 1.1, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 5.0, 9.0],
        },
        8,
        4096,
        4096,
        [1.0, 0.0500000007, 0.00200000009, 0.000111111112],
        1.0954451150103321,
    ),
    "longrope, short": (
        {
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "original_max_position_embeddings": 1024,
            "short_factor": [1.0, 1.1, 1.5, 2.0],
            "long_factor": [1.0, 2.0, 5.0, 9.0],
        },
        8,
        4096,
        1024,
        [1.0, 0.0909090936, 0.00666666683, 0.000500000024],
        1.0954451150103321,
    ),
    "dynamic, long": (
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        16,
        1024,
        3000,
        [1.0, 0.252299905, 0.0636552423, 0.0160602108, 0.00405198941, 0.00102231663, 0.000257930369, 6.50758084e-05],
        1.0,
    ),
    "dynamic, short": (
        {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
        16,
        1024,
        512,
        [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786],
        1.0,
    ),
}


def params(config: dict[str, Any], head_dim: int, trained: int, context: int | None = None) -> RopeParams:
    sizes = {"hidden_size": head_dim, "num_attention_heads": 1, "max_position_embeddings": trained}
    return rope_params(Config({**sizes, **config}, context=context))


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    settings, head_dim, trained, context, inv_freq, scale = TRANSFORMERS[name]
    rope = params({"rope_parameters": settings}, head_dim, trained, context)
    assert rope.inv_freq == pytest.approx(inv_freq, rel=4e-7)
    assert rope.scale == pytest.approx(scale, rel=1e-12)
    assert rope.max_position == context


@pytest.mark.torch
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_the_committed_numbers_are_what_transformers_says(name: str) -> None:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    settings, head_dim, trained, context, inv_freq, scale = TRANSFORMERS[name]
    sizes = {"hidden_size": head_dim, "num_attention_heads": 1, "head_dim": head_dim}
    config = LlamaConfig(**sizes, max_position_embeddings=trained, rope_parameters=dict(settings))
    if settings["rope_type"] == "default":
        found, factor = LlamaRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        found, factor = ROPE_INIT_FUNCTIONS[settings["rope_type"]](config, seq_len=context)
    assert found.tolist() == pytest.approx(inv_freq, rel=1e-7)
    assert factor == pytest.approx(scale, rel=1e-12)


def test_the_served_context_decides_where_transformers_looks_at_the_length() -> None:
    """Served no further than it was trained, a dynamic one is plain; longrope is long past its first context."""
    dynamic = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    assert params(dynamic, 16, 1024, 100) == params({}, 16, 1024, 100)
    assert params(dynamic, 16, 1024) == params({}, 16, 1024)
    assert params(dynamic, 16, 1024, 1025).inv_freq != params({}, 16, 1024, 1025).inv_freq
    longrope = {"rope_parameters": {**LONGROPE, "long_factor": [3.0] * 4}}
    assert params(longrope, 8, 4096, 1025).inv_freq == params(longrope, 8, 4096).inv_freq
    assert params(longrope, 8, 4096, 1024).inv_freq == params({"rope_parameters": LONGROPE}, 8, 4096).inv_freq


def test_the_older_spelling_means_the_same() -> None:
    new = params({"rope_parameters": LLAMA3}, 32, 4096)
    old = {key: value for key, value in LLAMA3.items() if key not in ("rope_type", "rope_theta")}
    assert params({"rope_theta": 500000.0, "rope_scaling": {**old, "type": "llama3"}}, 32, 4096) == new
    assert params({}, 8, 64) == params({"rope_theta": 10000.0, "rope_scaling": None}, 8, 64)


def test_part_of_a_head_may_be_rotated() -> None:
    rope = params({"partial_rotary_factor": 0.5}, 16, 64)
    assert len(rope.inv_freq) == 4
    assert rope.inv_freq[1] == pytest.approx(10000.0 ** (-2 / 8))


@pytest.mark.parametrize(
    ("settings", "key", "said"),
    [
        ({"rope_theta": 0}, "rope_theta", "0"),
        ({"rope_theta": 1e-300}, "rope_theta", "1e-300"),
        ({"rope_theta": math.nan}, "rope_theta", "nan"),
        ({"rope_theta": "1e4"}, "rope_theta", "1e4"),
        ({"rope_type": "linear"}, "factor", "None"),
        ({"rope_type": "linear", "factor": -2.0}, "factor", "-2.0"),
        ({"rope_type": "linear", "factor": 1e-300}, "factor", "1e-300"),
        ({**LLAMA3, "low_freq_factor": None}, "low_freq_factor", "None"),
        ({**LLAMA3, "high_freq_factor": 1.0}, "high_freq_factor", "1"),
        ({**LLAMA3, "original_max_position_embeddings": "long"}, "original_max_position_embeddings", "long"),
        ({"partial_rotary_factor": 0.01}, "partial_rotary_factor", "0 of 8"),
        ({"partial_rotary_factor": 3.0}, "partial_rotary_factor", "24 of 8"),
        ({"rope_type": "longrope"}, "short_factor", "list of 4"),
        ({**LONGROPE, "long_factor": None}, "long_factor", "list of 4"),
        ({"rope_theta": 1.0}, "rope_theta", "above 1"),
        ({"rope_type": "yarn", "factor": "x"}, "factor", "x"),
        ({"rope_type": "dynamic"}, "factor", "None"),
        ({"rope_type": "dynamic", "factor": 2.0, "partial_rotary_factor": 0.25}, "rope_scaling", "4 or more"),
        ({**LONGROPE, "short_factor": [1.0], "long_factor": [1.0]}, "long_factor", "list of 4"),
        ({**LONGROPE, "short_factor": [0.0] * 4, "long_factor": [0.0] * 4}, "long_factor", "0.0"),
    ],
)
def test_a_bad_value_is_named(settings: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ModelFileError, match=key) as error:
        params({"rope_parameters": settings}, 8, 4096)
    assert said in str(error.value)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", ["linear", [1, 2], 7])
def test_settings_that_are_no_object_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=key):
        params({key: value}, 8, 64)


@pytest.mark.parametrize(("kind", "nearest"), [("yran", "yarn"), ("llama4", "llama3"), ([], ""), ("proportional", "")])
def test_unknown_scaling_is_named_with_the_nearest(kind: Any, nearest: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"rope scaling .*; the nearest supported one is '{nearest}"):
        params({"rope_parameters": {"rope_type": kind}}, 8, 64)
