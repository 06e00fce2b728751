"""What GGUF's metadata say of windows and frequency factors, in the words of a Hugging Face config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny_models as tiny
from gguf_writer import value
from limits import refused

from octavo.backends.reference import ReferenceBackend
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.models.families import decoder_spec
from octavo.models.loader import load
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_architectures import ARCHITECTURES
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.gguf_header import GGUFHeader

FULL, WINDOWED = "full_attention", "sliding_attention"


def opened(tmp_path: Path, arch: str, *extra: tuple[str, list[int], int, bytes], **metadata: bytes) -> GGUFCheckpoint:
    keys: dict[str, bytes | None] = {f"{arch}.{key.replace('__', '.')}": data for key, data in metadata.items()}
    return GGUFCheckpoint(
        tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), arch=arch, metadata=keys, extra=list(extra))
    )


@pytest.mark.parametrize(
    ("pattern", "kinds"),
    [
        (value("uint32", 2), [WINDOWED, FULL]),
        (value("uint32", 1), [FULL, FULL]),
        (value("bool[]", [False, True]), [FULL, WINDOWED]),
        (value("uint32[]", [1, 0]), [WINDOWED, FULL]),
        (None, None),
    ],
)
def test_which_layers_have_a_window(tmp_path: Path, pattern: bytes | None, kinds: list[str] | None) -> None:
    more = {} if pattern is None else {"attention__sliding_window_pattern": pattern}
    config = opened(tmp_path, "gemma3", attention__sliding_window=value("uint32", 48), **more).config
    assert config["sliding_window"] == 48
    assert config.get("layer_types") == kinds


def test_without_a_window_the_families_default_does_not_hold(tmp_path: Path) -> None:
    config = opened(tmp_path, "gemma3").config
    assert [layer.window for layer in decoder_spec(config).layers] == [None, None]


@pytest.mark.parametrize(
    ("pattern", "word"),
    [
        (value("uint32", 0), "is 0; must be 1 or more"),
        (value("string", "x"), "must be an array"),
        (value("float32[]", [1.0, 0.0]), "must be an array"),
    ],
)
def test_patterns_that_are_none(tmp_path: Path, pattern: bytes, word: str) -> None:
    keys = {"attention__sliding_window": value("uint32", 48), "attention__sliding_window_pattern": pattern}
    refused(lambda: opened(tmp_path, "gemma3", **keys), "sliding_window_pattern", word, kind=ModelFileError)


def test_a_pattern_of_too_many_layers(tmp_path: Path) -> None:
    pattern = value("bool[]", [True] * 9)
    keys = {"attention__sliding_window": value("uint32", 48), "attention__sliding_window_pattern": pattern}
    config = opened(tmp_path, "gemma3", **keys).config
    refused(lambda: decoder_spec(config), "layer_types", "list of 2 names", kind=ModelFileError)


def test_a_window_where_none_is_known_is_refused(tmp_path: Path) -> None:
    """To leave it out would change the answers without a word."""
    window = value("uint32", 48)
    refused(lambda: opened(tmp_path, "granite", attention__sliding_window=window), "'granite'",
            kind=UnsupportedModelError)  # fmt: skip


def test_two_lists_of_factors(tmp_path: Path) -> None:
    half = tiny.HEAD_DIM // 2
    lists: dict[str, Any] = {
        name: np.linspace(1, end, half, dtype=np.float32) for name, end in (("short", 2), ("long", 9))
    }
    tensors = [(f"rope_factors_{name}.weight", [half], 0, values.tobytes()) for name, values in lists.items()]
    keys = {
        "rope__scaling__type": value("string", "longrope"),
        "rope__scaling__original_context_length": value("uint32", 32),
        "rope__scaling__attn_factor": value("float32", 1.25),
    }
    config = opened(tmp_path, "phi3", *tensors, **keys).config
    assert config["original_max_position_embeddings"] == 32
    assert config["rope_parameters"] == {
        "rope_type": "longrope",
        "rope_theta": 5000.0,
        "short_factor": lists["short"].tolist(),
        "long_factor": lists["long"].tolist(),
        "attention_factor": 1.25,
    }
    refused(lambda: opened(tmp_path, "phi3", tensors[0]), "'rope_factors_long.weight'", kind=ModelFileError)


@pytest.mark.parametrize("key", ["rope__scaling__attn_factor", "rope__scaling__yarn_attn_factor"])
def test_factors_on_top_of_yarns_own(tmp_path: Path, key: str) -> None:
    """1 leaves the attention factor to YaRN's formula, and does not become it."""
    keys = {
        "rope__scaling__type": value("string", "yarn"),
        "rope__scaling__factor": value("float32", 4.0),
        "rope__scaling__original_context_length": value("uint32", 32),
    }
    config = opened(tmp_path, "qwen2", **keys, **{key: value("float32", 1.0)}).config
    assert "attention_factor" not in config["rope_parameters"]
    rope = decoder_spec(config).layers[0].rope
    assert rope is not None and rope.scale == pytest.approx(0.1 * np.log(4.0) + 1.0)
    refused(
        lambda: opened(tmp_path, "qwen2", **keys, **{key: value("float32", 1.5)}), "= 1.5", kind=UnsupportedModelError
    )


def test_a_tensor_without_a_place_is_refused_when_loading(tmp_path: Path) -> None:
    for name in ("blk.0.attn_sinks.weight", "blk.00.attn_norm.weight", "blk.7.attn_norm.weight", "v.patch_embd.weight"):
        checkpoint = opened(tmp_path, "llama", (name, [4], 0, bytes(16)))
        spec = decoder_spec(checkpoint.config)
        refused(
            lambda checkpoint=checkpoint, spec=spec: load(checkpoint, spec, ReferenceBackend("float32"), "float32"),
            f"'{name}'",
            kind=UnsupportedModelError,
        )


@pytest.mark.parametrize(("arch", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_scale_of_queries_of_the_largest_gemmas(tmp_path: Path, arch: str, layers: int) -> None:
    """By the width over the heads, not by that of a head; llama.cpp knows them by their number of layers."""
    sizes = {"num_hidden_layers": layers, "hidden_size": 4608, "num_attention_heads": 32, "head_dim": 128}
    with GGUFFile(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), arch=arch)) as file:
        rule, header = ARCHITECTURES[arch].rule, GGUFHeader(file, arch)
        assert rule(header, sizes)["query_pre_attn_scalar"] == 144
        assert rule(header, {**sizes, "num_hidden_layers": layers - 1})["query_pre_attn_scalar"] == 128
