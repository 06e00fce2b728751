"""Small GGUF files for the tests, right or deliberately wrong: every field can be overridden."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

TYPE_IDS = {
    "uint8": (0, "<B"),
    "int8": (1, "<b"),
    "uint16": (2, "<H"),
    "int16": (3, "<h"),
    "uint32": (4, "<I"),
    "int32": (5, "<i"),
    "float32": (6, "<f"),
    "bool": (7, "<B"),
    "uint64": (10, "<Q"),
    "int64": (11, "<q"),
    "float64": (12, "<d"),
}


def string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(kind: str, content: Any) -> bytes:
    """A typed value: `value("uint32", 7)`, `value("string", "x")`, `value("string[]", ["x"])`."""
    if kind.endswith("[]"):
        return struct.pack("<I", 9) + array(kind[:-2], content)
    return struct.pack("<I", 8 if kind == "string" else TYPE_IDS[kind][0]) + _bare(kind, content)


def array(kind: str, items: list[Any], count: int | None = None) -> bytes:
    if kind.endswith("[]"):
        head, body = struct.pack("<I", 9), b"".join(array(kind[:-2], item) for item in items)
    else:
        head = struct.pack("<I", 8 if kind == "string" else TYPE_IDS[kind][0])
        body = b"".join(_bare(kind, item) for item in items)
    return head + struct.pack("<Q", len(items) if count is None else count) + body


def _bare(kind: str, content: Any) -> bytes:
    return string(content) if kind == "string" else struct.pack(TYPE_IDS[kind][1], content)


def tensor_info(name: str | bytes, dims: list[int], type_id: int, offset: int, num_dims: int | None = None) -> bytes:
    return (
        string(name)
        + struct.pack("<I", len(dims) if num_dims is None else num_dims)
        + b"".join(struct.pack("<Q", dim) for dim in dims)
        + struct.pack("<IQ", type_id, offset)
    )


def gguf_bytes(
    metadata: list[tuple[str | bytes, bytes]] = [],  # noqa: B006
    tensors: list[tuple[str, list[int], int, bytes]] = [],  # noqa: B006
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    num_tensors: int | None = None,
    num_pairs: int | None = None,
    alignment: int = 32,
    infos: list[bytes] | None = None,
) -> bytes:
    """A file. `tensors` are (name, dims in GGUF's order, type id, data); `infos` replaces the tensor infos."""
    data, made = b"", []
    for name, dims, type_id, content in tensors:
        data += bytes(-len(data) % alignment)
        made.append(tensor_info(name, dims, type_id, len(data)))
        data += content
    infos = made if infos is None else infos
    head = magic + struct.pack(
        "<IQQ",
        version,
        len(infos) if num_tensors is None else num_tensors,
        len(metadata) if num_pairs is None else num_pairs,
    )
    head += b"".join(string(key) + content for key, content in metadata) + b"".join(infos)
    return head + bytes(-len(head) % alignment) + data


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
