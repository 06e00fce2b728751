"""Prompts for what stands before a suffix, by the tokens that a model has for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.engine.infill import infill_prompt
from octavo.engine.tokenizer import Tokenizer
from octavo.weights.checkpoint import TokenizerFiles
from support.repeating_tokenizer import write_tokenizer


def tokenizer_with(path: Path, *tokens: str) -> tuple[Tokenizer, list[str]]:
    vocabulary = write_tokenizer(path / "tokenizer.json", ["a", "b", *tokens])
    files = TokenizerFiles(tokenizer_json=path / "tokenizer.json", bos_token="<s>", eos_token="</s>")
    return Tokenizer.load(files), vocabulary


@pytest.mark.parametrize(
    ("tokens", "prompt"),
    [
        (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), ["<fim_prefix>", "a", "<fim_suffix>", "b", "<fim_middle>"]),
        (
            ("<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>"),
            ["<|fim_prefix|>", "a", "<|fim_suffix|>", "b", "<|fim_middle|>"],
        ),
        (("[SUFFIX]", "[PREFIX]"), ["[SUFFIX]", "b", "[PREFIX]", "a"]),
    ],
)
def test_each_familys_order(tmp_path: Path, tokens: tuple[str, ...], prompt: list[str]) -> None:
    tokenizer, vocabulary = tokenizer_with(tmp_path, *tokens)
    wanted = [vocabulary.index(token) for token in prompt]
    assert infill_prompt(tokenizer, "a", "b") == wanted
    assert infill_prompt(tokenizer, [vocabulary.index("a")], "b") == wanted


def test_a_model_without_such_tokens_has_no_such_prompt(tmp_path: Path) -> None:
    assert infill_prompt(tokenizer_with(tmp_path, "<fim_prefix>", "<fim_suffix>")[0], "a", "b") is None
