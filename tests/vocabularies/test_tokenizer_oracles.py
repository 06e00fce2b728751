"""Every kind of tokenizer gives the ids that the library it comes from gives, on thousands of hard texts."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from octavo.engine.pre_tokenizers import LLAMA3, QWEN2
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from support.paths import SHARED, TINYSTORIES
from support.wild_texts import wild_texts
from vocabularies import oracles, tiny

pytestmark = pytest.mark.torch

COUNT = int(os.environ.get("OCTAVO_TEXTS", "1000"))
TOKENIZERS = SHARED / "tokenizers"
outside = pytest.mark.skipif(
    not TOKENIZERS.exists(), reason=f"needs {TOKENIZERS}, whose licences keep it out; OCTAVO_TEST_DATA names its parent"
)


def oracle(name: str, where: Path) -> oracles.Encode:
    """The library that each of the small tokenizers comes from."""
    path = tiny.folder(name, where)
    if name in ("llama", "unigram"):
        return oracles.sentencepiece_model((path / "tokenizer.model").read_bytes())
    if name in ("llama3", "qwen", "tekken"):
        tokenizer = tiny.load(name, where)
        specials = {tokenizer.token_bytes(i).decode(): i for i in tokenizer.special_ids}
        if name == "tekken":
            return oracles.tekken(path / "tekken.json", specials)
        ranks = next(path.glob("*.model" if name == "llama3" else "*.tiktoken"))
        nfc = name == "qwen"
        return oracles.tiktoken_ranks(ranks, QWEN2 if nfc else LLAMA3, specials, nfc=nfc)
    return oracles.transformers_folder(path)


def assert_equal(encode: oracles.Encode, tokenizer: Tokenizer, texts: list[str]) -> None:
    for text in texts:
        assert tokenizer.encode(text, add_special_tokens=False) == encode(text), repr(text)


@pytest.mark.parametrize("name", tiny.FILES)
def test_small_tokenizers(name: str, tmp_path: Path) -> None:
    assert_equal(oracle(name, tmp_path), tiny.load(name, tmp_path), tiny.texts(name, 100, COUNT))


@outside
def test_opt(tmp_path: Path) -> None:
    path = tiny.folder("opt", tmp_path)
    for name in ("vocab.json", "merges.txt"):
        (path / name).write_bytes(gzip.decompress((TOKENIZERS / f"opt_gpt2-{name}.gz").read_bytes()))
    tokenizer = Tokenizer.load(
        TokenizerFiles(vocabulary=path / "vocab.json", merges=path / "merges.txt", model_type="opt")
    )
    assert tokenizer.encode("Hello world") == [2, 31414, 232]
    assert_equal(
        oracles.transformers_folder(path), tokenizer, wild_texts(100, COUNT, ["<s>", "</s>", "<pad>", "<unk>"])
    )


@outside
def test_llama2() -> None:
    path = TOKENIZERS / "llama2_tokenizer.model"
    tokenizer = Tokenizer.load(TokenizerFiles(vocabulary=path, model_type="llama"))
    assert tokenizer.encode("Hello world") == [1, 15043, 3186]
    assert_equal(
        oracles.sentencepiece_model(path.read_bytes()), tokenizer, wild_texts(100, COUNT, ["<s>", "</s>", "<unk>"])
    )


@outside
def test_tinystories() -> None:
    """tests/data has the tokenizer.json; this is the SentencePiece model it was made of."""
    path = SHARED / "models" / TINYSTORIES.name / "tok512.model"
    for files in (
        TokenizerFiles(vocabulary=path, model_type="llama"),
        TokenizerFiles(tokenizer_json=TINYSTORIES / "tokenizer.json", bos_token="<s>", eos_token="</s>"),
    ):
        encode = oracles.sentencepiece_model(oracles.keep_spaces(path.read_bytes()))
        assert_equal(encode, Tokenizer.load(files), wild_texts(100, COUNT, ["<s>", "</s>", "<unk>"]))
