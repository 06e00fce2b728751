"""GGUF files with the layouts and config keys of Hugging Face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tiny_models as tiny
from gguf_writer import value
from limits import refused

from octavo.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.weights import sources
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_checkpoint import GGUFCheckpoint


@pytest.mark.parametrize(("arch", "biases"), [("llama", False), ("llama", True), ("qwen2", True)])
@pytest.mark.parametrize("tied", [True, False])
def test_layouts_are_those_of_hugging_face(tmp_path: Path, arch: str, biases: bool, tied: bool) -> None:
    tensors = tiny.weights(tied=tied, biases=biases)
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tensors, arch=arch))
    assert set(checkpoint.names()) == {tiny.gguf_name(name) for name in tensors}
    for name, wanted in tensors.items():
        assert checkpoint.info(tiny.gguf_name(name)).shape == wanted.shape
        np.testing.assert_array_equal(checkpoint.read(tiny.gguf_name(name), "float32"), wanted)
    assert checkpoint.config["tie_word_embeddings"] is tied
    assert checkpoint.config["attention_bias"] is biases


@pytest.mark.parametrize("type_name", ["Q4_0", "Q5_1", "Q8_0", "BF16"])
def test_quantised_rows_are_put_back_in_order(tmp_path: Path, type_name: str) -> None:
    tensors = tiny.weights()
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tensors, type_name=type_name))
    kind = gguf.GGMLQuantizationType[type_name]
    for name in ("model.layers.1.self_attn.q_proj.weight", "model.layers.1.self_attn.k_proj.weight"):
        stored = tiny.gguf_name(name)
        assert checkpoint.info(stored).dtype == type_name.lower()
        wanted = gguf.dequantize(gguf.quantize(tensors[name], kind), kind)
        np.testing.assert_array_equal(checkpoint.read(stored, "float32"), wanted)


def test_config_has_hugging_face_keys(tmp_path: Path) -> None:
    config = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights())).config
    wanted = tiny.hf_config(rms_norm_eps=2**-17)
    assert {key: config[key] for key in wanted} == wanted
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5000.0}


def test_a_window_makes_it_a_mistral(tmp_path: Path) -> None:
    metadata: dict[str, bytes | None] = {"llama.attention.sliding_window": value("uint32", 48)}
    config = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), metadata=metadata)).config
    assert config["architectures"] == ["MistralForCausalLM"]
    assert config["sliding_window"] == 48


def _rope(tmp_path: Path, **kwargs: Any) -> dict[str, Any]:
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), **kwargs))
    rope: dict[str, Any] = checkpoint.config["rope_parameters"]
    return rope


def test_rope_scaling(tmp_path: Path) -> None:
    prefix = "llama.rope.scaling."
    linear = {prefix + "type": value("string", "linear"), prefix + "factor": value("float32", 4.0)}
    assert _rope(tmp_path, metadata=linear) == {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0}
    legacy = {"llama.rope.scale_linear": value("float32", 2.0)}
    assert _rope(tmp_path, metadata=legacy) == {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}
    yarn = {
        prefix + "type": value("string", "yarn"),
        prefix + "factor": value("float32", 8.0),
        prefix + "original_context_length": value("uint32", 64),
        prefix + "yarn_beta_fast": value("float32", 16.0),
    }
    assert _rope(tmp_path, metadata=yarn) == {
        "rope_type": "yarn",
        "rope_theta": 5000.0,
        "factor": 8.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
    }
    partial = {"llama.rope.dimension_count": value("uint32", 8)}
    assert _rope(tmp_path, metadata=partial)["partial_rotary_factor"] == 0.5


def test_frequency_factors_become_a_rope_type(tmp_path: Path) -> None:
    factors = np.linspace(1, 8, tiny.HEAD_DIM // 2, dtype=np.float32)
    rope = _rope(tmp_path, extra=[("rope_freqs.weight", [len(factors)], 0, factors.tobytes())])
    assert rope["rope_type"] == "longrope"
    assert rope["short_factor"] == rope["long_factor"] == factors.tolist()
    assert rope["attention_factor"] == 1.0


def test_special_tokens(tmp_path: Path) -> None:
    metadata: dict[str, bytes | None] = {
        "tokenizer.ggml.bos_token_id": None,
        "tokenizer.ggml.eot_token_id": value("uint32", 7),
        "tokenizer.ggml.eom_token_id": value("uint32", 2),
        "tokenizer.ggml.add_bos_token": value("bool", True),
    }
    path = tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), metadata=metadata)
    checkpoint = GGUFCheckpoint(path)
    assert "bos_token_id" not in checkpoint.config
    assert checkpoint.config["eos_token_id"] == [2, 7]
    files = checkpoint.tokenizer_files()
    assert (files.gguf, files.tokenizer_json) == (path, None)
    assert (files.bos_token, files.eos_token, files.add_bos) == (None, "t2", True)
    assert files.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("model", "pre", "adds"), [("gpt2", "smollm", False), ("gpt2", "llama-bpe", True), ("llama", None, True)]
)
def test_adding_bos_follows_the_kind_of_tokenizer(tmp_path: Path, model: str, pre: str | None, adds: bool) -> None:
    metadata: dict[str, bytes | None] = {"tokenizer.ggml.model": value("string", model)}
    if pre:
        metadata["tokenizer.ggml.pre"] = value("string", pre)
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tiny.weights(), metadata=metadata))
    assert checkpoint.tokenizer_files().add_bos is adds


def test_reading_into_rows_of_a_larger_array(tmp_path: Path) -> None:
    tensors = tiny.weights()
    checkpoint = GGUFCheckpoint(tiny.gguf_file(tmp_path / "m.gguf", tensors))
    parts = [tensors[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv"]
    whole = np.empty((sum(len(p) for p in parts), tiny.HIDDEN), np.float32)
    start = 0
    for projection, part in zip("qkv", parts, strict=True):
        checkpoint.read(f"blk.0.attn_{projection}.weight", "float32", out=whole[start : start + len(part)])
        start += len(part)
    np.testing.assert_array_equal(whole, np.concatenate(parts))


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    tensors = tiny.weights()
    same = [GGUFCheckpoint(tiny.gguf_file(tmp_path / f"{i}.gguf", tensors)).fingerprint() for i in range(2)]
    assert same[0] == same[1]
    others = {same[0]}
    tensors["model.layers.1.mlp.down_proj.weight"][-1, -1] += 1
    others.add(GGUFCheckpoint(tiny.gguf_file(tmp_path / "w.gguf", tensors)).fingerprint())
    theta: dict[str, bytes | None] = {"llama.rope.freq_base": value("float32", 5001.0)}
    others.add(GGUFCheckpoint(tiny.gguf_file(tmp_path / "t.gguf", tiny.weights(), metadata=theta)).fingerprint())
    others.add(GGUFCheckpoint(tiny.gguf_file(tmp_path / "b.gguf", tiny.weights(), type_name="BF16")).fingerprint())
    assert len(others) == 4


U32, F32 = "uint32", "float32"
REFUSED: dict[str, tuple[dict[str, bytes | None], type[ModelError], str]] = {
    "no architecture": ({"general.architecture": None}, ModelFileError, "general.architecture"),
    "architecture a number": ({"general.architecture": value(U32, 1)}, ModelFileError, "must be a string"),
    "mamba": (
        {"general.architecture": value("string", "mamba")},
        UnsupportedModelError,
        "supported are llama, qwen2",
    ),
    "dotted path": (
        {"general.architecture": value("string", "os.system")},
        UnsupportedModelError,
        "'os.system'; supported",
    ),
    "experts": ({"llama.expert_count": value(U32, 8)}, ModelFileError, "0 of 8 experts"),
    "split": ({"split.count": value("uint16", 3)}, UnsupportedModelError, "several parts"),
    "no layers": ({"llama.block_count": None}, ModelFileError, "'llama.block_count' is missing"),
    "layers 0": ({"llama.block_count": value(U32, 0)}, ModelFileError, "num_hidden_layers: is 0"),
    "layers 2^32-1": ({"llama.block_count": value(U32, 2**32 - 1)}, ModelFileError, "num_hidden_layers"),
    "layers 4000": ({"llama.block_count": value(U32, 4000)}, ModelFileError, "only 20 tensors"),
    "layers a string": ({"llama.block_count": value("string", "2")}, ModelFileError, "must be an integer"),
    "context 2^63": ({"llama.context_length": value("uint64", 2**63)}, ModelFileError, "max_position_embeddings"),
    "width": ({"llama.embedding_length": value(U32, 65)}, ModelFileError, "'token_embd.weight'"),
    "heads 0": ({"llama.attention.head_count": value(U32, 0)}, ModelFileError, "0 heads"),
    "heads negative": ({"llama.attention.head_count": value("int32", -4)}, ModelFileError, "-4 heads"),
    "heads per layer": ({"llama.attention.head_count": value("uint32[]", [4, 4])}, ModelFileError, "integer"),
    "KV heads 3": ({"llama.attention.head_count_kv": value(U32, 3)}, ModelFileError, "over 3 KV heads"),
    "KV heads 1": ({"llama.attention.head_count_kv": value(U32, 1)}, ModelFileError, "'blk.0.attn_k.weight'"),
    "head width odd": ({"llama.attention.key_length": value(U32, 15)}, ModelFileError, "15"),
    "head width 2^31": ({"llama.attention.key_length": value(U32, 2**31)}, ModelFileError, "head_dim"),
    "value width": ({"llama.attention.value_length": value(U32, 8)}, UnsupportedModelError, "differ in width"),
    "epsilon missing": ({"llama.attention.layer_norm_rms_epsilon": None}, ModelFileError, "is missing"),
    "epsilon NaN": (
        {"llama.attention.layer_norm_rms_epsilon": value(F32, float("nan"))},
        ModelFileError,
        "rms_norm_eps",
    ),
    "theta negative": ({"llama.rope.freq_base": value(F32, -1.0)}, ModelFileError, "rope_theta"),
    "theta infinite": ({"llama.rope.freq_base": value(F32, float("inf"))}, ModelFileError, "rope_theta"),
    "scaling unknown": ({"llama.rope.scaling.type": value("string", "magic")}, UnsupportedModelError, "'magic'"),
    "scaling bare": ({"llama.rope.scaling.type": value("string", "linear")}, ModelFileError, "factor' is missing"),
    "rotated width": ({"llama.rope.dimension_count": value(U32, 99)}, ModelFileError, "is 99"),
    "eos out of range": ({"tokenizer.ggml.eos_token_id": value(U32, 32)}, ModelFileError, "eos_token_id"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_metadata_is_refused(tmp_path: Path, case: str) -> None:
    metadata, kind, word = REFUSED[case]
    path = tiny.gguf_file(tmp_path / "bad.gguf", tiny.weights(), metadata=metadata)
    refused(lambda: GGUFCheckpoint(path), "bad.gguf", word, kind=kind)


def test_wrong_tensors_are_refused(tmp_path: Path) -> None:
    def file(*extra: tuple[str, list[int], int, bytes], drop: str = "") -> Path:
        tensors = {name: values for name, values in tiny.weights().items() if name != drop}
        return tiny.gguf_file(tmp_path / "bad.gguf", tensors, extra=list(extra))

    def open_with(*extra: tuple[str, list[int], int, bytes]) -> GGUFCheckpoint:
        return GGUFCheckpoint(file(*extra))

    for extra, kind, word in [
        (("rope_freqs.weight", [4], 0, bytes(16)), ModelFileError, "must be f32 of (8,)"),
        (("rope_freqs.weight", [8], 1, bytes(16)), ModelFileError, "must be f32 of (8,)"),
        (("rope_freqs.weight", [8], 0, bytes(32)), ModelFileError, "above 0"),
    ]:
        refused(lambda extra=extra: open_with(extra), "bad.gguf", word, kind=kind)
    refused(lambda: GGUFCheckpoint(file(drop="model.embed_tokens.weight")), "'token_embd.weight'", kind=ModelFileError)
    checkpoint = open_with(("output.weight", [256, 1], 15, bytes(292)))
    refused(lambda: checkpoint.read("output.weight", "float32"), "is q8_k", "q4_k", "iq1_s", kind=UnsupportedModelError)
    refused(lambda: checkpoint.info("blk.9.ffn_up.weight"), "not in the file", kind=ModelFileError)


@pytest.mark.model
def test_the_default_model_against_the_gguf_package() -> None:
    files = sources.resolve("smollm2-135m")
    checkpoint = sources.open_checkpoint(files)
    assert checkpoint.config["num_hidden_layers"] == 30
    assert checkpoint.config["eos_token_id"] == 2
    assert len(list(checkpoint.names())) == 272
    checked = {
        "blk.7.attn_q.weight": 9,
        "blk.7.attn_k.weight": 3,
        "blk.29.ffn_down.weight": None,
        "blk.0.attn_norm.weight": None,
    }
    with GGUFFile(files.path) as file:
        for name, heads in checked.items():
            tensor = file.tensor(name)
            kind = gguf.GGMLQuantizationType(tensor.type.id)
            rows = file.tensor_data(name).reshape(tensor.shape[0] if len(tensor.shape) > 1 else 1, -1)
            wanted = gguf.dequantize(rows, kind).reshape(tensor.shape)
            found = checkpoint.read(name, "float32")
            np.testing.assert_array_equal(tiny.interleave(found, heads) if heads else found, wanted)
    template = checkpoint.tokenizer_files().chat_template
    assert template is not None
    assert "<|im_start|>" in template
    checkpoint.close()


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_what_was_read_takes_no_memory(tmp_path: Path) -> None:
    """Pages of the file count as the process's own; once a tensor is read they are given back, and come again."""
    filler = np.random.default_rng(0).normal(0, 0.1, (1 << 14, tiny.HIDDEN)).astype(np.float32)
    tensors = tiny.weights() | {"model.embed_tokens.weight": filler}
    path = tiny.gguf_file(tmp_path / "filler.gguf", tensors, type_name="Q8_0")
    checkpoint = GGUFCheckpoint(path)

    def resident() -> int:
        lines = Path("/proc/self/smaps").read_text().splitlines()
        start = next(i for i, line in enumerate(lines) if line.endswith("filler.gguf"))
        return next(int(line.split()[1]) for line in lines[start:] if line.startswith("Rss:"))

    first = checkpoint.read("token_embd.weight", "float32")
    grouped = checkpoint.read_grouped("token_embd.weight")
    assert resident() < 300 < path.stat().st_size / 1024
    assert grouped is not None
    again = checkpoint.read("token_embd.weight", "float32")
    assert np.array_equal(again, first)
    checkpoint.close()
