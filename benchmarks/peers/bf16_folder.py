"""A GGUF file as a Hugging Face folder in bfloat16, so that every engine serves the very same weights and tokens.

    python benchmarks/peers/bf16_folder.py MODEL.gguf FOLDER

Octavo's own reader expands the tensors and writes the tokenizer; nothing else is needed. (Converters elsewhere have
lost the splitting of digits of this tokenizer.)
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from octavo.engine.gguf_tokenizer import tokenizer_json
from octavo.weights.checkpoint import Checkpoint
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_checkpoint import GGUFCheckpoint
from octavo.weights.gguf_vocabulary import read_vocabulary
from octavo.weights.naming import Naming


def folder_name(name: str, stored: Naming, wanted: Naming) -> str:
    """What a tensor is called in a Hugging Face folder. For decoders whose parts are the same ones in both."""
    module, _, kind = name.rpartition(".")
    once = {stored.embedding: wanted.embedding, stored.norm: wanted.norm}
    if module == stored.head:
        return f"{wanted.head}.{kind}"
    if module in once:
        return f"{wanted.roots[0]}{once[module]}.{kind}"
    before, after = stored.layer.split("{}")
    number, _, part = module.removeprefix(before).partition(after)
    parts = dict(zip(_parts(stored), _parts(wanted), strict=True))
    return f"{wanted.roots[0]}{wanted.layer.format(number)}{parts[part]}.{kind}"


def _parts(naming: Naming) -> tuple[str, ...]:
    """Modules of a layer."""
    norms = (*naming.norms, naming.query_norm, naming.key_norm)
    return (*norms, *naming.qkv, naming.output, *naming.up, naming.down)


def write_safetensors(path: Path, checkpoint: Checkpoint) -> None:
    """Every tensor in bfloat16, one after another."""
    names = sorted(checkpoint.names())
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        shape = checkpoint.info(name).shape
        start, end = end, end + 2 * _count(shape)
        header[folder_name(name, checkpoint.naming or Naming(), Naming())] = {
            "dtype": "BF16",
            "shape": list(shape),
            "data_offsets": [start, end],
        }
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as out:
        out.write(len(head).to_bytes(8, "little") + head)
        for name in names:
            out.write(checkpoint.read(name, "bfloat16").tobytes())


def _count(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product


def write_folder(source: Path, folder: Path) -> None:
    """Weights, config, tokenizer and chat template of the GGUF file `source`."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = GGUFCheckpoint(source)
    files = checkpoint.tokenizer_files()
    file = GGUFFile(source)
    tokenizer = tokenizer_json(read_vocabulary(file), source.name)
    file.close()
    write_safetensors(folder / "model.safetensors", checkpoint)
    config = {**checkpoint.config, "dtype": "bfloat16"}
    about_tokens = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": files.bos_token,
        "eos_token": files.eos_token,
        "add_bos_token": files.add_bos,
        "chat_template": files.chat_template,
        "model_max_length": checkpoint.config["max_position_embeddings"],
    }
    checkpoint.close()
    texts = {"config.json": config, "tokenizer.json": tokenizer, "tokenizer_config.json": about_tokens}
    for name, data in texts.items():
        (folder / name).write_text(json.dumps(data, ensure_ascii=False, indent=None if name == "tokenizer.json" else 1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("gguf", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    write_folder(args.gguf, args.folder)
