"""Small tokenizers of every kind give the ids that other libraries gave, and their text comes back token by token."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from octavo.engine.detokenizer import Detokenizer
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from support.texts import digest
from support.wild_texts import wild_texts
from vocabularies import tiny

GOLDEN = json.loads(tiny.GOLDEN.read_text())


@pytest.fixture(scope="module", params=tiny.FILES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Tokenizer]:
    return request.param, tiny.load(request.param, tmp_path_factory.mktemp("folder"))


def test_ids_equal_the_libraries(loaded: tuple[str, Tokenizer]) -> None:
    name, tokenizer = loaded
    for seed, expected in enumerate(GOLDEN["digests"][name]):
        texts = tiny.texts(name, seed, GOLDEN["per_batch"])
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        assert digest(ids) == expected, f"batch of seed {seed}"


def in_pieces(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> str:
    """What comes out token by token, looked at only at the cuts: it must never end inside a character."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, at_start=True)
    shown = ""
    for start, end in itertools.pairwise([0, *cuts, len(ids)]):
        shown += "".join([detokenizer.push(token_id) for token_id in ids[start:end]])
        shown.encode()  # no half of a character, as a lone surrogate would be
    return shown + detokenizer.finish()


def test_text_comes_back_however_the_tokens_are_cut(loaded: tuple[str, Tokenizer]) -> None:
    _, tokenizer = loaded
    rng = random.Random(7)
    for text in wild_texts(8, 150, tiny.WORDS):
        ids = tokenizer.encode(text, add_special_tokens=False)
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        detokenizer = Detokenizer(tokenizer, skip_special_tokens=False, at_start=True)
        pieces = [detokenizer.push(token_id) for token_id in ids]
        assert "".join(pieces) + detokenizer.finish() == whole
        for end in range(len(ids) + 1):
            done = "".join(pieces[:end])
            assert whole.startswith(done), "a piece was taken back"
            if "\ufffd" not in whole:
                assert "\ufffd" not in done, "half a character was shown"
        cuts = sorted(rng.sample(range(len(ids) + 1), min(3, len(ids))))
        assert in_pieces(tokenizer, ids, cuts) == whole
    random_ids = [rng.randrange(tokenizer.vocab_size) for _ in range(2000)]
    for start in range(0, 2000, 20):
        ids = random_ids[start : start + 20]
        assert in_pieces(tokenizer, ids, []) == tokenizer.decode(ids, skip_special_tokens=False)


def test_lossless_kinds_give_the_very_text_back(loaded: tuple[str, Tokenizer]) -> None:
    name, tokenizer = loaded
    if name in ("unigram", "qwen", "qwen2"):
        pytest.skip("it changes the text: spaces are dropped, or letters and accents joined")
    for text in wild_texts(9, 300):
        if not any(sign in text for sign in ("▁", "<0x", "<s>", "</s>")):  # a space stands behind control tokens
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert tokenizer.decode(ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("name", "bos", "around"),
    [
        ("gpt2", "<|endoftext|>", ([], [])),
        ("opt", "</s>", ([2], [])),
        ("qwen2", None, ([], [])),
        ("llama", "<s>", ([1], [])),
        ("unigram", "<s>", ([], [2])),
        ("qwen", None, ([], [])),
        ("tekken", "<s>", ([1], [])),
    ],
)
def test_what_stands_around_a_text(
    name: str, bos: str | None, around: tuple[list[int], list[int]], tmp_path: Path
) -> None:
    tokenizer = tiny.load(name, tmp_path)
    before, after = around
    plain = tokenizer.encode("Hi there", add_special_tokens=False)
    assert tokenizer.encode("Hi there") == [*before, *plain, *after]
    assert tokenizer.bos_token == bos
    if before:
        assert tokenizer.encode(f"{bos}Hi there")[:2] != before * 2


def test_llama3_names_its_control_tokens(tmp_path: Path) -> None:
    tokenizer = tiny.load("llama3", tmp_path)
    first = tokenizer.bos_id
    assert first is not None and tokenizer.encode("x")[0] == first
    names = [tokenizer.token_bytes(first + i).decode() for i in (1, 2, 4, 6, 8, 9, 10, 11, 255)]
    assert names == [
        *("<|end_of_text|>", "<|reserved_special_token_0|>", "<|finetune_right_pad_id|>", "<|start_header_id|>"),
        *(
            "<|eom_id|>",
            "<|eot_id|>",
            "<|python_tag|>",
            "<|reserved_special_token_3|>",
            "<|reserved_special_token_247|>",
        ),
    ]


def test_a_compiled_normaliser_is_obeyed() -> None:
    files = TokenizerFiles(vocabulary=tiny.DATA / "normalising.model", model_type="t5")
    tokenizer = Tokenizer.load(files)
    assert tokenizer.encode("ABC ﬁne １") == tokenizer.encode("abc fine 1")
    assert tokenizer.encode("  a   b ") == tokenizer.encode("a b")
