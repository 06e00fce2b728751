"""A checkpoint in a Hugging Face folder: config.json, safetensors, tokenizer.

Nothing of the folder is executed: pickled weights are refused, and so is a config that asks for code of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from octavo.backends.protocol import GroupedWeight
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import FloatArray, TensorInfo, TokenizerFiles
from octavo.weights.config_check import check_config
from octavo.weights.dequantize import dequantize
from octavo.weights.files import JSONObject, decode_json, fingerprint, is_there, read_json, read_small
from octavo.weights.fused_experts import cut_experts
from octavo.weights.naming import Naming
from octavo.weights.quantized.matrix import StoredMatrix
from octavo.weights.quantized.methods import find_quantized
from octavo.weights.shards import Shards
from octavo.weights.tokenizer_files import read_tokenizer_files

CONFIG = "config.json"
MAX_CONFIG_BYTES = 4 << 20
GENERATION_CONFIG = "generation_config.json"


class HFCheckpoint:
    """See `checkpoint.Checkpoint`.

    Raises:
        ModelFileError: If a file is missing or breaks its format's rules, or the weights are pickled.
        UnsupportedModelError: If the config asks for its own code, or the weights are quantised in a way unknown here.
    """

    naming: Naming | None = None

    def __init__(self, path: str | Path, *, num_threads: int | None = None) -> None:
        self.path = Path(path)
        self._num_threads = num_threads
        self._config_bytes = read_small(self.path / CONFIG, MAX_CONFIG_BYTES)
        self.config = _config(self._config_bytes, self.path)
        self._shards = Shards(self.path, num_threads)
        check_config(self.config, CONFIG, len(self._shards))
        cut_experts(self._shards, self.config)
        self._quantized = find_quantized(self.config, self._shards, num_threads)

    @property
    def notes(self) -> tuple[str, ...]:
        """See `Checkpoint`."""
        return self._quantized.notes

    def names(self) -> Iterable[str]:
        plain = [name for name in self._shards if name not in self._quantized.stored]
        return [*plain, *self._quantized.matrices]

    def info(self, name: str) -> TensorInfo:
        matrix = self._quantized.matrices.get(name)
        if matrix is not None:
            return TensorInfo(matrix.shape, matrix.kind, quantized=True)
        tensor = self._shards.tensor(name)
        return TensorInfo(tensor.shape, tensor.dtype.lower())

    def check_readable(self, name: str) -> None:
        if name not in self._quantized.matrices:
            self._shards.check_floats(name)

    def read(self, name: str, dtype: str, *, out: FloatArray | None = None) -> FloatArray:
        matrix = self._quantized.matrices.get(name)
        if matrix is None:
            values = self._shards.floats(name, dtype, out=out)
            self._shards.drop(name)
            return values
        wide = np.ascontiguousarray(matrix.floats()).reshape(-1).view(np.uint8)
        self._drop(matrix)
        return dequantize(wide, "f32", matrix.shape, dtype, out=out, num_threads=self._num_threads)

    def read_grouped(self, name: str) -> GroupedWeight | None:
        matrix = self._quantized.matrices.get(name)
        if matrix is None:
            return None
        grouped = matrix.grouped()
        if grouped is not None:
            self._drop(matrix)
        return grouped

    def hollow_grouped(self, name: str) -> GroupedWeight | None:
        matrix = self._quantized.matrices.get(name)
        return None if matrix is None else matrix.hollow()

    def fingerprint(self) -> str:
        headers = [self._config_bytes, *self._shards.headers()]
        return fingerprint(headers, (self._shards.data(name) for name in self._shards))

    def tokenizer_files(self) -> TokenizerFiles:
        return read_tokenizer_files(self.path, str(self.config.get("model_type") or ""))

    def close(self) -> None:
        self._shards.close()

    def _drop(self, matrix: StoredMatrix) -> None:
        for tensor in matrix.tensors:
            self._shards.drop(tensor)


def _config(raw: bytes, folder: Path) -> JSONObject:
    """config.json, with the end-of-sequence tokens of generation_config.json added to `eos_token_id`."""
    config: JSONObject = decode_json(raw, JSONObject, CONFIG, "file")
    if "auto_map" in config:
        raise UnsupportedModelError(f"{CONFIG}: auto_map asks for code of the model's own; Octavo never runs such code")
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
    return read_json(path, JSONObject, MAX_CONFIG_BYTES) if is_there(path) else None


def _eos_ids(config: JSONObject, file: str) -> list[int]:
    value = config.get("eos_token_id")
    ids = list(value) if isinstance(value, list) else [] if value is None else [value]
    for id in ids:
        if not isinstance(id, int) or isinstance(id, bool) or id < 0:
            raise ModelFileError(file, "eos_token_id", f"is {repr(value)[:60]}; must be a token id or a list of them")
    return ids
