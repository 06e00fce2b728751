"""Tokenizers in real GGUF files equal the libraries that they come from; run by `make test-models`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from octavo.engine.detokenizer import Detokenizer
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_vocabulary import read_vocabulary
from octavo.weights.sources import resolve
from support.real_models import real_model
from support.wild_texts import wild_texts
from vocabularies import oracles

pytestmark = [pytest.mark.models, pytest.mark.timeout(3600)]
COUNT = int(os.environ.get("OCTAVO_TEXTS", "10000"))


def assert_equal(tokenizer: Tokenizer, encode: oracles.Encode, words: list[str]) -> None:
    """Ids of every text, and its text again, token by token."""
    for text in wild_texts(200, COUNT, words):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert ids == encode(text), repr(text)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, at_start=True)
        pieces = [detokenizer.push(token_id) for token_id in ids]
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        assert "".join(pieces) + detokenizer.finish() == whole
        assert "\ufffd" in whole or not any("\ufffd" in piece for piece in pieces)


def test_gemma3() -> None:
    """The metadata as a SentencePiece model, in that library. transformers cuts long runs of spaces otherwise."""
    path = real_model("gemma-3-270m")
    tokenizer = Tokenizer.load(TokenizerFiles(gguf=path))
    assert tokenizer.encode("Hello world") == [2, 9259, 1902]
    words = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<unused7>", "<table>", "[multimodal]", "</b>"]
    assert_equal(tokenizer, oracles.sentencepiece_of_gguf(path), words)


def test_qwen2(tmp_path: Path) -> None:
    """The metadata as the files that the model was published in, in transformers. What transformers itself makes of a
    GGUF file lacks the normal form of Qwen's tokenizers."""
    path = real_model("qwen2.5-coder-0.5b")
    write_folder(path, tmp_path, "qwen2", "Qwen2Tokenizer")
    words = ["<|im_start|>", "<|im_end|>", "<tool_call>", "<|endoftext|>", "<|file_sep|>"]
    assert_equal(Tokenizer.load(TokenizerFiles(gguf=path)), oracles.transformers_folder(tmp_path), words)


def test_smollm2(tmp_path: Path) -> None:
    """The library alone with the published way to cut words: digits, then GPT-2's."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models, pre_tokenizers

    path = resolve("smollm2-135m").path
    with GGUFFile(path) as file:
        vocabulary = read_vocabulary(file)
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    oracle = tokenizers.Tokenizer(models.BPE(ids, merges))
    digits, byte_level = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.pre_tokenizer = pre_tokenizers.Sequence([digits, byte_level])
    oracle.decoder = decoders.ByteLevel()
    assert vocabulary.token_types is not None
    controls = [
        token for token, kind in zip(vocabulary.tokens, vocabulary.token_types.tolist(), strict=True) if kind == 3
    ]
    oracle.add_special_tokens([AddedToken(token, normalized=False) for token in controls])
    assert_equal(Tokenizer.load(TokenizerFiles(gguf=path)), lambda text: oracle.encode(text).ids, controls)


def write_folder(path: Path, folder: Path, model_type: str, tokenizer_class: str) -> None:
    """vocab.json, merges.txt and tokenizer_config.json of a GGUF file's metadata."""
    with GGUFFile(path) as file:
        vocabulary = read_vocabulary(file)
    assert vocabulary.token_types is not None
    kinds = vocabulary.token_types.tolist()
    added = {
        str(i): {"content": token, "special": kind == 3, "normalized": False}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, kinds, strict=True))
        if kind in (3, 4)
    }
    ids = {token: i for i, (token, kind) in enumerate(zip(vocabulary.tokens, kinds, strict=True)) if kind == 1}
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(vocabulary.merges) + "\n")
    config = {"tokenizer_class": tokenizer_class, "added_tokens_decoder": added, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
