"""What a planner says before the weights are loaded is what the server prints once they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.errors import ConfigError, ModelFileError
from octavo.executor import local
from octavo.executor.local import LocalExecutor
from octavo.messages import EngineInfo
from octavo.weights.sources import resolve
from support.paths import TINYSTORIES
from support.tiny_models import TinyLlama, write_tiny_llama

FREE = 1 << 30
"""Bytes free before weights are loaded, in these tests."""


def both(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: Any) -> tuple[EngineInfo, EngineInfo]:
    """What the preview says and what the engine says, where exactly `FREE` bytes are free before the weights."""
    config, files = EngineConfig.of(model=str(folder), **settings), resolve(str(folder))
    monkeypatch.setattr(local, "available_bytes", lambda: FREE)
    said = LocalExecutor.preview(config, files)[0]
    monkeypatch.setattr(local, "available_bytes", lambda: FREE - said.weight_bytes)
    executor = LocalExecutor.load(config, files)
    executor.close()
    return said, executor.info


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"kv_cache_memory_bytes": 3 << 20},
        {"num_blocks": 77, "block_size": 8},
        {"memory_fraction": 0.01, "max_num_batched_tokens": 64, "max_num_seqs": 9},
        {"kv_cache_dtype": "int8", "memory_fraction": 0.02, "expected_tokens": 100},
        {"kv_cache_memory_bytes": 400_000, "swap_space_bytes": 1 << 20},
        {"quantization": "int8", "max_model_len": 100, "block_size": 64},
        {"quantization": "int4", "depth": 2},
        {"dtype": "bfloat16", "preemption": "recompute"},
        {"backend": "reference", "num_blocks": 20},
    ],
    ids=str,
)
def test_the_preview_is_what_the_engine_settles_on(monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]) -> None:
    said, true = both(monkeypatch, TINYSTORIES, **settings)
    assert said == msgspec.structs.replace(true, load_s=0.0)


@pytest.mark.parametrize("settings", [{}, {"kv_cache_memory_bytes": 200_000, "max_num_batched_tokens": 16}], ids=str)
def test_a_model_with_a_window_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any]) -> None:
    folder = write_tiny_llama(tmp_path / "model", TinyLlama(window=32, num_layers=3, tied=False))
    said, true = both(monkeypatch, folder, block_size=8, **settings)
    assert said == msgspec.structs.replace(true, load_s=0.0)
    assert said.num_blocks > 20


def test_bytes_of_weights_stored_in_groups_are_told_without_reading_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from octavo.weights.gguf_checkpoint import GGUFCheckpoint

    model = "smollm2-135m"
    config = EngineConfig.of(model=model, num_blocks=64)
    files = resolve(model)
    executor = LocalExecutor.load(config, files)
    executor.close()

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(GGUFCheckpoint, "read", refuse)
    monkeypatch.setattr(GGUFCheckpoint, "read_grouped", refuse)
    assert LocalExecutor.preview(config, files)[0] == msgspec.structs.replace(executor.info, load_s=0.0)


def test_weights_that_do_not_fit_are_named_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    config, files = EngineConfig.of(model=str(TINYSTORIES)), resolve(str(TINYSTORIES))
    monkeypatch.setattr(local, "available_bytes", lambda: 300_000)
    with pytest.raises(ConfigError, match=r"weights fit: they take .* [KM]iB, and 293 KiB are free"):
        LocalExecutor.preview(config, files)


def test_a_checkpoint_that_would_not_load_has_no_preview(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "model", TinyLlama())
    config = (folder / "config.json").read_text().replace('"intermediate_size": 80', '"intermediate_size": 81')
    (folder / "config.json").write_text(config)
    with pytest.raises(ModelFileError, match="has shape"):
        LocalExecutor.preview(EngineConfig.of(model=str(folder)), resolve(str(folder)))


def test_a_drafter_is_not_previewed() -> None:
    config = EngineConfig.of(model=str(TINYSTORIES), speculative_config='{"method": "ngram"}')
    with pytest.raises(ConfigError, match="speculative_config"):
        LocalExecutor.preview(config, resolve(str(TINYSTORIES)))
