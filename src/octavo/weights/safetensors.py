"""safetensors files: a bounded, memory-mapped reader.

    8 bytes    length of the header, little endian
    header     JSON: name -> dtype, shape, data_offsets; and `__metadata__`, strings by name
    data       the tensors, one after another, without gaps

Opening checks all of the header: afterwards every tensor is known to lie inside the file, apart from the others, and
to have the size that its dtype and shape say.

Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import math
import mmap
import re
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError
from octavo.weights.files import decode_json, drop_pages, map_file

MAX_HEADER_BYTES = 8 << 20
MAX_TENSORS = 1 << 16
MAX_DIMS = 16

_BITS = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}

_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]]', re.DOTALL)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: Annotated[list[_Count], msgspec.Meta(max_length=MAX_DIMS)]
    data_offsets: tuple[_Count, _Count]


class SafeTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies. `dtype` is the format's own name: "BF16", "F32", ..."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class SafeTensorsFile:
    """An open safetensors file.

    Attributes:
        tensors: Name to place, by place.
        data_offset: First byte of the data: the header is everything before it.

    Raises:
        ModelFileError: If the file is missing or breaks the format's rules.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._map: mmap.mmap | None = map_file(self.path)
        header = _header(self._map, self.path.name)
        self.data_offset = 8 + len(header)
        entries = _entries(header, self.path.name)
        self.tensors = _places(entries, self.data_offset, len(self._map), self.path.name)

    def tensor(self, name: str) -> SafeTensor:
        """Raises ModelFileError when there is no such tensor."""
        if name not in self.tensors:
            raise ModelFileError(self.path.name, f"tensor {name[:100]!r}", "is not in the file")
        return self.tensors[name]

    def tensor_data(self, name: str) -> npt.NDArray[np.uint8]:
        """The tensor's stored bytes: a read-only view of the file."""
        tensor = self.tensor(name)
        return np.frombuffer(self._data, np.uint8, tensor.num_bytes, tensor.offset)

    def drop(self, name: str) -> None:
        """Let go of the memory of a tensor's bytes; reading them again brings them back."""
        tensor = self.tensor(name)
        drop_pages(self._data, tensor.offset, tensor.num_bytes)

    def header(self) -> bytes:
        """A copy of everything before the data."""
        return self._data[: self.data_offset]

    def __enter__(self) -> SafeTensorsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file. Memory stays mapped for as long as a view that was handed out is alive."""
        self._map = None

    @property
    def _data(self) -> mmap.mmap:
        if self._map is None:
            raise ValueError(f"{self.path.name} is closed")
        return self._map


def _header(data: mmap.mmap, file: str) -> bytes:
    size = len(data)
    if size < 8:
        raise ModelFileError(file, "header", f"the file has {size} bytes; the length of the header alone takes 8")
    length = int.from_bytes(data[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise ModelFileError(file, "header", f"is {length} bytes long; at most {MAX_HEADER_BYTES} are allowed")
    if length > size - 8:
        raise ModelFileError(file, "header", f"is {length} bytes long, but the file has {size - 8} after its length")
    header = data[8 : 8 + length]
    if not header.startswith(b"{"):
        raise ModelFileError(file, "header", "does not start with '{'")
    return header


def _entries(header: bytes, file: str) -> dict[str, _Entry]:
    """The header's tensors. Values are cut out first and decoded one by one, so junk is never built."""
    values = decode_json(header, dict[str, msgspec.Raw], file, "header")
    if len(values) > MAX_TENSORS:
        raise ModelFileError(file, "header", f"names {len(values)} tensors; at most {MAX_TENSORS} are allowed")
    num_values = len(values)
    if "__metadata__" in values:
        decode_json(values.pop("__metadata__"), dict[str, str], file, "header: __metadata__")
    entries = {name: decode_json(raw, _Entry, file, f"tensor {name[:100]!r}") for name, raw in values.items()}
    keys = _keys(header)
    if len(keys) != num_values:  # the decoder keeps the last of two equal keys
        twice = next((key for key in keys if keys.count(key) > 1), b"?")
        raise ModelFileError(file, f"tensor {twice[:100].decode()}", "stands twice in the header")
    return entries


def _keys(header: bytes) -> list[bytes]:
    """Keys of the outermost object of valid JSON, as they are written."""
    depth, keys = 0, []
    for match in _STRING_OR_BRACKET.finditer(header):
        token = match[0]
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1:
            keys.append(token)
    return keys


def _places(entries: dict[str, _Entry], start: int, file_size: int, file: str) -> dict[str, SafeTensor]:
    tensors: dict[str, SafeTensor] = {}
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        what = f"tensor {name[:100]!r}"
        if entry.dtype not in _BITS:
            raise ModelFileError(file, what, f"dtype {entry.dtype[:20]!r} does not exist")
        begin, stop = entry.data_offsets
        if begin != end:
            fault = "overlaps the tensor before it" if begin < end else "leaves a gap before it"
            raise ModelFileError(file, what, f"{fault}: starts at byte {begin} of the data, not at {end}")
        bits = math.prod(entry.shape) * _BITS[entry.dtype]
        if bits != 8 * (stop - begin):
            needs = f"{entry.dtype} of shape {entry.shape} takes {-(-bits // 8)} bytes"
            raise ModelFileError(file, what, f"{needs}, not {stop - begin}")
        end = stop
        if start + end > file_size:
            raise ModelFileError(file, what, f"ends at byte {start + end}; the file has {file_size}")
        tensors[name] = SafeTensor(name, tuple(entry.shape), entry.dtype, start + begin, stop - begin)
    if start + end != file_size:
        raise ModelFileError(file, "data", f"{file_size - start - end} bytes after the last tensor belong to none")
    return tensors
