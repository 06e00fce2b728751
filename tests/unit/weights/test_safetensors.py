"""The safetensors reader: what it reads, and what it refuses."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from gguf_writer import write
from hypothesis import given, settings
from hypothesis import strategies as st
from limits import refused

from octavo.errors import ModelFileError
from octavo.weights import safetensors as ours
from octavo.weights.safetensors import SafeTensorsFile


def file_bytes(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def entry(begin: int, end: int, shape: list[Any] | None = None, dtype: str = "F32") -> dict[str, Any]:
    return {
        "dtype": dtype,
        "shape": [(end - begin) // 4] if shape is None else shape,
        "data_offsets": [begin, end],
    }


def test_files_of_the_safetensors_library_are_read(tmp_path: Path) -> None:
    tensors = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.array(3, np.float16),
        "empty": np.zeros((0, 4), np.float32),
        "ids": np.arange(4, dtype=np.int64),
    }
    safetensors.numpy.save_file(tensors, tmp_path / "m.safetensors", metadata={"format": "pt", 'a "quoted" key': "{"})
    with SafeTensorsFile(tmp_path / "m.safetensors") as file:
        assert set(file.tensors) == set(tensors)
        for name, values in tensors.items():
            assert file.tensor(name).shape == values.shape
            np.testing.assert_array_equal(file.tensor_data(name), values.reshape(-1).view(np.uint8))
        with pytest.raises(ModelFileError, match=r"'b'.*not in the file"):
            file.tensor("b")
        view = file.tensor_data("ids")
    assert view.view(np.int64).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["?", "u1", "i1", "i2", "u2", "f2", "i4", "u4", "f4", "i8", "u8", "f8"])
def test_numpy_dtypes_have_the_size_we_say(tmp_path: Path, kind: str) -> None:
    values = np.ones(3, kind)
    safetensors.numpy.save_file({"t": values}, tmp_path / "m.safetensors")
    with SafeTensorsFile(tmp_path / "m.safetensors") as file:
        assert file.tensor("t").num_bytes == values.nbytes


def many(count: int) -> bytes:
    body = ",".join(f'"{i}":{{"dtype":"F32","shape":[],"data_offsets":[{4 * i},{4 * i + 4}]}}' for i in range(count))
    return file_bytes(b"{" + body.encode() + b"}", bytes(4 * count))


def twice(inner: str) -> bytes:
    return (
        b'{"t":'
        + inner.encode()
        + b',"u":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},"t":'
        + inner.encode()
        + b"}"
    )


ONE = '{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "too short": (b"\1\0\0", "3 bytes"),
    "header past end": (file_bytes({}, length=1000), "is 1000 bytes long"),
    "header of 100 MB": (file_bytes({}, length=100_000_000) + bytes(1000), "100000000 bytes"),
    "header of 2^64-1": (file_bytes({}, length=2**64 - 1), "18446744073709551615 bytes"),
    "header of 0": (file_bytes(b""), "'{'"),
    "not an object": (file_bytes(b"[1]"), "'{'"),
    "not JSON": (file_bytes(b"{x}"), "JSON"),
    "cut JSON": (file_bytes(b'{"t":'), "JSON"),
    "not UTF-8": (file_bytes(b'{"\xff\xfe":1}'), "header"),
    "nested deep": (file_bytes(b'{"t":' + b"[" * 1_000_000), ""),
    "nested deep and closed": (file_bytes(b'{"t":' + b"[" * 500_000 + b"]" * 500_000 + b"}"), ""),
    "nested objects": (file_bytes(b'{"a":' * 500_000 + b"1" + b"}" * 500_000), ""),
    "value is a list": (file_bytes({"t": [1]}), "'t'"),
    "value is null": (file_bytes({"t": None}), "'t'"),
    "a million empty lists": (file_bytes(b'{"t":[' + b"[]," * 1_000_000 + b"[]]}"), "'t'"),
    "dtype missing": (file_bytes({"t": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)), "'t'"),
    "unknown field": (file_bytes({"t": entry(0, 4) | {"x": 1}}, bytes(4)), "'t'"),
    "dtype unknown": (file_bytes({"t": entry(0, 4, dtype="F31")}, bytes(4)), "'F31' does not exist"),
    "dtype a number": (file_bytes({"t": entry(0, 4) | {"dtype": 4}}, bytes(4)), "'t'"),
    "shape a string": (file_bytes({"t": entry(0, 4) | {"shape": "1"}}, bytes(4)), "'t'"),
    "shape negative": (file_bytes({"t": entry(0, 4, shape=[-1])}, bytes(4)), "'t'"),
    "shape a float": (file_bytes({"t": entry(0, 4, shape=[1.5])}, bytes(4)), "'t'"),
    "shape of 2^40 each": (file_bytes({"t": entry(0, 4, shape=[2**40] * 4)}, bytes(4)), "'t'"),
    "shape of 10^30": (file_bytes({"t": entry(0, 4, shape=[10**30])}, bytes(4)), "'t'"),
    "shape of 10^400": (file_bytes({"t": entry(0, 4, shape=[10**400])}, bytes(4)), "'t'"),
    "shape of 5000 digits": (
        file_bytes(json.dumps({"t": entry(0, 4, shape=[7])}).replace("7", "7" * 5000).encode()),
        "'t'",
    ),
    "offset of 2^64": (file_bytes({"t": entry(0, 2**64, shape=[1])}, bytes(4)), "'t'"),
    "sixteen dims of 2^62": (file_bytes({"t": entry(0, 4, shape=[2**62] * 16)}, bytes(4)), "'t'"),
    "shape that wraps": (file_bytes({"t": entry(0, 4, shape=[2**32, 2**32 + 1])}, bytes(4)), "'t'"),
    "a thousand dims": (file_bytes({"t": entry(0, 4, shape=[1] * 1000)}, bytes(4)), "'t'"),
    "size and shape differ": (file_bytes({"t": entry(0, 8, shape=[1])}, bytes(8)), "takes 4 bytes, not 8"),
    "offsets reversed": (file_bytes({"t": entry(4, 0, shape=[1])}, bytes(4)), "'t'"),
    "offsets negative": (file_bytes({"t": entry(-4, 0, shape=[1])}, bytes(4)), "'t'"),
    "three offsets": (file_bytes({"t": entry(0, 4) | {"data_offsets": [0, 2, 4]}}, bytes(4)), "'t'"),
    "past the end": (file_bytes({"t": entry(0, 8)}, bytes(4)), "'t': ends at byte"),
    "overlap": (file_bytes({"t": entry(0, 8), "u": entry(4, 12)}, bytes(12)), "'u': overlaps"),
    "same range": (file_bytes({"t": entry(0, 8), "u": entry(0, 8)}, bytes(8)), "'u': overlaps"),
    "gap": (file_bytes({"t": entry(0, 4), "u": entry(8, 12)}, bytes(12)), "'u': leaves a gap"),
    "gap at the start": (file_bytes({"t": entry(4, 8)}, bytes(8)), "'t': leaves a gap"),
    "bytes left over": (file_bytes({"t": entry(0, 4)}, bytes(8)), "4 bytes after the last tensor"),
    "name twice": (file_bytes(twice(ONE), bytes(8)), '"t": stands twice'),
    "name twice, then junk": (file_bytes(b'{"t":"x","t":' + ONE.encode() + b"}", bytes(4)), "twice"),
    "metadata not strings": (file_bytes({"__metadata__": {"a": 1}}), "__metadata__"),
    "metadata a list": (file_bytes({"__metadata__": []}), "__metadata__"),
    "too many tensors": (many(ours.MAX_TENSORS + 1), "at most 65536"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_file_is_refused_by_name(tmp_path: Path, case: str) -> None:
    content, word = MALFORMED[case]
    path = write(tmp_path / "bad.safetensors", content)
    # The header itself is read as one piece; nothing may grow far beyond it.
    refused(lambda: SafeTensorsFile(path), "bad.safetensors: ", word, kind=ModelFileError, max_bytes=32 << 20)


def test_as_many_tensors_as_allowed_are_read(tmp_path: Path) -> None:
    with SafeTensorsFile(write(tmp_path / "m.safetensors", many(3000))) as file:
        assert len(file.tensors) == 3000


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    whole = file_bytes({"__metadata__": {"k": "v"}, "t": entry(0, 8), "u": entry(8, 12)}, bytes(12))
    for length in range(len(whole)):
        with pytest.raises(ModelFileError):
            SafeTensorsFile(write(tmp_path / "cut.safetensors", whole[:length]))


SOUND = file_bytes({"__metadata__": {"k": "v"}, "t": entry(0, 8), "u": entry(8, 24, [2, 2])}, bytes(24))


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), num_changes=st.integers(1, 6), cut=st.booleans())
def test_mutated_files_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, seed: int, num_changes: int, cut: bool
) -> None:
    rng = random.Random(seed)
    content = bytearray(SOUND)
    for _ in range(num_changes):
        at = rng.randrange(len(content))
        content[at : at + 1] = rng.choice((rng.randbytes(1), b"", rng.choice(b'{}[],:"0129.-e\\').to_bytes(), b"99"))
    if rng.random() < 0.7:  # let the changes be about the JSON, not the length
        length = max(0, len(content) - 32)
        content[:8] = struct.pack("<Q", length)
    if cut:
        del content[rng.randrange(len(content)) :]
    path = write(tmp_path_factory.getbasetemp() / "mutated.safetensors", bytes(content))
    try:
        with SafeTensorsFile(path) as file:
            for name, tensor in file.tensors.items():
                assert len(file.tensor_data(name)) == tensor.num_bytes
    except ModelFileError as error:
        assert error.file == "mutated.safetensors"
