"""The safetensors files of a folder, one or several, as one set of tensors.

Pickled weights, and those of other frameworks, are refused by name; no file but .safetensors is ever opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import Float32Array
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import FloatArray
from octavo.weights.cut import cut
from octavo.weights.dequantize import dequantize
from octavo.weights.files import is_there, read_json
from octavo.weights.safetensors import SafeTensor, SafeTensorsFile

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_config.json"
MAX_SHARDS = 1 << 12
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of formats that can run code when they are opened."""
OTHERS = {".msgpack": "Flax", ".h5": "TensorFlow", ".onnx": "ONNX", ".tflite": "TensorFlow Lite"}

FLOATS = {
    "BF16": "bf16",
    "F16": "f16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
}
"""What the dequantisers call the readable dtypes."""
_INTEGERS: dict[str, type[np.integer[Any]]] = {
    "I8": np.int8,
    "U8": np.uint8,
    "F8_E8M0": np.uint8,
    "I32": np.int32,
    "U32": np.uint32,
    "I64": np.int64,
}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


class Shards:
    """The tensors of `model.safetensors`, or of the files that its index names.

    Raises:
        ModelFileError: If a file is missing or breaks the format's rules, or there are only weights of other formats.
    """

    def __init__(self, folder: Path, num_threads: int | None = None) -> None:
        self._folder = folder
        self._num_threads = num_threads
        self._files, self._file_of = _open_files(folder)

    def __contains__(self, name: object) -> bool:
        return name in self._file_of

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)

    def tensor(self, name: str) -> SafeTensor:
        """Raises ModelFileError when there is no such tensor."""
        return self._file(name).tensor(name)

    def cut(self, name: str, pieces: Sequence[str]) -> None:
        """Put equal pieces of a tensor in its place: see `cut.cut`."""
        file = self._file(name)
        cut(file.tensors, name, pieces, file.path.name)
        self._file_of |= dict.fromkeys(pieces, self._file_of.pop(name))

    def data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's stored bytes: a read-only view of the file."""
        return self._file(name).tensor_data(name)

    def integers(self, name: str) -> npt.NDArray[Any]:
        """A tensor of integers: a read-only view of the file, of its shape."""
        tensor = self.tensor(name)
        return self.data(name).view(_INTEGERS[tensor.dtype]).reshape(tensor.shape)

    def floats(self, name: str, dtype: str = "float32", *, out: FloatArray | None = None) -> FloatArray:
        """A tensor of floats, as `Checkpoint.read`.

        Raises:
            UnsupportedModelError: If it is none of FLOATS.
        """
        self.check_floats(name)
        tensor = self.tensor(name)
        kind = FLOATS[tensor.dtype]
        return dequantize(self.data(name), kind, tensor.shape, dtype, out=out, num_threads=self._num_threads)

    def check_floats(self, name: str) -> None:
        """Raises UnsupportedModelError if a tensor is none of FLOATS."""
        file, tensor = self._file(name), self.tensor(name)
        if tensor.dtype not in FLOATS:
            raise UnsupportedModelError(
                f"{file.path.name}: tensor {name!r} is {tensor.dtype}; readable are {', '.join(FLOATS)}"
            )

    def float32(self, name: str) -> Float32Array:
        """The same as float32."""
        values: Float32Array = np.empty(self.tensor(name).shape, np.float32)
        self.floats(name, out=values)
        return values

    def drop(self, name: str) -> None:
        """Let go of the memory of a tensor's bytes; reading them again brings them back."""
        self._file(name).drop(name)

    def error(self, name: str, why: str) -> ModelFileError:
        """Of a tensor that is there."""
        return ModelFileError(self._file(name).path.name, f"tensor {name[:100]!r}", why)

    def headers(self) -> Iterable[bytes]:
        return (file.header() for file in self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _file(self, name: str) -> SafeTensorsFile:
        if name not in self._file_of:
            raise ModelFileError(self._folder.name, f"tensor {name[:100]!r}", "is not in the checkpoint")
        return self._files[self._file_of[name]]


def _open_files(folder: Path) -> tuple[list[SafeTensorsFile], dict[str, int]]:
    """The open files, and for each tensor the number of its file."""
    if is_there(folder / SINGLE):
        file = SafeTensorsFile(folder / SINGLE)
        return [file], dict.fromkeys(file.tensors, 0)
    if not is_there(folder / INDEX):
        raise _no_weights(folder)
    weight_map = read_json(folder / INDEX, _Index).weight_map
    names = sorted(set(weight_map.values()))
    if len(names) > MAX_SHARDS:
        raise ModelFileError(INDEX, "weight_map", f"names {len(names)} files; at most {MAX_SHARDS} are allowed")
    for name in names:
        _check_file_name(folder, name)
    files = [SafeTensorsFile(folder / name) for name in names]
    number = {name: i for i, name in enumerate(names)}
    for tensor, name in weight_map.items():
        if tensor not in files[number[name]].tensors:
            raise ModelFileError(name, f"tensor {tensor[:100]!r}", f"is not in the file, though {INDEX} says so")
    file_of = {tensor: number[name] for tensor, name in weight_map.items()}
    # What only a file tells of is part of the model all the same.
    for file_number, file in enumerate(files):
        for tensor in file.tensors:
            file_of.setdefault(tensor, file_number)
    return files, file_of


def _check_file_name(folder: Path, file: str) -> None:
    plain = file and len(file.encode()) <= 255 and not set(file) & set("/\\:\0") and file.endswith(".safetensors")
    if not plain:
        raise ModelFileError(INDEX, f"file {file[:100]!r}", "must be the bare name of a .safetensors file beside it")
    if not is_there(folder / file):
        raise ModelFileError(file, "file", f"is missing, though {INDEX} names it")


def _no_weights(folder: Path) -> ModelFileError:
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError:
        names = []
    wanted = f"Needed is {SINGLE}: most models are published in it too, and transformers' save_pretrained writes it"
    for name in names:
        suffix = Path(name).suffix.lower()
        if suffix in PICKLES:
            return ModelFileError(name, "file", f"is a pickle, which can run code when it is opened: refused. {wanted}")
        if suffix in OTHERS:
            return ModelFileError(name, "file", f"holds weights for {OTHERS[suffix]}, which are not read. {wanted}")
    if ADAPTER in names:
        why = "is that of an adapter (LoRA); Octavo has none: merge it into its base model and save that"
        return ModelFileError(ADAPTER, "file", why)
    others = [name for name in names if name.endswith(".safetensors")]
    hint = f", only {others[0]}, which has other names for its tensors or is a part of the model" if others else ""
    return ModelFileError(folder.name, "folder", f"holds neither {SINGLE} nor {INDEX}{hint}")
