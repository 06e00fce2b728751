"""Rewrite a SentencePiece BPE model as a tokenizer.json: python convert_sentencepiece.py tok512.model tokenizer.json

How tests/data/tinystories-llama-280k/tokenizer.json was made. Spaces are kept as they are, as Hugging Face's Llama
tokenizers keep them, so that text survives the round trip; SentencePiece itself would drop repeated ones.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from octavo.engine.gguf_tokenizer import tokenizer_json
from octavo.weights.gguf_vocabulary import GGUFVocabulary


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """(field number, value) pairs of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        if tag & 7 == 0:
            number, at = _varint(data, at)
            yield tag >> 3, number
            continue
        length, at = (4, at) if tag & 7 == 5 else _varint(data, at)
        yield tag >> 3, data[at : at + length]
        at += length


def read_pieces(data: bytes) -> list[tuple[str, float, int]]:
    """(piece, score, type) of each piece of a sentencepiece_model.proto ModelProto."""
    pieces = []
    for field, message in _fields(data):
        if field == 1 and isinstance(message, bytes):
            parts = dict(_fields(message))
            spelling, score = parts[1], parts.get(2, b"\0\0\0\0")
            assert isinstance(spelling, bytes) and isinstance(score, bytes)
            pieces.append((spelling.decode(), struct.unpack("<f", score)[0], int(parts.get(3, 1))))
    return pieces


def convert(model: Path) -> dict[str, object]:
    pieces = read_pieces(model.read_bytes())
    vocabulary = GGUFVocabulary(
        model="llama",
        pre=None,
        tokens=[piece for piece, _, _ in pieces],
        token_types=np.array([kind for *_, kind in pieces], np.int32),
        scores=np.array([score for _, score, _ in pieces], np.float32),
        merges=[],
        bos_id=1,
        eos_id=2,
        unknown_id=0,
        padding_id=None,
        add_bos=True,
        add_eos=False,
        add_space_prefix=True,
        chat_template=None,
    )
    return tokenizer_json(vocabulary, model.name)


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(convert(Path(sys.argv[1])), ensure_ascii=False, separators=(",", ":")))
