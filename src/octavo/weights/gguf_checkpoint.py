"""A checkpoint in a GGUF file, with the keys of a Hugging Face config."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import GroupedWeight
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights import ggml_types
from octavo.weights.checkpoint import FloatArray, TensorInfo, TokenizerFiles
from octavo.weights.config_check import check_config
from octavo.weights.dequantize import dequantize
from octavo.weights.files import fingerprint
from octavo.weights.gguf import GGUFFile, GGUFTensor
from octavo.weights.gguf_config import architecture_of, config_of
from octavo.weights.gguf_experts import cut_experts
from octavo.weights.gguf_vocabulary import read_vocabulary
from octavo.weights.groups import hollow_groups, read_groups
from octavo.weights.naming import Naming


class _Source(msgspec.Struct, frozen=True):
    """A tensor. `heads` is set when its rows are to be put back in rotate-half order."""

    tensor: GGUFTensor
    heads: int | None


class GGUFCheckpoint:
    """See `checkpoint.Checkpoint`.

    Raises:
        ModelFileError: If the file is missing or breaks the format's rules.
        UnsupportedModelError: If its architecture is none of `gguf_architectures.ARCHITECTURES`, or has a feature that
            Octavo lacks.
    """

    def __init__(self, path: str | Path, *, num_threads: int | None = None) -> None:
        self.path = Path(path)
        self._num_threads = num_threads
        self._file = GGUFFile(self.path)
        architecture, header = architecture_of(self._file)
        self.config: dict[str, Any] = config_of(architecture, header)
        named = architecture.naming
        self.naming: Naming | None = named if isinstance(named, Naming) else named(header)
        check_config(self.config, self.path.name, len(self._file.tensors))
        num_experts = self.config.get("num_experts") or self.config.get("num_local_experts")
        if num_experts:
            cut_experts(self._file, num_experts)
        self._sources = self._find_sources(architecture.permutes_rotary)

    @property
    def notes(self) -> tuple[str, ...]:
        return ()

    def names(self) -> Iterable[str]:
        return self._sources.keys()

    def info(self, name: str) -> TensorInfo:
        tensor = self._source(name).tensor
        return TensorInfo(tensor.shape, tensor.type.name)

    def check_readable(self, name: str) -> None:
        tensor = self._source(name).tensor
        if not tensor.type.readable:
            raise UnsupportedModelError(
                f"{self.path.name}: tensor {tensor.name!r} is {tensor.type.name}; "
                f"readable are {', '.join(ggml_types.readable_names())}"
            )

    def read(self, name: str, dtype: str, *, out: FloatArray | None = None) -> FloatArray:
        tensor, data = self._stored(name)
        values = dequantize(data, tensor.type.name, tensor.shape, dtype, out=out, num_threads=self._num_threads)
        self._file.drop(tensor.name)
        return values

    def read_grouped(self, name: str) -> GroupedWeight | None:
        tensor, data = self._stored(name)
        grouped = read_groups(data, tensor.type.name, tensor.shape, num_threads=self._num_threads)
        if grouped is not None:
            self._file.drop(tensor.name)
        return grouped

    def hollow_grouped(self, name: str) -> GroupedWeight | None:
        tensor = self._source(name).tensor
        return hollow_groups(tensor.type.name, tensor.shape)

    def fingerprint(self) -> str:
        header = self._file.bytes_at(0, self._file.data_offset)
        return fingerprint([header], (self._file.tensor_data(name) for name in self._file.tensors))

    def tokenizer_files(self) -> TokenizerFiles:
        vocabulary = read_vocabulary(self._file)
        bos, eos = vocabulary.bos_id, vocabulary.eos_id
        return TokenizerFiles(
            gguf=self.path,
            chat_template=vocabulary.chat_template,
            tool_template=vocabulary.tool_template,
            bos_token=None if bos is None else vocabulary.tokens[bos],
            eos_token=None if eos is None else vocabulary.tokens[eos],
            add_bos=vocabulary.adds_bos,
        )

    def close(self) -> None:
        self._file.close()

    def _stored(self, name: str) -> tuple[GGUFTensor, npt.NDArray[np.uint8]]:
        """The tensor and its bytes, the rows in rotate-half order."""
        self.check_readable(name)
        source = self._source(name)
        tensor = source.tensor
        data = self._file.tensor_data(tensor.name)
        if source.heads is not None:
            data = rotate_half_rows(data, tensor.shape[0], source.heads)
        return tensor, data

    def _source(self, name: str) -> _Source:
        if name not in self._sources:
            raise ModelFileError(self.path.name, f"tensor {name[:100]!r}", "is not in the file")
        return self._sources[name]

    def _find_sources(self, permuted: bool) -> dict[str, _Source]:
        heads = {"attn_q": self.config["num_attention_heads"], "attn_k": self.config["num_key_value_heads"]}
        sources: dict[str, _Source] = {}
        for tensor in self._file.tensors.values():
            count = heads.get(tensor.name.split(".")[-2]) if permuted and "." in tensor.name else None
            if count is not None and tensor.shape[0] != count * self.config["head_dim"]:
                raise ModelFileError(
                    self.path.name,
                    f"tensor {tensor.name!r}",
                    f"has {tensor.shape[0]} rows; must be {count} heads of {self.config['head_dim']}",
                )
            sources[tensor.name] = _Source(tensor, count)
        return sources


def rotate_half_rows(data: npt.NDArray[np.uint8], num_rows: int, num_heads: int) -> npt.NDArray[np.uint8]:
    """Rows of a query or key projection from GGUF's order back into Hugging Face's, as stored bytes.

    llama.cpp rotates neighbouring rows of a head, (0, 1), (2, 3), ...; Hugging Face rotates row i with row i + half.
    So llama.cpp's converter writes the rows of a head as 0, half, 1, half + 1, ... and this undoes it. A row is stored
    in whole blocks, so it works on any type.
    """
    pairs = data.reshape(num_heads, num_rows // num_heads // 2, 2, -1)
    return pairs.swapaxes(1, 2).reshape(-1)
