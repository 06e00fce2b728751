"""`hf_overrides`: a model whose config is changed on the command line is the model whose file says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from golden import compare
from golden.gguf_cases import GGUF_MODELS
from octavo.config import EngineConfig, ModelConfig
from octavo.errors import ConfigError, ModelFileError, UnsupportedModelError
from octavo.executor.local import LocalExecutor
from octavo.weights.sources import find
from support.core_runs import run
from support.gguf_models import write_gguf
from support.tiny_models import TinyLlama, write_tiny_llama

YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 64}
LONGER = {"rope_parameters": YARN, "max_position_embeddings": 256}
MODEL = TinyLlama(max_position=64)
PROMPTS = [list(range(3, 90)), [5, 7, 11]]


def executor(model: Path, **settings: Any) -> LocalExecutor:
    config = EngineConfig.of(model=str(model), num_blocks=40, **settings)
    return LocalExecutor.load(config, find(config.model))


def answers(model: Path, **settings: Any) -> list[list[int]]:
    found, _ = run(model, compare.greedy_requests(PROMPTS, 12), num_blocks=60, **settings)
    return [found[i, 0].token_ids for i in range(len(PROMPTS))]


def test_a_longer_context_by_yarn(tmp_path: Path) -> None:
    folder = write_tiny_llama(tmp_path / "short", MODEL)
    changed = write_tiny_llama(tmp_path / "long", MODEL)
    config = json.loads((changed / "config.json").read_text()) | LONGER
    (changed / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="trained context of 64 tokens"):
        executor(folder, max_model_len=128)
    found = answers(folder, hf_overrides=json.dumps(LONGER), max_model_len=128)
    assert found == answers(changed, max_model_len=128)
    stretched_only = {"max_position_embeddings": 256}
    assert found != answers(folder, hf_overrides=json.dumps(stretched_only), max_model_len=128)


def test_keys_of_a_gguf_file_are_those_of_a_config(tmp_path: Path) -> None:
    model = GGUF_MODELS["gemma2"]["gemma2"]
    folder = write_tiny_llama(tmp_path / "folder", model)
    path = write_gguf(tmp_path / "m.gguf", model, "gemma2")
    changes = {"sliding_window": 8, "attn_logit_softcapping": 9.0}
    plain, changed = (
        compare.prompt_logits(path, PROMPTS[0], **settings) for settings in ({}, {"hf_overrides": changes})
    )
    assert not np.allclose(plain, changed, atol=0.01)
    np.testing.assert_array_equal(changed, compare.prompt_logits(folder, PROMPTS[0], hf_overrides=changes))


def test_the_fingerprint_tells_of_them(tmp_path: Path) -> None:
    """Or KV of one would be taken for that of the other."""
    folder = write_tiny_llama(tmp_path, MODEL)
    found = {
        executor(folder, hf_overrides=o).info.extras["fingerprint"]
        for o in ({}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}})
    }
    plain = {executor(folder).info.extras["fingerprint"] for _ in range(2)}
    assert len(found) == 2 and len(plain) == 1 and plain < found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "hf_overrides = '{': must be a JSON object"),
        ("[1]", "must be a JSON object"),
        ('{"quantization_config": {}}', "hf_overrides.quantization_config"),
    ],
)
def test_what_is_no_override_is_refused_at_once(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        ModelConfig(hf_overrides=text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"rope_thta": 5e5}, ConfigError, "hf_overrides.rope_thta = 500000.0: must be left out: it changes nothing"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, ConfigError, "described by rope_parameters"),
        ({"num_attention_heads": 2**40}, ModelFileError, "num_attention_heads: is 1099511627776"),
        ({"num_attention_heads": "4"}, ModelFileError, "num_attention_heads: is '4'"),
        ({"num_key_value_heads": 4}, ModelFileError, "k_proj"),
        ({"architectures": ["Nope"]}, UnsupportedModelError, "'Nope'"),
        ({"rope_parameters": {"rope_type": "magic"}}, UnsupportedModelError, "'magic'"),
    ],
)
def test_what_the_model_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], kind: type[Exception], message: str
) -> None:
    folder = write_tiny_llama(tmp_path, MODEL)
    with pytest.raises(kind) as error:
        executor(folder, hf_overrides=changes)
    assert message in str(error.value)
