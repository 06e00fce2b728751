"""Hugging Face folders: whole and sharded, and what is refused in them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import tiny_models as tiny
from limits import refused
from test_dequantize import rounded_to_bf16

from octavo.backends.bfloat16 import to_float32
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelError, ModelFileError, UnsupportedModelError
from octavo.weights import sources
from octavo.weights.huggingface import HFCheckpoint
from support import quantized


@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_are_read_as_they_were_written(tmp_path: Path, shards: int) -> None:
    tensors = tiny.weights(tied=False, biases=True)
    checkpoint = HFCheckpoint(tiny.hf_folder(tmp_path, tensors, shards=shards))
    assert set(checkpoint.names()) == set(tensors)
    for name, wanted in tensors.items():
        assert checkpoint.info(name).shape == wanted.shape
        assert checkpoint.info(name).dtype == "f32"
        np.testing.assert_array_equal(checkpoint.read(name, "float32"), wanted)
    assert checkpoint.config == tiny.hf_config()
    checkpoint.close()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_narrow_dtypes(tmp_path: Path, dtype: str) -> None:
    values = np.array([1.0, -2.5, 65504.0, 6e-8, 0.1], np.float32)
    half = values.astype(np.float16)
    folder = tiny.hf_folder(tmp_path, {"half": half, "x": values, "ids": np.arange(3)}, num_hidden_layers=1)
    checkpoint = HFCheckpoint(folder)
    wide = half.astype(np.float32)
    found = checkpoint.read("half", dtype)
    if dtype == "float32":
        np.testing.assert_array_equal(found, wide)
    else:
        assert np.abs((found.astype(np.uint32) << 16).view(np.float32) - wide).max() <= 65504 / 256
    refused(
        lambda: checkpoint.read("ids", dtype),
        "'ids' is I64",
        "BF16, F16, F32, F64, F8_E4M3, F8_E5M2",
        kind=UnsupportedModelError,
    )
    refused(lambda: checkpoint.read("nothing", dtype), "'nothing'", kind=ModelFileError)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_dtypes_that_numpy_lacks_or_has_wider(tmp_path: Path, dtype: str) -> None:
    """As plain values, where no config tells of scales."""
    every = np.arange(256, dtype=np.uint8)
    stored = {
        "e4m3": ("F8_E4M3", every),
        "e5m2": ("F8_E5M2", every),
        "double": ("F64", np.array([1 / 3, 1e300, -2.5])),
        "brain": ("BF16", np.array([0x3F80, 0xC020], np.uint16)),
        "byte": ("U8", every),
        "signed": ("I8", every.view(np.int8)),
    }
    folder = tiny.hf_folder(tmp_path, num_hidden_layers=1)
    quantized.save(folder / "model.safetensors", stored)
    checkpoint = HFCheckpoint(folder)
    with np.errstate(over="ignore"):
        double = np.array([1 / 3, 1e300, -2.5]).astype(np.float32)
    wanted = {
        "e4m3": quantized.E4M3.astype(np.float32),
        "e5m2": (every.astype(np.uint16) << 8).view(np.float16).astype(np.float32),
        "double": double,
        "brain": np.array([1, -2.5], np.float32),
    }
    for name, values in wanted.items():
        found = checkpoint.read(name, dtype)
        if dtype == "bfloat16":
            found, values = to_float32(found), to_float32(rounded_to_bf16(values))
        np.testing.assert_array_equal(found, values)
    for name, kind in (("byte", "U8"), ("signed", "I8")):
        refused(lambda name=name: checkpoint.read(name, dtype), f"{name!r} is {kind}", kind=UnsupportedModelError)


def test_eos_tokens_of_both_configs_count(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path, eos_token_id=2)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    assert HFCheckpoint(folder).config["eos_token_id"] == [2, 5]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2}))
    assert HFCheckpoint(folder).config["eos_token_id"] == 2


def test_tokenizer_files(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path)
    checkpoint = HFCheckpoint(folder)
    bare = checkpoint.tokenizer_files()
    assert (bare.tokenizer_json, bare.chat_template, bare.bos_token) == (folder / "tokenizer.json", None, None)
    config = {
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "add_bos_token": True,
        "chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    full = checkpoint.tokenizer_files()
    assert (full.bos_token, full.eos_token, full.add_bos, full.chat_template) == ("<s>", "</s>", True, "yes")
    named = [{"name": ["default"], "template": "no"}, {"name": {}, "template": "no"}]
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    assert checkpoint.tokenizer_files().chat_template is None
    (folder / "chat_template.jinja").write_text("from the file")
    assert checkpoint.tokenizer_files().chat_template == "from the file"
    (folder / "tokenizer.json").unlink()
    refused(checkpoint.tokenizer_files, "tokenizer.json", kind=ModelFileError)
    (folder / "tokenizer.json").symlink_to("lost")
    refused(lambda: Tokenizer.load(checkpoint.tokenizer_files()), "tokenizer.json: file: no such", kind=ModelFileError)


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    tensors = tiny.weights()
    first = HFCheckpoint(tiny.hf_folder(tmp_path / "a", tensors)).fingerprint()
    assert HFCheckpoint(tiny.hf_folder(tmp_path / "b", tensors)).fingerprint() == first
    seen = {first, HFCheckpoint(tiny.hf_folder(tmp_path / "c", tensors, rope_theta=1.0)).fingerprint()}
    tensors["model.norm.weight"][0] += 1
    seen.add(HFCheckpoint(tiny.hf_folder(tmp_path / "d", tensors)).fingerprint())
    assert len(seen) == 3


def _edit_index(folder: Path, change: Callable[[dict[str, str]], object]) -> None:
    path = folder / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    change(index["weight_map"])
    path.write_text(json.dumps(index))


@pytest.mark.parametrize(
    "file",
    [
        "../model.safetensors",
        "/etc/model.safetensors",
        "sub/model.safetensors",
        "..",
        "",
        "a\0.safetensors",
        "c:\\x.safetensors",
        "evil.bin",
        "x" * 5000 + ".safetensors",
        "é" * 200 + ".safetensors",
    ],
)
def test_an_index_may_not_leave_its_folder(tmp_path: Path, file: str) -> None:
    tensors = tiny.weights()
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")  # where ../model.safetensors would be
    folder = tiny.hf_folder(tmp_path / "m", tensors, shards=2)
    _edit_index(folder, lambda weight_map: weight_map.update({"model.norm.weight": file}))
    refused(lambda: HFCheckpoint(folder), "model.safetensors.index.json: file", "bare name", kind=ModelFileError)


def test_messages_are_one_line_whatever_a_file_is_called(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path / "m", shards=2)
    _edit_index(folder, lambda weight_map: weight_map.update({"model.norm.weight": "a\n\x1b[31m\u202eb.safetensors"}))
    error = refused(lambda: HFCheckpoint(folder), "is missing", kind=ModelFileError)
    assert str(error).startswith("a\\n\\x1b[31m\\u202eb.safetensors: file: ")


def test_a_tensor_that_the_index_forgets_is_there_all_the_same(tmp_path: Path) -> None:
    """It may be a bias, without which the answers would be wrong."""
    folder = tiny.hf_folder(tmp_path / "m", shards=2)
    everything = set(HFCheckpoint(folder).names())
    _edit_index(folder, lambda weight_map: weight_map.pop("model.norm.weight"))
    assert set(HFCheckpoint(folder).names()) == everything


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["adapter_config.json", "adapter_model.safetensors"], ["adapter_config.json", "merge it into its base model"]),
        (["consolidated.safetensors"], ["holds neither", "only consolidated.safetensors"]),
    ],
)
def test_other_kinds_of_folders_are_named(tmp_path: Path, files: list[str], words: list[str]) -> None:
    folder = tiny.hf_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    for name in files:
        (folder / name).write_bytes(b"{}")
    refused(lambda: HFCheckpoint(folder), *words, kind=ModelFileError)
    if files[0].startswith("adapter"):
        (folder / "config.json").unlink()
        refused(lambda: sources.resolve(str(folder)), "holds no config.json, only an adapter", kind=ModelFileError)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path / "shard", shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    refused(lambda: HFCheckpoint(folder), "model-00002-of-00003.safetensors", "is missing", kind=ModelFileError)

    folder = tiny.hf_folder(tmp_path / "tensor", shards=2)
    _edit_index(folder, lambda weight_map: weight_map.update({"ghost": "model-00001-of-00002.safetensors"}))
    refused(lambda: HFCheckpoint(folder), "'ghost'", "not in the file", kind=ModelFileError)

    folder = tiny.hf_folder(tmp_path / "weights")
    (folder / "model.safetensors").unlink()
    refused(lambda: HFCheckpoint(folder), "holds neither model.safetensors nor", kind=ModelFileError)

    (folder / "config.json").unlink()
    refused(lambda: HFCheckpoint(folder), "config.json", "no such file", kind=ModelFileError)


@pytest.mark.parametrize(
    ("index", "word"),
    [
        ("{", "JSON"),
        ("[]", "JSON"),
        ('{"weight_map": 1}', "weight_map"),
        ('{"weight_map": {"a": ["b"]}}', "weight_map"),
        ("{}", "weight_map"),
        ('{"weight_map": {"a": ' + "[" * 100_000, ""),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, index: str, word: str) -> None:
    folder = tiny.hf_folder(tmp_path, shards=2)
    (folder / "model.safetensors.index.json").write_text(index)
    refused(lambda: HFCheckpoint(folder), "model.safetensors.index.json", word, kind=ModelFileError)


class _Marker:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return os.mkdir, (str(self.path),)


PICKLED = [
    "pytorch_model.bin",
    "pytorch_model-00001-of-00002.bin",
    "model.pt",
    "consolidated.00.pth",
    "last.ckpt",
    "model.PKL",
]
FOREIGN = {"flax_model.msgpack": "Flax", "tf_model.h5": "TensorFlow", "model.onnx": "ONNX"}


@pytest.mark.parametrize("name", [*PICKLED, *FOREIGN])
def test_other_weights_are_refused_unopened(tmp_path: Path, name: str) -> None:
    folder = tiny.hf_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    marker = tmp_path / "marker"
    (folder / name).write_bytes(pickle.dumps(_Marker(marker)))
    why = ["pickle", "can run code"] if name in PICKLED else [FOREIGN[name], "not read"]
    error = refused(lambda: HFCheckpoint(folder), name, *why, "Needed is model.safetensors", kind=ModelFileError)
    assert "\n" not in str(error)
    refused(lambda: sources.resolve(str(folder / name)), name, why[0], kind=ModelFileError)
    tiny.hf_folder(folder)  # with safetensors beside it, it is ignored
    HFCheckpoint(folder).close()
    assert not marker.exists()


@pytest.mark.parametrize("flags", [[], ["-O"]])
def test_code_of_the_model_is_never_imported(tmp_path: Path, flags: list[str]) -> None:
    marker = tmp_path / "marker"
    folder = tiny.hf_folder(tmp_path / "m", auto_map={"AutoModelForCausalLM": "modeling_evil.Evil"})
    (folder / "modeling_evil.py").write_text(f"import pathlib; pathlib.Path({str(marker)!r}).touch()")
    program = (
        "import sys\n"
        "from octavo.errors import UnsupportedModelError\n"
        "from octavo.weights.huggingface import HFCheckpoint\n"
        "try:\n    HFCheckpoint(sys.argv[1])\n"
        "except UnsupportedModelError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, *flags, "-c", program, str(folder)], capture_output=True, text=True, check=True, cwd=folder
    )
    assert "auto_map" in done.stdout
    assert not marker.exists()


CONFIGS: dict[str, tuple[str, type[ModelError], str]] = {
    "not JSON": ("{", ModelFileError, "config.json"),
    "a list": ("[]", ModelFileError, "config.json"),
    "NaN": ('{"rms_norm_eps": NaN}', ModelFileError, "config.json"),
    "nested deep": ('{"a":' * 100_000, ModelFileError, "config.json"),
    "not UTF-8": ("\udcff", ModelFileError, "config.json"),
    "layers 10^9": (json.dumps(tiny.hf_config(num_hidden_layers=10**9)), ModelFileError, "num_hidden_layers"),
    "layers 4000": (json.dumps(tiny.hf_config(num_hidden_layers=4000)), ModelFileError, "only 20 tensors"),
    "layers true": (json.dumps(tiny.hf_config(num_hidden_layers=True)), ModelFileError, "is True"),
    "context 10^30": (json.dumps(tiny.hf_config(max_position_embeddings=10**30)), ModelFileError, "max_position"),
    "vocabulary -1": (json.dumps(tiny.hf_config(vocab_size=-1)), ModelFileError, "vocab_size: is -1"),
    "width a string": (json.dumps(tiny.hf_config(hidden_size="64")), ModelFileError, "hidden_size: is '64'"),
    "epsilon 0": (json.dumps(tiny.hf_config(rms_norm_eps=0)), ModelFileError, "rms_norm_eps"),
    "theta 10^400": (json.dumps(tiny.hf_config(rope_theta=10**400)), ModelFileError, "rope_theta"),
    "eos a string": (json.dumps(tiny.hf_config(eos_token_id="2")), ModelFileError, "eos_token_id"),
    "eos out of range": (json.dumps(tiny.hf_config(eos_token_id=[2, tiny.VOCAB])), ModelFileError, "has 32 tokens"),
    "bos negative": (json.dumps(tiny.hf_config(bos_token_id=-1)), ModelFileError, "bos_token_id: is -1"),
    "eos nested": (json.dumps(tiny.hf_config(eos_token_id=[[2]])), ModelFileError, "eos_token_id"),
    "quantised": (
        json.dumps(tiny.hf_config(quantization_config={"quant_method": "hqq"})),
        UnsupportedModelError,
        "'hqq'",
    ),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_wrong_config_is_refused(tmp_path: Path, case: str) -> None:
    text, kind, word = CONFIGS[case]
    folder = tiny.hf_folder(tmp_path)
    (folder / "config.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(lambda: HFCheckpoint(folder), word, kind=kind)


def test_large_files_are_refused_unread(tmp_path: Path) -> None:
    folder = tiny.hf_folder(tmp_path)
    with (folder / "config.json").open("wb") as file:
        file.truncate(1 << 30)
    refused(lambda: HFCheckpoint(folder), "config.json", "larger than", kind=ModelFileError)
    tiny.hf_folder(tmp_path)
    with (folder / "chat_template.jinja").open("wb") as file:
        file.truncate(1 << 30)
    checkpoint = HFCheckpoint(folder)
    refused(checkpoint.tokenizer_files, "chat_template.jinja", "larger than", kind=ModelFileError)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"bos_token": 1}, "bos_token"),
        ({"eos_token": {"content": ["</s>"]}}, "eos_token"),
        ({"chat_template": 5}, "chat_template"),
        ({"chat_template": [{"name": "default", "template": {}}]}, "chat_template"),
        ({"added_tokens_decoder": {"9" * 5000: {"content": "x"}}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"²": {"content": "x"}}}, "added_tokens_decoder"),
    ],
)
def test_a_wrong_tokenizer_config_is_refused(tmp_path: Path, config: dict[str, object], word: str) -> None:
    folder = tiny.hf_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    checkpoint = HFCheckpoint(folder)
    refused(checkpoint.tokenizer_files, "tokenizer_config.json", word, kind=ModelFileError)
