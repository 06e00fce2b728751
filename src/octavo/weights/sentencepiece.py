"""Reads a SentencePiece model file, a protobuf (sentencepiece_model.proto), without the library and within bounds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.files import read_small

MAX_MODEL_BYTES = 64 << 20
MAX_PIECES = 1 << 20
MAX_PIECE_BYTES = 1 << 12

UNIGRAM, BPE = "unigram", "bpe"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of pieces."""
_MODEL_TYPES = {1: UNIGRAM, 2: BPE, 3: "word", 4: "char"}
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class SentencePieceModel(msgspec.Struct, frozen=True, kw_only=True):
    """A vocabulary and how text becomes pieces of it. Lists are as long as `pieces`."""

    kind: str
    """"bpe" or "unigram"."""
    pieces: list[str]
    scores: list[float]
    types: list[int]
    unknown_id: int | None
    bos_id: int | None = None
    eos_id: int | None = None
    byte_fallback: bool
    add_dummy_prefix: bool
    """Whether a text gets a space in front."""
    remove_extra_whitespaces: bool
    """Whether spaces around a text are dropped, and runs of them become one."""
    charsmap: bytes = b""
    """The compiled normaliser; empty for none."""


def read_sentencepiece(path: Path) -> SentencePieceModel:
    """The model in a file.

    Raises:
        ModelFileError: If it is no such protobuf, or contradicts itself.
        UnsupportedModelError: If it makes pieces in a way that Octavo does not have.
    """
    return parse_sentencepiece(read_small(path, MAX_MODEL_BYTES), path.name)


def parse_sentencepiece(data: bytes, file: str) -> SentencePieceModel:
    """The same of the file's bytes."""
    try:
        return _parse(data, file)
    except (IndexError, struct.error, UnicodeDecodeError, _NoProtobufError):
        raise ModelFileError(file, "file", "is not a SentencePiece model, or is cut off") from None


class _NoProtobufError(Exception):
    """The bytes are no protobuf message."""


class _Message:
    """The fields of a message. Of one that stands twice the last counts, as protobuf has it."""

    def __init__(self, data: bytes) -> None:
        self._fields = dict(_fields(data))

    def integer(self, field: int, default: int) -> int:
        value = self._fields.get(field, default)
        if not isinstance(value, int):
            raise _NoProtobufError
        return value - (1 << 64) if value >> 63 else value

    def data(self, field: int, default: bytes = b"") -> bytes:
        value = self._fields.get(field, default)
        if not isinstance(value, bytes):
            raise _NoProtobufError
        return value


def _parse(data: bytes, file: str) -> SentencePieceModel:
    pieces: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer, normalizer = _Message(b""), _Message(b"")
    for field, value in _fields(data):
        if field == 1 and isinstance(value, bytes):
            if len(pieces) == MAX_PIECES:
                raise ModelFileError(file, "pieces", f"are more than {MAX_PIECES}")
            piece = _Message(value)
            pieces.append(_piece(piece.data(1), file, len(pieces)))
            scores.append(struct.unpack("<f", piece.data(2, b"\0\0\0\0"))[0])
            types.append(piece.integer(3, NORMAL))
        elif field in (2, 3) and isinstance(value, bytes):
            if field == 2:
                trainer = _Message(value)
            else:
                normalizer = _Message(value)
    if not pieces:
        raise _NoProtobufError
    kind = _MODEL_TYPES.get(trainer.integer(3, 1), "unknown")
    if kind not in (UNIGRAM, BPE):
        raise UnsupportedModelError(f"{file}: a SentencePiece model of {kind} pieces; supported are bpe and unigram")
    if trainer.integer(24, 0) or not normalizer.integer(5, 1):
        raise UnsupportedModelError(f"{file}: a SentencePiece model that writes spaces as suffixes, or not at all")
    return SentencePieceModel(
        kind=kind,
        pieces=pieces,
        scores=scores,
        types=types,
        unknown_id=_special(types, UNKNOWN, trainer.integer(40, 0)),
        bos_id=_special(types, CONTROL, trainer.integer(41, 1)),
        eos_id=_special(types, CONTROL, trainer.integer(42, 2)),
        byte_fallback=bool(trainer.integer(35, 0)),
        add_dummy_prefix=bool(normalizer.integer(3, 1)),
        remove_extra_whitespaces=bool(normalizer.integer(4, 1)),
        charsmap=normalizer.data(2),
    )


def _piece(raw: bytes, file: str, index: int) -> str:
    if not 1 <= len(raw) <= MAX_PIECE_BYTES:
        raise ModelFileError(file, f"piece {index}", f"has {len(raw)} bytes; must be 1 to {MAX_PIECE_BYTES}")
    return raw.decode()


def _special(types: list[int], kind: int, index: int) -> int | None:
    """The id if there is a piece of that kind: files name defaults that are not there."""
    return index if 0 <= index < len(types) and types[index] == kind else None


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) of a message; fixed-size numbers as their bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise _NoProtobufError
        if size > len(data) - at:
            raise _NoProtobufError
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise _NoProtobufError
