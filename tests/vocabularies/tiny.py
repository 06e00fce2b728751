"""The small tokenizers of each kind in tests/data/tokenizers, and how Octavo loads them."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

from octavo.engine.tokenizer import Tokenizer
from octavo.weights.tokenizer_files import read_tokenizer_files
from support.paths import TESTS
from support.wild_texts import wild_texts

DATA = TESTS / "data" / "tokenizers"
GOLDEN = DATA / "golden.json"
FILES: dict[str, tuple[str, dict[str, str], dict[str, Any]]] = {
    "gpt2": ("gpt2", {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, {"tokenizer_class": "GPT2Tokenizer"}),
    "opt": (
        "opt",
        {"vocab.json": "opt-vocab.json", "merges.txt": "merges.txt"},
        {"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True, "bos_token": "</s>", "eos_token": "</s>",
         "unk_token": "</s>", "pad_token": "<pad>"},
    ),
    "qwen2": ("qwen2", {"vocab.json": "vocab.json", "merges.txt": "merges.txt"}, {"tokenizer_class": "Qwen2Tokenizer"}),
    "llama": (
        "llama",
        {"tokenizer.model": "bpe.model"},
        {"tokenizer_class": "LlamaTokenizer", "legacy": True, "add_bos_token": True, "bos_token": "<s>",
         "eos_token": "</s>", "unk_token": "<unk>"},
    ),
    "unigram": ("t5", {"tokenizer.model": "unigram.model"}, {}),
    "llama3": ("llama", {"tokenizer.model": "ranks.tiktoken"}, {}),
    "qwen": ("qwen", {"qwen.tiktoken": "ranks.tiktoken"}, {}),
    "tekken": ("mistral", {"tekken.json": "tekken.json"}, {}),
}  # fmt: skip
"""Name -> (model_type, names in a folder -> names here, tokenizer_config.json)."""
WORDS = ["<s>", "</s>", "<unk>", "<sep>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>", "[INST]", "<pad>"]
"""Control tokens of all of them, to be met as text."""


def texts(name: str, seed: int, count: int) -> list[str]:
    """Hard texts. For the unigram model without those that have two cuts of nearly one score: runs of one sign, and the
    sign for a space written out."""
    found = wild_texts(seed, count, WORDS)
    return [text for text in found if not re.search(r"([^\w\s])\1\1|▁", text)] if name == "unigram" else found


def folder(name: str, where: Path) -> Path:
    """A Hugging Face folder with the tokenizer of that name."""
    model_type, files, config = FILES[name]
    path = where / name
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": model_type}))
    if config:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    for target, source in files.items():
        (path / target).write_bytes(_content(source))
    return path


def load(name: str, where: Path) -> Tokenizer:
    return Tokenizer.load(read_tokenizer_files(folder(name, where), FILES[name][0]))


def _content(source: str) -> bytes:
    """A file, some of which follow from others."""
    if (DATA / source).exists():
        return (DATA / source).read_bytes()
    vocabulary = json.loads((DATA / "vocab.json").read_text())
    if source == "opt-vocab.json":  # as OPT: control tokens before all others
        heads = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
        return json.dumps(heads | {token: i + 4 for token, i in vocabulary.items() if token not in heads}).encode()
    from octavo.engine.token_bytes import byte_level_bytes

    tokens = [byte_level_bytes(token) for token in sorted(vocabulary, key=vocabulary.__getitem__)]
    tokens = [token for token in tokens if token != b"<|endoftext|>"]
    ranks = [base64.b64encode(token).decode() for token in tokens]
    if source == "ranks.tiktoken":
        return "".join(f"{token} {rank}\n" for rank, token in enumerate(ranks)).encode()
    from octavo.engine.pre_tokenizers import TEKKEN

    return json.dumps(
        {
            "config": {"pattern": TEKKEN, "default_vocab_size": len(ranks) + 20, "default_num_special_tokens": 20,
                       "num_vocab_tokens": len(ranks), "version": "v3"},
            "vocab": [{"rank": rank, "token_bytes": token, "token_str": None} for rank, token in enumerate(ranks)],
        }
    ).encode()  # fmt: skip
