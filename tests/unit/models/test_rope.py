"""Frequencies against the numbers of transformers 5.24 (`LlamaRotaryEmbedding.inv_freq`, float32)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from octavo.errors import ModelFileError, UnsupportedModelError
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

# rope_parameters, head_dim, max_position, inv_freq, scale
TRANSFORMERS: dict[str, tuple[dict[str, Any], int, int, list[float], float]] = {
    "default": (
        {"rope_type": "default", "rope_theta": 10000.0},
        16,
        2048,
        [1.0, 0.316227764, 0.100000001, 0.0316227786, 0.00999999978, 0.00316227786, 0.00100000005, 0.000316227786],
        1.0,
    ),
    "theta": (
        {"rope_type": "default", "rope_theta": 500000.0},
        16,
        2048,
        [1.0, 0.193922758, 0.0376060307, 0.00729266508, 0.00141421345, 0.000274248188, 5.31829573e-05, 1.03133852e-05],
        1.0,
    ),
    "linear": (
        {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        16,
        2048,
        [0.25, 0.079056941, 0.0250000004, 0.00790569466, 0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05],
        1.0,
    ),
    "llama3": (
        LLAMA3,
        32,
        131072,
        [
            *(1.0, 0.440366626, 0.193922758, 0.0853971019, 0.0376060307, 0.0165604409, 0.00729266508, 0.00321144611),
            *(0.000524846022, 7.78465546e-05, 3.42810235e-05, 1.50962178e-05, 6.64786967e-06, 2.92749974e-06),
            *(1.28917316e-06, 5.6770881e-07),
        ],
        1.0,
    ),
    "longrope": (LONGROPE, 8, 4096, [1.0, 0.0909090936, 0.00666666683, 0.000500000024], 1.0954451150103321),
    "longrope with a factor": (
        {**LONGROPE, "factor": 4.0},
        8,
        4096,
        [1.0, 0.0909090936, 0.00666666683, 0.000500000024],
        1.0954451150103321,
    ),
    "longrope with an attention factor": (
        {**LONGROPE, "factor": 4.0, "attention_factor": 1.3},
        8,
        4096,
        [1.0, 0.0909090936, 0.00666666683, 0.000500000024],
        1.3,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_frequencies_are_those_of_transformers(name: str) -> None:
    settings, head_dim, max_position, inv_freq, scale = TRANSFORMERS[name]
    rope = rope_params({"rope_parameters": settings}, head_dim, max_position)
    assert rope.inv_freq == pytest.approx(inv_freq, rel=3e-7)
    assert rope.scale == pytest.approx(scale, rel=1e-12)
    assert rope.max_position == max_position


def test_the_older_spelling_means_the_same() -> None:
    new = rope_params({"rope_parameters": LLAMA3}, 32, 4096)
    old = {key: value for key, value in LLAMA3.items() if key not in ("rope_type", "rope_theta")}
    assert rope_params({"rope_theta": 500000.0, "rope_scaling": {**old, "type": "llama3"}}, 32, 4096) == new
    assert rope_params({}, 8, 64) == rope_params({"rope_theta": 10000.0, "rope_scaling": None}, 8, 64)


def test_part_of_a_head_may_be_rotated() -> None:
    rope = rope_params({"partial_rotary_factor": 0.5}, 16, 64)
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
        ({**LONGROPE, "short_factor": [1.0], "long_factor": [1.0]}, "short_factor", "list of 4"),
        ({**LONGROPE, "short_factor": [0.0] * 4, "long_factor": [0.0] * 4}, "short_factor", "0.0"),
        ({**LONGROPE, "original_max_position_embeddings": None}, "original_max_position_embeddings", "None"),
    ],
)
def test_a_bad_value_is_named(settings: dict[str, Any], key: str, said: str) -> None:
    with pytest.raises(ModelFileError, match=key) as error:
        rope_params({"rope_parameters": settings}, 8, 4096)
    assert said in str(error.value)


@pytest.mark.parametrize("key", ["rope_parameters", "rope_scaling"])
@pytest.mark.parametrize("value", ["linear", [1, 2], 7])
def test_settings_that_are_no_object_are_refused(key: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=key):
        rope_params({key: value}, 8, 64)


@pytest.mark.parametrize("settings", [{"rope_type": "yarn"}, {**LONGROPE, "long_factor": [2.0] * 4}, {"rope_type": []}])
def test_unknown_scaling_is_named(settings: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModelError, match=r"rope scaling .*; supported are default, linear, llama3"):
        rope_params({"rope_parameters": settings}, 8, 64)
