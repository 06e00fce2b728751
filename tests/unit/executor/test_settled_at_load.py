"""Loading: what is settled, and what is refused, before a step runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo.backends import cpu
from octavo.config import EngineConfig
from octavo.errors import ConfigError, UnsupportedModelError
from octavo.executor import local
from octavo.executor.local import LocalExecutor
from octavo.models.families import decoder_spec
from octavo.weights.sources import resolve
from support.tiny_models import TinyLlama, write_tiny_llama


def load(folder: Path, **settings: Any) -> LocalExecutor:
    return LocalExecutor.load(EngineConfig.of(model=str(folder), **settings), resolve(str(folder)))


def tiny(folder: Path, **changes: Any) -> Path:
    write_tiny_llama(folder, TinyLlama(**changes))
    return folder


def test_a_small_pool_shortens_the_context_and_says_so(tmp_path: Path) -> None:
    executor = load(tiny(tmp_path), num_blocks=5, block_size=16)
    assert executor.info.max_model_len == 64
    assert executor.info.kv_reason.endswith("as asked; enough for a context of 64 of the model's 256 tokens")
    executor.close()


def test_a_context_asked_for_must_fit_the_pool(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"max_model_len = 65: must be at most the 64 tokens that the KV memory"):
        load(tiny(tmp_path), num_blocks=5, block_size=16, max_model_len=65)
    with pytest.raises(ConfigError, match=r"max_model_len = 257: must be at most the model's trained context of 256"):
        load(tmp_path, max_model_len=257)


def test_a_window_needs_no_blocks_for_what_fell_out_of_it(tmp_path: Path) -> None:
    """Window 32 and steps of 16 tokens: 47 adjacent tokens touch at most 4 blocks of 16, however long the context."""
    settings = {"block_size": 16, "max_num_batched_tokens": 16}
    executor = load(tiny(tmp_path, window=32), num_blocks=5, **settings)
    assert executor.info.max_model_len == 256
    executor.close()
    executor = load(tmp_path, num_blocks=4, **settings)
    assert executor.info.max_model_len == 48
    executor.close()


def test_steps_are_counted_before_kv_takes_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 3 << 20)
    executor = load(tiny(tmp_path, vocab_size=500), max_num_batched_tokens=512, memory_fraction=1.0, max_num_seqs=64)
    spec = decoder_spec(json.loads((tmp_path / "config.json").read_text()))
    left = (3 << 20) - spec.activation_bytes(512) - 4 * 64 * 258
    assert 0 < executor.info.kv_bytes <= left < 3 << 20
    executor.close()


def test_steps_larger_than_the_machine_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "available_bytes", lambda: 8 << 20)
    tiny(tmp_path, vocab_size=500)
    with pytest.raises(ConfigError, match=r"max_num_batched_tokens = 1048576: must be smaller: such steps may take"):
        load(tmp_path, max_num_batched_tokens=1 << 20)
    load(tmp_path, max_num_batched_tokens=1 << 20, max_num_seqs=2).close()  # no step can hold so many


def test_the_thread_count_reaches_the_dequantisers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    opened = local.open_checkpoint
    monkeypatch.setattr(local, "open_checkpoint", lambda *a, **named: seen.append(named) or opened(*a, **named))
    load(tiny(tmp_path), num_blocks=8, num_threads=1).close()
    assert seen == [{"num_threads": 1}]


@pytest.mark.parametrize("isa", cpu._native.supported_paths())
def test_the_automatic_dtype_is_that_of_a_forced_path(isa: str, tmp_path: Path) -> None:
    executor = load(tiny(tmp_path), num_blocks=8, isa=isa)
    assert executor.info.kernel_path == isa
    assert executor.info.weight_dtype == ("bfloat16" if isa == "avx512" else "float32")
    executor.close()


# ---- models that would answer wrongly are refused


def with_tensors(folder: Path, **more: tuple[int, ...]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    named = {name.replace("__", "."): np.zeros(shape, np.float32) for name, shape in more.items()}
    save_file(tensors | named, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "stranger",
    ["model__layers__0__self_attn__q_proj__bias", "model__layers__0__self_attn__q_norm__weight",
     "model__layers__2__input_layernorm__weight"],
)  # fmt: skip
def test_a_tensor_without_a_place_is_refused(stranger: str, tmp_path: Path) -> None:
    folder = with_tensors(tiny(tmp_path), **{stranger: (48,)})
    with pytest.raises(UnsupportedModelError, match=stranger.replace("__", ".")):
        load(folder, num_blocks=8)


def test_what_follows_from_the_config_may_be_there(tmp_path: Path) -> None:
    folder = with_tensors(
        tiny(tmp_path), model__layers__0__self_attn__rotary_emb__inv_freq=(6,), lm_head__weight=(96, 48)
    )
    load(folder, num_blocks=8).close()
