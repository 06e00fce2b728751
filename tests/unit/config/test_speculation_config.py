"""What `speculative_config` may say, and what is said to who gets it wrong."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from octavo.config import DraftingConfig, EngineConfig
from octavo.errors import ConfigError


def drafting(given: Any) -> DraftingConfig:
    found = EngineConfig.of(speculative_config=given).speculation.drafting
    assert found is not None
    return found


def test_off_by_default() -> None:
    assert EngineConfig().speculation.drafting is None


def test_as_text_as_a_map_and_across_processes() -> None:
    wanted = DraftingConfig(method="ngram", num_speculative_tokens=3)
    assert drafting('{"method": "ngram", "num_speculative_tokens": 3}') == wanted
    assert drafting({"method": "ngram", "num_speculative_tokens": 3}) == wanted
    config = EngineConfig.of(speculative_config={"method": "ngram", "num_speculative_tokens": 3})
    assert msgspec.json.decode(msgspec.json.encode(config), type=EngineConfig) == config


def test_defaults() -> None:
    assert drafting({"model": "small"}).method == "draft_model", "a model says which method"
    lookup = [
        drafting({"method": "ngram", **more}) for more in ({}, {"prompt_lookup_max": 1}, {"prompt_lookup_min": 7})
    ]
    assert [(d.prompt_lookup_min, d.prompt_lookup_max) for d in lookup] == [(2, 5), (1, 1), (7, 7)]


@pytest.mark.parametrize(
    ("given", "field", "allowed"),
    [
        ("{", "", "a JSON object"),
        ("[1]", "", "a JSON object"),
        ({}, ".method", "one of ngram, draft_model"),
        ({"method": "eagle"}, ".method", "one of ngram, draft_model"),
        ({"method": "draft_model"}, ".model", "the draft model"),
        ({"method": "ngram", "model": "m"}, ".model", "left out with ngram"),
        ({"method": "ngram", "model": 3}, ".model", "a text"),
        ({"method": "ngram", "num_speculative_tokens": 0}, ".num_speculative_tokens", "from 1 to 64"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, ".num_speculative_tokens", "an integer"),
        ({"method": "ngram", "num_speculative_tokens": True}, ".num_speculative_tokens", "an integer"),
        ({"method": "ngram", "prompt_lookup_max": 0}, ".prompt_lookup_max", "from 1 to 64"),
        ({"method": "ngram", "prompt_lookup_max": "x"}, ".prompt_lookup_max", "an integer"),
        ({"method": "ngram", "prompt_lookup_min": 6, "prompt_lookup_max": 3}, ".prompt_lookup_min", "from 1 to 3"),
        ({"method": "ngram", "adaptive": 1}, ".adaptive", "true or false"),
        ({"method": "ngram", "draft_tensor_parallel_size": 2}, ".draft_tensor_parallel_size", "left out; known are"),
    ],
)
def test_a_bad_field_is_named(given: Any, field: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(allowed)) as caught:
        EngineConfig.of(speculative_config=given)
    assert caught.value.field == "speculative_config" + field


def test_it_needs_depth_1() -> None:
    with pytest.raises(ConfigError, match="depth = 2: must be 1 with speculative_config"):
        EngineConfig.of(speculative_config={"method": "ngram"}, depth=2)
