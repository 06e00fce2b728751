"""Tokenizers that the engine's tests share."""

from __future__ import annotations

import pytest

from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.sources import open_checkpoint, resolve
from support.paths import TINYSTORIES


@pytest.fixture(scope="session")
def tinystories() -> Tokenizer:
    """SentencePiece: byte fallback, a space before every text, a begin-of-sequence token."""
    files = TokenizerFiles(tokenizer_json=TINYSTORIES / "tokenizer.json", bos_token="<s>", eos_token="</s>")
    return Tokenizer.load(files)


@pytest.fixture(scope="session")
def smollm2_files() -> TokenizerFiles:
    """Of the default model, a GGUF file."""
    checkpoint = open_checkpoint(resolve("smollm2-135m"))
    try:
        return checkpoint.tokenizer_files()
    finally:
        checkpoint.close()


@pytest.fixture(scope="session")
def smollm2(smollm2_files: TokenizerFiles) -> Tokenizer:
    return Tokenizer.load(smollm2_files)
