"""The GGUF reader: what it reads, and what it refuses."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf_writer import array, gguf_bytes, tensor_info, value, write
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import refused

from octavo.errors import ModelFileError
from octavo.weights import ggml_types
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_metadata import GGUFArray
from octavo.weights.gguf_vocabulary import read_vocabulary

SCALARS = {
    "uint8": 200,
    "int8": -100,
    "uint16": 60000,
    "int16": -30000,
    "uint32": 2**32 - 1,
    "int32": -(2**31),
    "float32": 0.5,
    "bool": True,
    "uint64": 2**64 - 1,
    "int64": -(2**63),
    "float64": 1e300,
    "string": "Grüße",
}


def test_the_type_table_is_that_of_the_gguf_package() -> None:
    for kind in ggml_types.BY_ID.values():
        other = gguf.GGMLQuantizationType(kind.id)
        assert other.name.lower() == kind.name
        assert gguf.GGML_QUANT_SIZES[other] == (kind.block_size, kind.block_bytes)


@pytest.mark.parametrize("version", [2, 3])
def test_every_value_type_is_read(tmp_path: Path, version: int) -> None:
    pairs = [(kind, value(kind, content)) for kind, content in SCALARS.items()]
    pairs += [(kind + "[]", value(kind + "[]", [content] * 3)) for kind, content in SCALARS.items()]
    pairs += [("empty", value("string[]", [])), ("no numbers", value("int32[]", []))]
    with GGUFFile(write(tmp_path / "m.gguf", gguf_bytes(pairs, version=version))) as file:
        for kind, content in SCALARS.items():
            assert file.metadata[kind] == content
            assert type(file.metadata[kind]) is type(content)
            held = file.metadata[kind + "[]"]
            assert isinstance(held, GGUFArray)
            assert held.element_type == kind
            assert held.to_list() == [content] * 3
        assert file.metadata.get_strings("empty") == []
        assert len(file.metadata.get_array("no numbers", "int32").to_numpy()) == 0  # type: ignore[union-attr]
        assert file.metadata.get_str("absent") is None
        assert list(file.metadata) == [key for key, _ in pairs]


def test_tensors_are_found_where_the_writer_put_them(tmp_path: Path) -> None:
    a, b = np.arange(6, dtype=np.float32), np.arange(64, dtype=np.float16)
    content = gguf_bytes(
        [("general.alignment", value("uint32", 64))],
        [("a", [3, 2], 0, a.tobytes()), ("b", [64], 1, b.tobytes())],
        alignment=64,
    )
    with GGUFFile(write(tmp_path / "m.gguf", content)) as file:
        assert file.tensor("a").shape == (2, 3)
        assert file.data_offset % 64 == 0
        np.testing.assert_array_equal(file.tensor_data("a").view(np.float32), a)
        np.testing.assert_array_equal(file.tensor_data("b").view(np.float16), b)
        with pytest.raises(ModelFileError, match=r"'c'.*not in the file"):
            file.tensor("c")


def test_views_outlive_close(tmp_path: Path) -> None:
    file = GGUFFile(write(tmp_path / "m.gguf", gguf_bytes([], [("a", [4], 24, b"\1\2\3\4")])))
    view = file.tensor_data("a")
    file.close()
    assert view.tolist() == [1, 2, 3, 4]
    with pytest.raises(ValueError, match="closed"):
        file.tensor_data("a")


def test_files_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("words", ["one", "two"])
    writer.add_tensor("x", np.arange(8, dtype=np.float32).reshape(2, 4))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with GGUFFile(path) as file:
        assert file.metadata.get_int("llama.block_count") == 3
        assert file.metadata.get_strings("words") == ["one", "two"]
        assert file.tensor("x").shape == (2, 4)


@pytest.mark.parametrize(
    ("getter", "kind", "content"),
    [("get_str", "uint32", 1), ("get_int", "bool", True), ("get_bool", "uint8", 1), ("get_float", "uint32", 1)],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, getter: str, kind: str, content: object) -> None:
    with GGUFFile(write(tmp_path / "m.gguf", gguf_bytes([("k", value(kind, content))]))) as file:
        with pytest.raises(ModelFileError, match=r"m\.gguf: metadata 'k': must be"):
            getattr(file.metadata, getter)("k")
        with pytest.raises(ModelFileError, match="must be an array of float32"):
            file.metadata.get_array("k", "float32")


HUGE = 2**63
MALFORMED: dict[str, tuple[bytes, str]] = {
    "magic": (gguf_bytes(magic=b"GGML"), "not with b'GGUF'"),
    "short": (b"GG", "not with b'GGUF'"),
    "version 1": (gguf_bytes(version=1), "version 1"),
    "version 4": (gguf_bytes(version=4), "version 4"),
    "big endian": (gguf_bytes(version=3 << 24), "big endian"),
    "cut header": (gguf_bytes()[:12], "left"),
    "n_kv 2^63": (gguf_bytes(num_pairs=HUGE), "metadata pairs"),
    "n_kv 60000": (gguf_bytes(num_pairs=60000), "needs"),
    "n_tensors 2^63": (gguf_bytes(num_tensors=HUGE), "tensors"),
    "n_tensors 60000": (gguf_bytes(num_tensors=60000), "needs"),
    "key length 2^64": (gguf_bytes([], num_pairs=1)[:24] + struct.pack("<Q", 2**64 - 1) + bytes(64), "string of"),
    "key length past end": (gguf_bytes([], num_pairs=1)[:24] + struct.pack("<Q", 5000) + bytes(64), "needs 5000"),
    "key not utf-8": (gguf_bytes([(b"\xff\xfe", value("uint8", 1))]), "UTF-8"),
    "empty key": (gguf_bytes([("", value("uint8", 1))]), "empty"),
    "key twice": (gguf_bytes([("k", value("uint8", 1))] * 2), "'k'"),
    "value type 13": (gguf_bytes([("k", struct.pack("<IQ", 13, 0))]), "value type 13"),
    "bool 2": (gguf_bytes([("k", value("bool", 2))]), "bool of 2"),
    "string length 2^31": (gguf_bytes([("k", struct.pack("<IQ", 8, 2**31) + bytes(64))]), "a string of 2147483648"),
    "string past end": (gguf_bytes([("k", struct.pack("<IQ", 8, 10000) + bytes(64))]), "needs 10000"),
    "string not utf-8": (gguf_bytes([("k", value("string", b"\xc3("))]), "UTF-8"),
    "array type": (gguf_bytes([("k", struct.pack("<IIQ", 9, 13, 1))]), "element type 13"),
    "array count 2^63": (gguf_bytes([("k", struct.pack("<I", 9) + array("float32", [], HUGE))]), "needs"),
    "array count 2^64-1 u8": (gguf_bytes([("k", struct.pack("<I", 9) + array("uint8", [], 2**64 - 1))]), "needs"),
    "strings count 2^63": (gguf_bytes([("k", struct.pack("<I", 9) + array("string", [], HUGE))]), "at most"),
    "strings count 10^6": (gguf_bytes([("k", struct.pack("<I", 9) + array("string", [], 10**6))]), "needs"),
    "string of array past end": (
        gguf_bytes([("k", struct.pack("<IIQ", 9, 8, 2) + struct.pack("<Q", 2**64 - 1) + bytes(64))]),
        "string 0 has 18446744073709551615 bytes",
    ),
    "last string of array past end": (
        gguf_bytes([("k", struct.pack("<IIQ", 9, 8, 1) + struct.pack("<Q", 5000) + bytes(64))]),
        "string 0 of 1",
    ),
    "token of 100 kB": (gguf_bytes([("k", value("string[]", ["x", "y" * 100_000]))]), "string 1 has 100000 bytes"),
    "deep nesting": (gguf_bytes([("k", value("uint8" + "[]" * 5, [[[[[1]]]]]))]), "nested"),
    "very deep nesting": (
        gguf_bytes([("k", struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 100_000)]),
        "nested",
    ),
    "alignment 0": (gguf_bytes([("general.alignment", value("uint32", 0))]), "power of two"),
    "alignment 24": (gguf_bytes([("general.alignment", value("uint32", 24))]), "power of two"),
    "alignment 2^31": (gguf_bytes([("general.alignment", value("uint32", 0x80000000))]), "power of two"),
    "alignment a string": (gguf_bytes([("general.alignment", value("string", "32"))]), "must be an integer"),
    "dims 5": (gguf_bytes(infos=[tensor_info("t", [1] * 5, 0, 0)]), "'t': has 5 dimensions"),
    "dims 2^32-1": (gguf_bytes(infos=[tensor_info("t", [1], 0, 0, num_dims=2**32 - 1)]), "dimensions"),
    "dims none": (gguf_bytes(infos=[tensor_info("t", [], 0, 0) + bytes(16)]), "0 dimensions"),
    "dim 0": (gguf_bytes(infos=[tensor_info("t", [0, 4], 0, 0)]), "none may be 0"),
    "dims 2^40 each": (gguf_bytes(infos=[tensor_info("t", [2**40] * 4, 0, 0)]), "'t': takes"),
    "dims that wrap to 0": (gguf_bytes(infos=[tensor_info("t", [2**32, 2**32], 0, 0)]), "'t': takes"),
    "SIZE_MAX/4 floats": (gguf_bytes(infos=[tensor_info("t", [(2**64 - 1) // 4], 0, 0)]), "'t': takes"),
    "type 4": (gguf_bytes(infos=[tensor_info("t", [32], 4, 0)]), "type 4"),
    "type 2^32-1": (gguf_bytes(infos=[tensor_info("t", [32], 2**32 - 1, 0)]), "type 4294967295"),
    "half a block": (gguf_bytes(infos=[tensor_info("t", [48], 3, 0)]), "whole q4_1 blocks"),
    "tensor name too long": (gguf_bytes(infos=[tensor_info("t" * 300, [1], 0, 0)]), "300 bytes"),
    "tensor name empty": (gguf_bytes([], [("", [1], 0, bytes(4))]), "empty"),
    "tensor twice": (gguf_bytes([], [("t", [1], 0, bytes(4))] * 2), "twice"),
    "tensor past end": (gguf_bytes([], [("t", [9], 0, bytes(32))]), "pass the end"),
    "tensor offset past end": (gguf_bytes(infos=[tensor_info("t", [1], 0, 2**63)]), "pass the end"),
    "tensor offset odd": (gguf_bytes(infos=[tensor_info("t", [1], 0, 3)]) + bytes(64), "multiple of 32"),
    "tensors overlap": (
        gguf_bytes(infos=[tensor_info("t", [16], 0, 0), tensor_info("u", [1], 0, 32)]) + bytes(64),
        "'u': overlaps tensor 't'",
    ),
    "empty file": (b"", "empty"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, word = MALFORMED[case]
    path = write(tmp_path / "bad.gguf", content)
    refused(lambda: GGUFFile(path), "bad.gguf: ", word, kind=ModelFileError)


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes(
        [("a", value("string[]", ["x", "yz"])), ("b", value("uint16[]", [1, 2])), ("c", value("string", "d"))],
        [("t", [8], 0, bytes(32))],
    )
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            GGUFFile(write(tmp_path / "cut.gguf", whole[:length]))


def test_a_file_full_of_tiny_strings_is_walked_in_time(tmp_path: Path) -> None:
    count = 2**21 + 1
    path = write(tmp_path / "bad.gguf", gguf_bytes([("k", struct.pack("<IIQ", 9, 8, count) + bytes(8 * count))]))
    refused(lambda: GGUFFile(path), "at most", kind=ModelFileError)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    refused(lambda: GGUFFile(tmp_path / "pipe.gguf"), "pipe.gguf", "not a regular file", kind=ModelFileError)
    refused(lambda: GGUFFile(tmp_path), "not a regular file", kind=ModelFileError)
    refused(lambda: GGUFFile(tmp_path / "no.gguf"), "no.gguf", "no such file", kind=ModelFileError)


def _vocabulary(**parts: bytes) -> bytes:
    held = {
        "ggml.model": value("string", "gpt2"),
        "ggml.tokens": value("string[]", ["a", "b", "c"]),
        "ggml.token_type": value("int32[]", [1, 1, 3]),
        "ggml.eos_token_id": value("uint32", 2),
    }
    held |= {key.replace("__", "."): content for key, content in parts.items()}
    return gguf_bytes([("tokenizer." + key, content) for key, content in held.items()])


def test_a_vocabulary_is_read(tmp_path: Path) -> None:
    content = _vocabulary(ggml__merges=value("string[]", ["a b"]), ggml__padding_token_id=value("uint32", 2**32 - 1))
    found = read_vocabulary(GGUFFile(write(tmp_path / "m.gguf", content)))
    assert (found.model, found.tokens, found.merges) == ("gpt2", ["a", "b", "c"], ["a b"])
    assert (found.bos_id, found.eos_id, found.padding_id, found.scores) == (None, 2, None, None)
    assert found.token_types is not None
    assert found.token_types.tolist() == [1, 1, 3]


@pytest.mark.parametrize(
    ("parts", "word"),
    [
        ({"ggml__scores": value("uint8[]", [1, 2, 3])}, "'tokenizer.ggml.scores': must be an array of float32"),
        ({"ggml__scores": value("float32[]", [1.0])}, "1 elements for 3 tokens"),
        ({"ggml__token_type": value("string[]", ["1", "1", "1"])}, "must be an array of int32"),
        ({"ggml__tokens": value("int32[]", [1, 2, 3])}, "must be an array of string"),
        ({"ggml__tokens": value("string", "abc")}, "must be an array of string"),
        ({"ggml__tokens": value("string[]", [])}, "0 tokens"),
        ({"ggml__tokens": value("string[]", [b"\xff", "b", "c"])}, "UTF-8"),
        ({"ggml__merges": value("string[][]", [["a"], ["b"]])}, "must be an array of string"),
        ({"ggml__eos_token_id": value("uint32", 3)}, "is 3; the vocabulary has 3"),
        ({"ggml__bos_token_id": value("int32", -7)}, "is -7"),
        ({"ggml__bos_token_id": value("string", "1")}, "must be an integer"),
        ({"chat_template": value("uint8", 1)}, "must be a string"),
    ],
)
def test_a_malformed_vocabulary_is_refused(tmp_path: Path, parts: dict[str, bytes], word: str) -> None:
    file = GGUFFile(write(tmp_path / "bad.gguf", _vocabulary(**parts)))
    refused(lambda: read_vocabulary(file), "bad.gguf", word, kind=ModelFileError)


SOUND = gguf_bytes(
    [
        ("general.architecture", value("string", "llama")),
        ("tokenizer.ggml.model", value("string", "gpt2")),
        ("tokenizer.ggml.tokens", value("string[]", ["a", "b"])),
        ("tokenizer.ggml.scores", value("float32[]", [0.5, 1.5])),
        ("nested", value("int8[][]", [[1], [2, 3]])),
    ],
    [("t", [32, 2], 3, bytes(40)), ("u", [4], 0, bytes(16))],
)


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), num_changes=st.integers(1, 8), cut=st.booleans())
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_changes: int, cut: bool
) -> None:
    rng = random.Random(seed)
    content = bytearray(SOUND)
    for _ in range(num_changes):
        width = rng.choice((1, 1, 4, 8))
        at = rng.randrange(len(content) - width)
        content[at : at + width] = rng.choice(
            (rng.randbytes(width), bytes(width), b"\xff" * width, rng.randrange(64).to_bytes(width, "little"))
        )
    if cut:
        del content[rng.randrange(len(content)) :]
    path = write(tmp_path_factory.getbasetemp() / "mutated.gguf", bytes(content))
    try:
        with GGUFFile(path) as file:
            for name, tensor in file.tensors.items():
                assert len(file.tensor_data(name)) == tensor.num_bytes
            read_vocabulary(file)
    except ModelFileError as error:
        assert error.file == "mutated.gguf"
