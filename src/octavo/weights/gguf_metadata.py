"""The metadata of a GGUF file: typed values by key, decoded under limits.

Everything here trusts nothing: a count or length is compared with the bytes that are left before it is used, in
Python's unbounded integers, and nothing is allocated for a value before its bytes are known to be there.

Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError

MAX_PAIRS = 1 << 16
"""Metadata pairs in one file."""
MAX_KEY_BYTES = (1 << 16) - 1
MAX_STRING_BYTES = 1 << 24
"""One string value; chat templates are the longest and take some kilobytes."""
MAX_ELEMENT_BYTES = 1 << 16
"""One string of an array; the longest tokens take some hundred."""
MAX_STRINGS = 1 << 21
"""Strings and nested arrays in all arrays of a file together; the largest vocabularies hold 2^18."""
MAX_NESTING = 3
"""Arrays in arrays."""

_SCALARS: dict[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<B")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
_STRING = 8
_ARRAY = 9
_U64 = struct.Struct("<Q")


Bytes = mmap.mmap | bytes
"""What a file is read from."""

_T = TypeVar("_T")


class Cursor:
    """A position in a file that refuses to pass its end."""

    def __init__(self, data: Bytes, file: str) -> None:
        self.data = data
        self.file = file
        self.size = len(data)
        self.position = 0
        self.strings_left = MAX_STRINGS

    def error(self, what: str, why: str) -> ModelFileError:
        return ModelFileError(self.file, what, why)

    @property
    def left(self) -> int:
        """Bytes from here to the end of the file."""
        return self.size - self.position

    def need(self, num_bytes: int, what: str) -> None:
        """Raises ModelFileError when fewer bytes are left."""
        if num_bytes > self.left:
            raise self.error(what, f"needs {num_bytes} bytes, but the file has {self.left} left")

    def take(self, kind: struct.Struct, what: str) -> Any:
        self.need(kind.size, what)
        (value,) = kind.unpack_from(self.data, self.position)
        self.position += kind.size
        return value

    def string(self, what: str, max_bytes: int) -> str:
        length = self.take(_U64, what)
        if length > max_bytes:
            raise self.error(what, f"a string of {length} bytes; at most {max_bytes} are allowed")
        self.need(length, what)
        raw = self.data[self.position : self.position + length]
        self.position += length
        return _text(raw, self.file, what)


class GGUFArray:
    """An array of the metadata. Its elements stay in the file until they are asked for."""

    def __init__(self, data: Bytes, file: str, key: str, element_type: str, count: int, position: int) -> None:
        self.element_type = element_type
        """"string", "array", "bool" or a numpy scalar name such as "float32"."""
        self._data = data
        self._file = file
        self._key = key
        self._count = count
        self._position = position

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"GGUFArray({self._key!r}, {self._count} x {self.element_type})"

    def to_list(self) -> list[Any]:
        """The elements as Python values.

        Raises:
            ModelFileError: If a string is not UTF-8 or a bool is neither 0 nor 1.
        """
        if self.element_type == "string":
            return self._strings()
        if self.element_type == "array":
            raise ModelFileError(self._file, f"metadata {self._key!r}", "an array of arrays where values are wanted")
        values: list[Any] = self.to_numpy().tolist()
        return values

    def to_numpy(self) -> npt.NDArray[Any]:
        """The elements as a numpy array; a read-only view of the file.

        Raises:
            ModelFileError: If the elements are strings or arrays, or a bool is neither 0 nor 1.
        """
        if self.element_type in ("string", "array"):
            raise ModelFileError(self._file, f"metadata {self._key!r}", f"holds {self.element_type}s, not numbers")
        stored = np.uint8 if self.element_type == "bool" else np.dtype(self.element_type)
        values: npt.NDArray[Any] = np.frombuffer(self._data, stored, self._count, self._position)
        if self.element_type == "bool":
            if values.size and values.max() > 1:
                raise ModelFileError(self._file, f"metadata {self._key!r}", "a bool that is neither 0 nor 1")
            return values.view(np.bool_)
        return values

    def _strings(self) -> list[str]:
        data, position, unpack = self._data, self._position, _U64.unpack_from
        out: list[str] = []
        append = out.append
        try:
            for _ in range(self._count):
                start = position + 8
                position = start + unpack(data, position)[0]
                append(data[start:position].decode())
        except UnicodeDecodeError:
            raise ModelFileError(
                self._file, f"metadata {self._key!r}", f"string {len(out)} of the array is not UTF-8"
            ) from None
        return out


MetadataValue = bool | int | float | str | GGUFArray


class Metadata(Mapping[str, MetadataValue]):
    """Keys and values of a GGUF file. The `get_*` methods check the type that a reader relies on."""

    def __init__(self, values: dict[str, MetadataValue], file: str) -> None:
        self._values = values
        self._file = file

    def __getitem__(self, key: str) -> MetadataValue:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def get_str(self, key: str) -> str | None:
        """The string at `key`, or None. Raises ModelFileError if it holds another type; so do the others."""
        return self._checked(key, str, "a string")

    def get_bool(self, key: str) -> bool | None:
        return self._checked(key, bool, "a bool")

    def get_int(self, key: str) -> int | None:
        return self._checked(key, int, "an integer")

    def get_float(self, key: str) -> float | None:
        return self._checked(key, float, "a float")

    def get_array(self, key: str, *element_types: str) -> GGUFArray | None:
        """The array at `key`, whose elements must have one of the given types."""
        wanted = f"an array of {' or '.join(element_types)}"
        array = self._checked(key, GGUFArray, wanted)
        if array is not None and array.element_type not in element_types:
            raise ModelFileError(self._file, f"metadata {key!r}", f"must be {wanted}, is one of {array.element_type}")
        return array

    def get_strings(self, key: str) -> list[str] | None:
        """The array of strings at `key`, decoded anew by each call."""
        array = self.get_array(key, "string")
        return None if array is None else array.to_list()

    def _checked(self, key: str, kind: type[_T], wanted: str) -> _T | None:
        value = self._values.get(key)
        if value is None:
            return None
        # bool is a subclass of int in Python, but not in GGUF.
        if isinstance(value, kind) and isinstance(value, bool) == (kind is bool):
            return value
        found = f"an array of {value.element_type}" if isinstance(value, GGUFArray) else type(value).__name__
        raise ModelFileError(self._file, f"metadata {key!r}", f"must be {wanted}, is {found}")


def read_metadata(cursor: Cursor, num_pairs: int) -> Metadata:
    """Decode `num_pairs` pairs at the cursor; arrays are walked over, not decoded.

    Raises:
        ModelFileError: On a limit passed, a type that GGUF does not have, a repeated key, or a file that ends.
    """
    if num_pairs > MAX_PAIRS:
        raise cursor.error("header", f"announces {num_pairs} metadata pairs; at most {MAX_PAIRS} are allowed")
    cursor.need(num_pairs * 13, f"header: {num_pairs} metadata pairs")  # key length, type and a byte of value
    values: dict[str, MetadataValue] = {}
    for index in range(num_pairs):
        key = cursor.string(f"key of metadata pair {index}", MAX_KEY_BYTES)
        if not key or key in values:
            raise cursor.error(f"metadata {key[:100]!r}", "the key is empty or stands twice")
        values[key] = _read_value(cursor, key)
    return Metadata(values, cursor.file)


def _read_value(cursor: Cursor, key: str) -> MetadataValue:
    what = f"metadata {key[:100]!r}"
    kind = cursor.take(_SCALARS[4][1], what)
    if kind == _STRING:
        return cursor.string(what, MAX_STRING_BYTES)
    if kind == _ARRAY:
        return _read_array(cursor, key, what, depth=1)
    if kind not in _SCALARS:
        raise cursor.error(what, f"value type {kind} does not exist")
    value: bool | int | float = cursor.take(_SCALARS[kind][1], what)
    if _SCALARS[kind][0] != "bool":
        return value
    if value > 1:
        raise cursor.error(what, f"a bool of {value}; must be 0 or 1")
    return bool(value)


def _read_array(cursor: Cursor, key: str, what: str, depth: int) -> GGUFArray:
    kind = cursor.take(_SCALARS[4][1], what)
    count = cursor.take(_U64, what)
    start = cursor.position
    if kind in _SCALARS:
        name, scalar = _SCALARS[kind]
        cursor.need(count * scalar.size, f"{what}: array of {count} {name}")
        cursor.position += count * scalar.size
        return GGUFArray(cursor.data, cursor.file, key, name, count, start)
    if kind not in (_STRING, _ARRAY):
        raise cursor.error(what, f"element type {kind} does not exist")
    if count > cursor.strings_left:
        raise cursor.error(what, f"an array of {count} elements; at most {MAX_STRINGS} in all are allowed")
    cursor.strings_left -= count
    if kind == _STRING:
        _skip_strings(cursor, count, what)
        return GGUFArray(cursor.data, cursor.file, key, "string", count, start)
    if depth == MAX_NESTING:
        raise cursor.error(what, f"arrays nested more than {MAX_NESTING} deep")
    cursor.need(count * 12, f"{what}: array of {count} arrays")
    for _ in range(count):
        _read_array(cursor, key, what, depth + 1)
    return GGUFArray(cursor.data, cursor.file, key, "array", count, start)


def _skip_strings(cursor: Cursor, count: int, what: str) -> None:
    cursor.need(count * 8, f"{what}: array of {count} strings")
    data, position, unpack = cursor.data, cursor.position, _U64.unpack_from
    last = cursor.size - 8
    for index in range(count):
        if position > last:
            raise cursor.error(what, f"string {index} of {count} passes the end of the file")
        length = unpack(data, position)[0]
        if length > MAX_ELEMENT_BYTES:
            raise cursor.error(what, f"string {index} has {length} bytes; at most {MAX_ELEMENT_BYTES} are allowed")
        position += 8 + length
    if position > cursor.size:
        raise cursor.error(what, f"string {count - 1} of {count} passes the end of the file")
    cursor.position = position


def _text(raw: bytes, file: str, what: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise ModelFileError(file, what, "is not UTF-8") from None
