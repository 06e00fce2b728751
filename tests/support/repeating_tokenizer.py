"""A tokenizer whose tokens are chosen by the test: control tokens, the 256 bytes, and given texts."""

from __future__ import annotations

import json
from pathlib import Path

CONTROL = ["<unk>", "<s>", "</s>"]


def write_tokenizer(path: Path, texts: list[str], control: list[str] | None = None) -> list[str]:
    """Write a tokenizer.json; returns the vocabulary in the order of ids. Spellings like `<0xF0>` are bytes; `control`
    are more control tokens."""
    special = [*CONTROL, *(control or [])]
    pieces = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += dict.fromkeys(text for text in texts if text not in pieces)
    vocabulary = [*special, *pieces]
    model = {
        "type": "BPE",
        "vocab": {token.replace(" ", "\u2581"): i for i, token in enumerate(vocabulary)},
        "merges": [],
        "byte_fallback": True,
        "unk_token": "<unk>",
    }
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    decoders = [
        {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": i, "content": token, **plain} for i, token in enumerate(special)],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": model,
    }
    path.write_text(json.dumps(tokenizer))
    return vocabulary
