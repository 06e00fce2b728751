"""A model's tokens as bytes, and texts as exact tokens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.tokenizer import Tokenizer
from octavo.engine.vocabulary import vocabulary

TEXTS = [
    "",
    "a",
    "yes",
    " yes",
    "  two  spaces",
    "north",
    '{"a": 1}',
    "é",
    "日本",
    "😀",
    "\n\t",
    "<0x0A>",
    "▁",
    "Ġ",
    "\x02",
]


@pytest.mark.model
@pytest.mark.parametrize("text", [*TEXTS, "<|im_end|>", "a<|im_start|>b"])
def test_byte_level_texts_keep_their_bytes(smollm2: Tokenizer, text: str) -> None:
    known = vocabulary(smollm2, 49152, (0,))
    found = known.encode(text)
    assert b"".join(known.tokens[i] for i in found) == text.encode()
    assert set(found).isdisjoint(known.special_ids)
    assert known.eos_ids == [0, 2]


@pytest.mark.parametrize("text", [*TEXTS, "<s>", "a</s>b"])
def test_sentencepiece_texts_keep_their_bytes(tinystories: Tokenizer, text: str) -> None:
    """No space of the tokenizer's own, and no control token."""
    known = vocabulary(tinystories, 512, ())
    found = known.encode(text)
    assert b"".join(known.tokens[i] for i in found) == text.encode()
    assert set(found).isdisjoint(known.special_ids)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=20))
def test_any_text_keeps_its_bytes(tinystories: Tokenizer, text: str) -> None:
    known = vocabulary(tinystories, 512, ())
    assert b"".join(known.tokens[i] for i in known.encode(text)) == text.encode()


def test_it_is_as_wide_as_the_logits(tinystories: Tokenizer) -> None:
    wide, narrow = vocabulary(tinystories, 600, (2, 700)), vocabulary(tinystories, 300, (2, 700))
    assert wide.size == 600 and len(wide.tokens) == 512 and wide.eos_ids == [2]
    assert narrow.size == len(narrow.tokens) == 300 and max(narrow.special_ids) < 300
