"""A checkpoint in a Hugging Face folder: config.json, safetensors, tokenizer.

Nothing of the folder is executed: pickled weights are refused, and so is a config that asks for code of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import GroupedWeight
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import FloatArray, TensorInfo, TokenizerFiles
from octavo.weights.config_check import check_config
from octavo.weights.dequantize import dequantize
from octavo.weights.files import JSONObject, decode_json, fingerprint, read_json, read_small
from octavo.weights.safetensors import SafeTensorsFile
from octavo.weights.tokenizer_files import read_tokenizer_files

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of formats that can run code when they are opened."""
MAX_CONFIG_BYTES = 4 << 20
GENERATION_CONFIG = "generation_config.json"
MAX_SHARDS = 1 << 12

_READABLE = {"BF16": "bf16", "F16": "f16", "F32": "f32"}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class HFCheckpoint:
    """See `checkpoint.Checkpoint`.

    Raises:
        ModelFileError: If a file is missing or breaks its format's rules, or the weights are pickled.
        UnsupportedModelError: If the config asks for its own code, or the weights are quantised in a way unknown here.
    """

    def __init__(self, path: str | Path, *, num_threads: int | None = None) -> None:
        self.path = Path(path)
        self._num_threads = num_threads
        self._config_bytes = read_small(self.path / CONFIG, MAX_CONFIG_BYTES)
        self.config = _config(self._config_bytes, self.path)
        self._shards, self._shard_of = _open_shards(self.path)
        check_config(self.config, CONFIG, len(self._shard_of))

    def names(self) -> Iterable[str]:
        return self._shard_of.keys()

    def info(self, name: str) -> TensorInfo:
        tensor = self._shard(name).tensor(name)
        return TensorInfo(tensor.shape, tensor.dtype.lower())

    def read(self, name: str, dtype: str, *, out: FloatArray | None = None) -> FloatArray:
        shard = self._shard(name)
        tensor = shard.tensor(name)
        if tensor.dtype not in _READABLE:
            raise UnsupportedModelError(
                f"{shard.path.name}: tensor {name!r} is {tensor.dtype}; readable are {', '.join(_READABLE)}"
            )
        data = shard.tensor_data(name)
        kind = _READABLE[tensor.dtype]
        values = dequantize(data, kind, tensor.shape, dtype, out=out, num_threads=self._num_threads)
        shard.drop(name)
        return values

    def read_grouped(self, name: str) -> GroupedWeight | None:
        return None

    def hollow_grouped(self, name: str) -> GroupedWeight | None:
        return None

    def fingerprint(self) -> str:
        headers = [self._config_bytes, *(shard.header() for shard in self._shards)]
        return fingerprint(headers, (self._data(name) for name in self._shard_of))

    def tokenizer_files(self) -> TokenizerFiles:
        return read_tokenizer_files(self.path, str(self.config.get("model_type") or ""))

    def close(self) -> None:
        for shard in self._shards:
            shard.close()

    def _data(self, name: str) -> npt.NDArray[np.uint8]:
        return self._shard(name).tensor_data(name)

    def _shard(self, name: str) -> SafeTensorsFile:
        if name not in self._shard_of:
            raise ModelFileError(self.path.name, f"tensor {name[:100]!r}", "is not in the checkpoint")
        return self._shards[self._shard_of[name]]


def _config(raw: bytes, folder: Path) -> JSONObject:
    """config.json, with the end-of-sequence tokens of generation_config.json added to `eos_token_id`."""
    config: JSONObject = decode_json(raw, JSONObject, CONFIG, "file")
    if "auto_map" in config:
        raise UnsupportedModelError(f"{CONFIG}: auto_map asks for code of the model's own; Octavo never runs such code")
    quantization = config.get("quantization_config")
    if quantization:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else quantization
        raise UnsupportedModelError(
            f"{CONFIG}: weights quantised by {str(method)[:40]!r}; supported are bf16, f16, f32, and GGUF files"
        )
    ids = _eos_ids(config, CONFIG)
    ids += _eos_ids(read_generation_config(folder) or {}, GENERATION_CONFIG)
    if ids:
        ids = list(dict.fromkeys(ids))
        config["eos_token_id"] = ids[0] if len(ids) == 1 else ids
    return config


def read_generation_config(folder: Path) -> JSONObject | None:
    """The object in the folder's generation_config.json; None where there is no such file.

    Raises:
        ModelFileError: If it is not JSON, or no object.
    """
    path = folder / GENERATION_CONFIG
    return read_json(path, JSONObject, MAX_CONFIG_BYTES) if path.exists() else None


def _open_shards(folder: Path) -> tuple[list[SafeTensorsFile], dict[str, int]]:
    """The open files, and for each tensor the number of its file."""
    if (folder / SINGLE).exists():
        shard = SafeTensorsFile(folder / SINGLE)
        return [shard], dict.fromkeys(shard.tensors, 0)
    if not (folder / INDEX).exists():
        raise _no_weights(folder)
    weight_map = read_json(folder / INDEX, _Index).weight_map
    files = sorted(set(weight_map.values()))
    if len(files) > MAX_SHARDS:
        raise ModelFileError(INDEX, "weight_map", f"names {len(files)} files; at most {MAX_SHARDS} are allowed")
    for file in files:
        _check_shard_name(folder, file)
    shards = [SafeTensorsFile(folder / file) for file in files]
    number = {file: i for i, file in enumerate(files)}
    for name, file in weight_map.items():
        if name not in shards[number[file]].tensors:
            raise ModelFileError(file, f"tensor {name[:100]!r}", f"is not in the file, though {INDEX} says so")
    return shards, {name: number[file] for name, file in weight_map.items()}


def _check_shard_name(folder: Path, file: str) -> None:
    plain = file and len(file) <= 255 and not set(file) & set("/\\:\0") and file.endswith(".safetensors")
    if not plain:
        raise ModelFileError(INDEX, f"file {file[:100]!r}", "must be the bare name of a .safetensors file beside it")
    if not (folder / file).exists():
        raise ModelFileError(file, "file", f"is missing, though {INDEX} names it")


def _no_weights(folder: Path) -> ModelFileError:
    try:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in PICKLES)
    except OSError:
        pickles = []
    if pickles:
        return ModelFileError(
            pickles[0], "file", f"is a pickle, which can run code when it is opened: refused. Needed is {SINGLE}"
        )
    return ModelFileError(folder.name, "folder", f"holds neither {SINGLE} nor {INDEX}")


def _eos_ids(config: JSONObject, file: str) -> list[int]:
    value = config.get("eos_token_id")
    ids = list(value) if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if not isinstance(id, int) or isinstance(id, bool) or id < 0:
            raise ModelFileError(file, "eos_token_id", f"is {repr(value)[:60]}; must be a token id or a list of them")
    return ids
