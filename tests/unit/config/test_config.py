"""Settings are checked when they are made, and refused by name, value and what is allowed."""

from __future__ import annotations

import dataclasses
import pickle
import re
from typing import Any

import pytest

from octavo.config import (
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    HTTPConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from octavo.errors import ConfigError, OctavoError

GROUPS = (ModelConfig, CacheConfig, SchedulerConfig, ExecutionConfig, SpeculationConfig, HTTPConfig)


@pytest.mark.parametrize("group", [*GROUPS, EngineConfig])
def test_defaults_are_valid_and_frozen(group: type) -> None:
    config = group()
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        setattr(config, dataclasses.fields(config)[0].name, None)
    assert config == group(), "a value, equal to another with the same fields"


@pytest.mark.parametrize(
    ("group", "field", "bad", "allowed"),
    [
        (ModelConfig, "dtype", "int3", "one of auto, bfloat16, float32"),
        (ModelConfig, "max_model_len", 0, "from 1 to 1.67772e+07 tokens"),
        (CacheConfig, "block_size", 24, "a power of two from 1 to 256"),
        (CacheConfig, "block_size", 512, "a power of two from 1 to 256"),
        (CacheConfig, "memory_fraction", 0.0, "above 0 and at most 1"),
        (CacheConfig, "memory_fraction", 1.5, "above 0 and at most 1"),
        (CacheConfig, "num_blocks", 1, "from 2"),
        (CacheConfig, "kv_cache_dtype", "fp8", "one of auto"),
        (SchedulerConfig, "depth", 3, "from 1 to 2"),
        (SchedulerConfig, "max_num_seqs", True, "from 1"),
        (SchedulerConfig, "max_num_batched_tokens", -5, "from 1"),
        (ExecutionConfig, "isa", "sse2", "one of avx512, avx2, portable"),
        (ExecutionConfig, "host", "cloud", "one of inline, thread, process"),
        (ExecutionConfig, "num_threads", 0, "from 1 to 1024"),
        (HTTPConfig, "port", 65536, "from 0 to 65535"),
        (HTTPConfig, "shutdown_timeout", -1.0, "from 0"),
        (HTTPConfig, "log_level", "loud", "one of debug, info, warning, error"),
    ],
)
def test_a_bad_value_is_named(group: type, field: str, bad: Any, allowed: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{field} = {bad!r}: must be {allowed}")) as caught:
        group(**{field: bad})
    assert (caught.value.field, caught.value.value) == (field, bad)
    assert isinstance(caught.value, OctavoError) and isinstance(caught.value, ValueError)


def test_flat_names_find_their_groups() -> None:
    config = EngineConfig.of(model="m", block_size=32, max_num_seqs=2, host="inline")
    assert (config.model.model, config.cache.block_size) == ("m", 32)
    assert (config.scheduler.max_num_seqs, config.execution.host) == (2, "inline")
    assert EngineConfig.of() == EngineConfig()


def test_a_flat_name_that_nobody_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="tensor_magic = 2: must be left out: there is no such setting"):
        EngineConfig.of(block_size=16, tensor_magic=2)


def test_flat_names_are_unique_among_the_engines_groups() -> None:
    names = [f.name for group in GROUPS[:-1] for f in dataclasses.fields(group)]
    assert len(names) == len(set(names)), "EngineConfig.of could not tell them apart"


@pytest.mark.parametrize("group", GROUPS)
def test_every_field_explains_itself(group: type) -> None:
    for field in dataclasses.fields(group):
        assert 10 < len(field.metadata["help"]) < 120 or field.metadata["choices"] or field.name == "port"
        if field.metadata["choices"]:
            assert field.default in field.metadata["choices"]


def test_an_error_can_come_from_another_process() -> None:
    error = pickle.loads(pickle.dumps(ConfigError("rate", 0, "above 0")))
    assert isinstance(error, ConfigError)
    assert (str(error), error.field, error.value) == ("rate = 0: must be above 0", "rate", 0)
