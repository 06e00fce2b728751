"""Steps of a tokenizer.json that the library takes, and panics on or cannot end: refused by name before that."""

from __future__ import annotations

import base64
import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelError, ModelFileError, RequestError
from octavo.weights import charsmap
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.sentencepiece import read_sentencepiece
from support.paths import TESTS, TINYSTORIES
from support.wild_texts import wild_texts

SOUND = json.loads((TINYSTORIES / "tokenizer.json").read_text())
CHARSMAP = read_sentencepiece(TESTS / "data" / "tokenizers" / "normalising.model").charsmap
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
A = {"Sequence": {"id": "A", "type_id": 0}}
GHOST = {"SpecialToken": {"id": "ghost", "type_id": 0}}


def load(folder: Path, **parts: Any) -> Tokenizer:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**copy.deepcopy(SOUND), **parts}))
    return Tokenizer.load(TokenizerFiles(tokenizer_json=path))


def precompiled(content: bytes) -> dict[str, Any]:
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(content).decode()}


def template(single: list[Any], **known: Any) -> dict[str, Any]:
    return {"type": "TemplateProcessing", "single": single, "pair": [A, A], "special_tokens": known}


@pytest.mark.parametrize(
    ("part", "step", "says"),
    [
        ("normalizer", precompiled(b""), "normalizer Precompiled: precompiled_charsmap is cut off"),
        ("normalizer", precompiled(CHARSMAP[:40]), "is cut off"),
        ("normalizer", precompiled(b"\4\0\0\0\xff\xff\xff\xffabc"), "points outside of itself"),
        ("normalizer", precompiled(CHARSMAP + b"\xff"), "not UTF-8"),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "?"}, "not base64"),
        ("normalizer", {"type": "Sequence", "normalizers": [precompiled(b"")]}, "is cut off"),
        ("normalizer", {"type": "Prepend", "prepend": "x" * 10**6}, "puts 1000000 characters in front"),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "x" * 1000}, "1000 times as long"),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": ""}, "content": "x" * 1000}, "1001 times as long"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, "pre_tokenizer FixedLength: length is 0"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTE_LEVEL] * 40}, "times as long; at most 64"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [{"type": "Whitespace"}] * 65}, "more than 64 steps"),
        ("post_processor", template([GHOST, A]), "single names the token 'ghost', which special_tokens does not have"),
        ("post_processor", template([GHOST] * 10**5, ghost={"id": "ghost", "ids": [1], "tokens": ["g"]}), "pieces"),
        ("model", {**SOUND["model"], "dropout": 0.5}, "model.dropout = 0.5: tokens drawn by lot; supported is 0"),
    ],
)
def test_a_step_is_refused_by_name(
    tmp_path: Path, part: str, step: Any, says: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ModelError) as caught:
        load(tmp_path, **{part: step})
    assert str(caught.value).startswith("tokenizer.json: ") and says in str(caught.value)
    assert capfd.readouterr().err == ""  # a panic would write there


def test_real_steps_are_taken(tmp_path: Path) -> None:
    steps = {"type": "Sequence", "normalizers": [precompiled(CHARSMAP), {"type": "Prepend", "prepend": "▁"}]}
    assert load(tmp_path, normalizer=steps).encode("a b")
    assert load(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 5}).encode("a b")
    known = {"ghost": {"id": "ghost", "ids": [1], "tokens": ["<s>"]}}
    assert load(tmp_path, post_processor=template([GHOST, A], **known)).encode("a")[0] == 1
    assert load(tmp_path, model={**SOUND["model"], "dropout": None}).encode("a")


def test_a_damaged_normaliser_is_refused_or_harmless(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(5)
    texts = [*wild_texts(5, 20), "ﷺ Ⅷ ｆｕｌｌ 한국 \t\u200b"]
    refused = 0
    for _ in range(400):
        content = bytearray(CHARSMAP)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            content[at] = rng.choice((0, 0xFF, rng.randrange(256)))
        if charsmap.fault_of(bytes(content)) is not None:
            refused += 1
            continue
        tokenizer = load(tmp_path, normalizer=precompiled(bytes(content)))
        for text in texts:
            tokenizer.encode(text)
    assert 20 < refused < 200
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "model",
    [
        {"type": "Unigram", "unk_id": None, "vocab": [["a", 0.0]]},
        {"type": "WordLevel", "vocab": {"a": 1}, "unk_token": "<unknown>"},
    ],
)
def test_a_text_that_the_library_fails_on_is_a_bad_request(tmp_path: Path, model: Any) -> None:
    tokenizer = load(tmp_path, model=model, added_tokens=[], post_processor=None, normalizer=None)
    with pytest.raises(RequestError, match="the model's tokenizer fails on this text: "):
        tokenizer.encode("zebra")


def test_a_panic_of_the_library_is_a_bad_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the check has missed: a panic is a BaseException, and would end the thread that serves."""
    monkeypatch.setattr("octavo.engine.tokenizer.check_tokenizer", lambda data, file: None)
    tokenizer = load(tmp_path, pre_tokenizer={"type": "FixedLength", "length": 0})
    with pytest.raises(RequestError, match="chunk size must be non-zero"):
        tokenizer.encode("a")
    with pytest.raises(ModelFileError, match=r"^tokenizer\.json: tokenizer: .*fails"):
        broken = template([GHOST, A])
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps({**SOUND, "post_processor": broken}))
        Tokenizer.load(TokenizerFiles(tokenizer_json=path, bos_token="<s>"))
