"""Checkpoints that went wrong: small sound ones, each with one thing in them replaced by something hostile.

A checkpoint is the contents of its files by name, so that a mutation is a function from contents to contents.
"""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from golden.format_cases import PACKED, ROWS, sized
from octavo.models.families import FAMILIES
from octavo.models.family import LLAMA_DEFAULTS
from support import quantized
from support.gguf_models import write_gguf
from support.paths import TESTS, TINYSTORIES
from support.tiny_models import TinyFamily, TinyLlama, tensors, write_tiny_llama

Files = dict[str, bytes]
WEIGHTS, CONFIG, INDEX, TOKENIZER = "model.safetensors", "config.json", "model.safetensors.index.json", "tokenizer.json"
GGUF = "model.gguf"
VOCAB = 512
"""Of TinyStories' tokenizer, which all of these have unless they are to have another."""

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 10**30, -(10**30), 0.5, -0.0, 1e308, 1e-300, float("nan")),
    *("", "x", "4", "a\n\x1b[31mb", "é" * 300, [], [1], [None], [[1]], [-1, 1], [2**40] * 2, {}, {"a": {"b": None}}),
)
"""Values for any place in a JSON file."""
RARE_KEYS = (
    *("head_dim", "layer_types", "sliding_window", "rope_scaling", "rope_parameters", "partial_rotary_factor"),
    *("original_max_position_embeddings", "num_experts", "mlp_only_layers", "no_rope_layers", "torch_dtype"),
    *("quantization_config", "auto_map", "attention_bias", "mlp_bias", "num_key_value_heads", "use_sliding_window"),
)
ROPES: tuple[dict[str, Any], ...] = (
    {"rope_type": "yarn"},
    {"rope_type": "yarn", "factor": 1e15, "original_max_position_embeddings": 1e-12},
    {"rope_type": "dynamic", "factor": 1e-12},
    {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1},
    {"rope_type": "longrope", "short_factor": [1], "long_factor": "x"},
    {"rope_type": ["linear"], "factor": {}},
    {"type": "su", "short_factor": [0, -1]},
)


def bases(root: Path) -> dict[str, Files]:
    """Sound checkpoints by name. `root` is an empty folder to make them in."""
    found = {"llama": _folder(root / "llama", TinyLlama(vocab_size=VOCAB))}
    for name in ("mistral", "gemma3", "phi3", "falcon-40b", "gpt2", "qwen2-moe", "smollm3"):
        found[name] = _folder(root / name, msgspec.structs.replace(ROWS[name].model, vocab_size=VOCAB))
    for column in PACKED:
        found[column] = _packed(root, column)
    found["sharded"] = _sharded(found["llama"])
    found["sentencepiece"] = _with_tokenizer(found["llama"], {"tokenizer.model": "bpe.model"})
    found["unigram"] = _with_tokenizer(found["llama"], {"tokenizer.model": "normalising.model"})
    found["merges"] = _with_tokenizer(found["gpt2"], {"vocab.json": "vocab.json", "merges.txt": "merges.txt"})
    for arch, row in (("llama", "llama"), ("gemma3", "gemma3"), ("qwen2moe", "qwen2-moe"), ("gpt2", "gpt2")):
        path = write_gguf(root / f"{arch}.gguf", msgspec.structs.replace(ROWS[row].model, vocab_size=260), arch)
        found[f"gguf {arch}"] = {GGUF: path.read_bytes()}
    return found


def write(folder: Path, files: Files) -> Path:
    """Write a checkpoint; what Octavo is to be given."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder / GGUF if GGUF in files else folder


def mutated(files: Files, rng: random.Random) -> tuple[str, Files]:
    """The checkpoint with something in it replaced, and what that was, for messages."""
    files = dict(files)
    if GGUF in files:
        at = rng.choice((_flip, _flip, _number))(files, GGUF, rng, _gguf_header_bytes(files[GGUF]))
        return f"{GGUF} {at}", files
    name = rng.choice(sorted(files))
    if name.endswith(".json") and rng.random() < 0.75:
        return f"{name} {_json_value(files, name, rng)}", files
    if name == WEIGHTS and rng.random() < 0.6:
        return f"{name} {_tensor(files, rng)}", files
    header = 8 + int.from_bytes(files[name][:8], "little") if name.endswith(".safetensors") else len(files[name])
    return f"{name} {rng.choice((_flip, _number))(files, name, rng, header)}", files


SPOIL: dict[str, Callable[[Path], object]] = {
    "is missing": lambda path: None,
    "is a folder": lambda path: path.mkdir(),
    "is a pipe": lambda path: os.mkfifo(path),
    "is empty": lambda path: path.write_bytes(b""),
    "links to itself": lambda path: path.symlink_to(path.name),
    "links to nothing": lambda path: path.symlink_to("nothing"),
    "is endless": lambda path: path.symlink_to("/dev/zero"),
    "is not UTF-8": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "is null": lambda path: path.write_bytes(b"null"),
    "is a list": lambda path: path.write_bytes(b"[1]"),
    "is huge": lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 1 << 40),
}
"""What can stand in a file's place."""


def spoilt(folder: Path, files: Files, name: str, how: str) -> Path:
    """A written checkpoint one of whose files is no such file."""
    path = write(folder, {other: content for other, content in files.items() if other != name})
    SPOIL[how](folder / name)
    return path


# ---- sound ones


def _folder(path: Path, model: TinyLlama | TinyFamily) -> Files:
    return _read(write_tiny_llama(path, model)) | _read(TINYSTORIES, TOKENIZER, "tokenizer_config.json")


def _read(folder: Path, *names: str) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if not names or path.name in names}


def _packed(root: Path, column: str) -> Files:
    """A Llama with the matrices of its layers in a format."""
    case = quantized.CASES[PACKED[column]]
    model = sized(msgspec.structs.replace(ROWS["llama"].model, vocab_size=VOCAB), 16)
    rng = np.random.default_rng(7)
    held: quantized.Tensors = {}
    for name, values in tensors(model).items():
        if ".layers." not in name or values.ndim != 2:
            held[name] = ("F32", values)
            continue
        made = quantized.as_usual(case.write(rng, *values.shape))
        held |= {f"{name.removesuffix('.weight')}.{ending}": each for ending, each in made.tensors.items()}
    quantized.save(root / "packed.safetensors", held)
    config = json.dumps(model.config() | {"quantization_config": case.config}).encode()
    files = {CONFIG: config, WEIGHTS: (root / "packed.safetensors").read_bytes()}
    return files | _read(TINYSTORIES, TOKENIZER, "tokenizer_config.json")


def _sharded(files: Files) -> Files:
    header, data = split(files[WEIGHTS])
    halves: tuple[dict[str, Any], ...] = ({}, {})
    for i, (name, entry) in enumerate(header.items()):
        halves[i % 2][name] = (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
    names = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    shards = {file: joined(half) for file, half in zip(names, halves, strict=True)}
    weight_map = {name: file for file, half in zip(names, halves, strict=True) for name in half}
    rest = {name: content for name, content in files.items() if name != WEIGHTS}
    return {**rest, **shards, INDEX: json.dumps({"weight_map": weight_map}).encode()}


def _with_tokenizer(files: Files, stored: dict[str, str]) -> Files:
    rest = {name: files[name] for name in (CONFIG, WEIGHTS)}
    return rest | {name: (TESTS / "data" / "tokenizers" / file).read_bytes() for name, file in stored.items()}


# ---- safetensors as parts


def split(raw: bytes) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    length = int.from_bytes(raw[:8], "little")
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(held: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    """A safetensors file of tensors: dtype, shape, bytes."""
    header: dict[str, Any] = {}
    data = b""
    for name, (dtype, shape, content) in held.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    return with_header(header, data)


def with_header(header: dict[str, Any], data: bytes) -> bytes:
    raw = json.dumps(header).encode()
    return len(raw).to_bytes(8, "little") + raw + data


# ---- mutations


def _flip(files: Files, name: str, rng: random.Random, header: int) -> str:
    """Some bytes of the header become others."""
    content, places = bytearray(files[name]), []
    for _ in range(rng.randint(1, 3)):
        width = rng.choice((1, 1, 2, 4, 8))
        at = rng.randrange(max(1, header - width))
        content[at : at + width] = rng.choice((rng.randbytes(width), bytes(width), b"\xff" * width))
        places.append(f"{at}+{width}")
    return _put(files, name, bytes(content), f"bytes {', '.join(places)}")


def _number(files: Files, name: str, rng: random.Random, header: int) -> str:
    """A number of the header becomes another, or the file ends early."""
    content = bytearray(files[name])
    if rng.random() < 0.3:
        at = rng.randrange(len(content))
        return _put(files, name, bytes(content[:at]), f"cut at {at}")
    value = rng.choice((0, 1, 7, 255, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1))
    at = rng.randrange(max(1, header - 8))
    content[at : at + 8] = struct.pack("<Q", value)
    return _put(files, name, bytes(content), f"{value} at {at}")


def _json_value(files: Files, name: str, rng: random.Random) -> str:
    """A value anywhere in a JSON file becomes a hostile one, or goes, or a key that is seldom there comes."""
    tree = json.loads(files[name])
    places = list(_places(tree))
    value = copy.deepcopy(rng.choice(HOSTILE))
    if name == CONFIG and rng.random() < 0.4:
        family = FAMILIES[tree["architectures"][0]]
        rare = sorted({*RARE_KEYS, *LLAMA_DEFAULTS, *family.defaults, *family.refused})
        place: tuple[Any, ...] = (rng.choice(rare),)
        if place[0] in ("rope_scaling", "rope_parameters") and rng.random() < 0.7:
            value = copy.deepcopy(rng.choice(ROPES))
    else:
        # Long lists (a vocabulary) hold most places; those high up matter as much.
        depth = rng.randint(1, max(map(len, places)))
        place = rng.choice([place for place in places if len(place) <= depth])
    holder = tree
    for key in place[:-1]:
        holder = holder[key]
    if rng.random() < 0.1 and place[-1] in (holder if isinstance(holder, dict) else range(len(holder))):
        del holder[place[-1]]
        return _put(files, name, json.dumps(tree).encode(), f"without {place}")
    holder[place[-1]] = value
    return _put(files, name, json.dumps(tree).encode(), f"{place} = {value!r}")


def _places(node: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*above, key)
        yield from _places(value, (*above, key))


def _tensor(files: Files, rng: random.Random) -> str:
    """A tensor gets another dtype, shape or content, or goes, or comes."""
    header, data = split(files[WEIGHTS])
    held = {name: (e["dtype"], e["shape"], data[slice(*e["data_offsets"])]) for name, e in header.items()}
    name = rng.choice(sorted(held))
    dtype, shape, content = held[name]
    what = rng.choice(("content", "shape", "gone", "more", "entry"))
    if what == "content":
        held[name] = dtype, shape, bytes([rng.choice((0, 0x7F, 0x80, 0xFF))]) * len(content)
    elif what == "shape":
        widths = {"F32": 4, "F16": 2, "I32": 4, "U8": 1, "I8": 1, "F8_E4M3": 1, "I64": 8, "BOOL": 1}
        dtype = rng.choice(sorted(widths))
        shape = rng.choice(([], [0], [1], [64], [64, 64], [64, 1], [8, 64], [2], [0, 5], shape[::-1], [*shape, 1]))
        held[name] = dtype, shape, bytes(int(np.prod(shape)) * widths[dtype])
    elif what == "gone":
        del held[name]
    elif what == "more":
        held[name.replace("weight", rng.choice(("bias", "scale", "x\n")))] = "F32", [1], bytes(4)
    else:
        key, value = rng.choice(("dtype", "shape", "data_offsets", "more")), rng.choice(HOSTILE)
        header[name][key] = value
        return _put(files, WEIGHTS, with_header(header, data), f"{name}.{key} = {value!r}")
    return _put(files, WEIGHTS, joined(held), f"{name}: {what} {dtype} {shape}")


def _put(files: Files, name: str, content: bytes, what: str) -> str:
    files[name] = content
    return what


def _gguf_header_bytes(raw: bytes) -> int:
    """Bytes up to the last tensor's description, or nearly."""
    return raw.rfind(b"blk.") + 64
