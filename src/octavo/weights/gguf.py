"""GGUF files: a bounded, memory-mapped reader of our own.

    header     magic "GGUF", version, number of tensors, number of metadata pairs
    metadata   typed values by key (gguf_metadata.py)
    tensors    name, dimensions, type and offset of each
    data       from the next multiple of `general.alignment` on

Opening reads the header only and checks all of it: afterwards every tensor is known to lie inside the file, aligned,
and apart from the others. Versions 2 and 3, little endian.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError
from octavo.weights import ggml_types
from octavo.weights.files import drop_pages, map_file
from octavo.weights.ggml_types import GGMLType
from octavo.weights.gguf_metadata import Cursor, Metadata, read_metadata

MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 255
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 16
DEFAULT_ALIGNMENT = 32

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_VERSIONS = (2, 3)


class GGUFTensor(msgspec.Struct, frozen=True):
    """Where a tensor lies. `shape` is in numpy's order: the last axis is the contiguous one."""

    name: str
    shape: tuple[int, ...]
    type: GGMLType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GGUFFile:
    """An open GGUF file.

    Attributes:
        metadata: Keys and values.
        tensors: Name to place, in the file's order.
        data_offset: First byte of the tensor data: the header is everything before it.

    Raises:
        ModelFileError: If the file is missing or breaks the format's rules.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._map: mmap.mmap | None = map_file(self.path)
        cursor = Cursor(self._map, self.path.name)
        num_tensors, num_pairs = _read_header(cursor)
        self.metadata: Metadata = read_metadata(cursor, num_pairs)
        self.tensors, self.data_offset = _read_tensors(cursor, num_tensors, _alignment(cursor, self.metadata))

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self._data)

    def tensor(self, name: str) -> GGUFTensor:
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

    def bytes_at(self, start: int, stop: int) -> bytes:
        """A copy of a range of the file."""
        return self._data[start:stop]

    def __enter__(self) -> GGUFFile:
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


def _read_header(cursor: Cursor) -> tuple[int, int]:
    """Number of tensors and of metadata pairs."""
    magic = cursor.data[:4]
    if magic != b"GGUF":
        raise cursor.error("header", f"starts with {magic!r}, not with b'GGUF'")
    cursor.position = 4
    version = cursor.take(_U32, "header")
    if version not in _VERSIONS:
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise cursor.error("header", "the file is big endian; only little endian is read")
        raise cursor.error("header", f"version {version}; must be 2 or 3")
    return cursor.take(_U64, "header"), cursor.take(_U64, "header")


def _alignment(cursor: Cursor, metadata: Metadata) -> int:
    value = metadata.get_int("general.alignment")
    if value is None:
        return DEFAULT_ALIGNMENT
    if not 8 <= value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.error(
            "metadata 'general.alignment'", f"is {value}; must be a power of two from 8 to {MAX_ALIGNMENT}"
        )
    return value


def _read_tensors(cursor: Cursor, count: int, alignment: int) -> tuple[dict[str, GGUFTensor], int]:
    """Tensors by name, and the offset of the data they share."""
    if count > MAX_TENSORS:
        raise cursor.error("header", f"announces {count} tensors; at most {MAX_TENSORS} are allowed")
    cursor.need(count * 32, f"header: {count} tensors")  # name length, number of dimensions, one, type, offset
    found: list[GGUFTensor] = []
    for index in range(count):
        found.append(_read_tensor(cursor, index))
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, GGUFTensor] = {}
    for tensor in found:
        if not tensor.name or tensor.name in tensors:
            raise cursor.error(f"tensor {tensor.name!r}", "the name is empty or stands twice")
        if tensor.offset % alignment:
            raise cursor.error(f"tensor {tensor.name!r}", f"offset {tensor.offset} is not a multiple of {alignment}")
        tensors[tensor.name] = msgspec.structs.replace(tensor, offset=start + tensor.offset)
    _check_ranges(cursor, list(tensors.values()))
    return tensors, start


def _read_tensor(cursor: Cursor, index: int) -> GGUFTensor:
    """One tensor; its offset still counts from the start of the data."""
    name = cursor.string(f"name of tensor {index}", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    num_dims = cursor.take(_U32, what)
    if not 1 <= num_dims <= MAX_DIMS:
        raise cursor.error(what, f"has {num_dims} dimensions; must be 1 to {MAX_DIMS}")
    dims = [cursor.take(_U64, what) for _ in range(num_dims)]
    kind = ggml_types.BY_ID.get(type_id := cursor.take(_U32, what))
    if kind is None:
        raise cursor.error(what, f"type {type_id} does not exist")
    num_elements = 1
    for dim in dims:
        if dim == 0:
            raise cursor.error(what, f"has the dimensions {dims}; none may be 0")
        num_elements *= dim
    if dims[0] % kind.block_size:
        raise cursor.error(what, f"rows of {dims[0]} elements are not whole {kind.name} blocks of {kind.block_size}")
    num_bytes = kind.num_bytes(num_elements)
    if num_bytes > cursor.size:
        raise cursor.error(what, f"takes {num_bytes} bytes; the whole file has {cursor.size}")
    return GGUFTensor(name, tuple(reversed(dims)), kind, cursor.take(_U64, what), num_bytes)


def _check_ranges(cursor: Cursor, tensors: list[GGUFTensor]) -> None:
    """Every tensor lies inside the file, and no two share a byte."""
    end, before = 0, ""
    for tensor in sorted(tensors, key=lambda t: t.offset):
        what = f"tensor {tensor.name!r}"
        if tensor.offset + tensor.num_bytes > cursor.size:
            raise cursor.error(
                what,
                f"bytes {tensor.offset} to {tensor.offset + tensor.num_bytes} pass the end of the file, {cursor.size}",
            )
        if tensor.offset < end:
            raise cursor.error(what, f"overlaps tensor {before!r}")
        end, before = tensor.offset + tensor.num_bytes, tensor.name
