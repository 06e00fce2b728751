"""Token by token gives the same text as all at once, wherever characters are cut."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.engine.detokenizer import Detokenizer, decode_all
from octavo.engine.token_bytes import BYTE_OF_CHAR, byte_level_bytes
from octavo.engine.tokenizer import Tokenizer
from support.texts import random_texts

FAMILY = "👨\u200d👩\u200d👧\u200d👦"


class Pieces:
    """A vocabulary in which id i is the i-th of some byte strings; ids from 1000 on are control tokens."""

    strips_leading_space = False
    special_ids = frozenset({1000, 1001})

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    def token_bytes(self, token_id: int) -> bytes:
        return b"<control>" if token_id >= 1000 else self._pieces[token_id]


def stream(detokenizer: Detokenizer, token_ids: list[int]) -> str:
    """All that comes out, checked to be never taken back: pieces are only ever added."""
    return "".join([detokenizer.push(token_id) for token_id in token_ids] + [detokenizer.finish()])


def cut(data: bytes, at: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in itertools.pairwise([0, *sorted(at), len(data)])]


@pytest.mark.parametrize(
    "text", ["a", "é", "世界", "각", FAMILY, f"x{FAMILY}y 🇩🇪", "👍🏽", "\U0010ffff\x00", "e\u0301"]
)
def test_every_split_in_two_and_three(text: str) -> None:
    data = text.encode()
    for at in itertools.combinations_with_replacement(range(len(data) + 1), 2):
        pieces = cut(data, list(at))
        assert stream(Detokenizer(Pieces(pieces)), list(range(len(pieces)))) == text


@given(st.text(), st.data())
def test_any_split_of_any_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    at = data.draw(st.lists(st.integers(0, len(raw)), max_size=len(raw)))
    pieces = cut(raw, at)
    assert stream(Detokenizer(Pieces(pieces)), list(range(len(pieces)))) == text


@given(st.binary(max_size=40), st.data())
def test_bytes_that_are_no_text_give_the_same_signs_as_the_whole(raw: bytes, data: st.DataObject) -> None:
    pieces = cut(raw, data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    ids = list(range(len(pieces)))
    assert stream(Detokenizer(Pieces(pieces)), ids) == raw.decode("utf-8", "replace") == decode_all(Pieces(pieces), ids)


@given(st.lists(st.integers(0, 511), max_size=30))
def test_any_ids_of_a_real_vocabulary(tinystories: Tokenizer, ids: list[int]) -> None:
    for skip in (True, False):
        streamed = stream(Detokenizer(tinystories, skip_special_tokens=skip, at_start=True), ids)
        assert streamed == tinystories.decode(ids, skip_special_tokens=skip)


@pytest.mark.model
def test_random_ids_equal_the_library(smollm2: Tokenizer) -> None:
    """Also for ids in no sensible order: broken UTF-8 becomes the same replacement signs."""
    rng = random.Random(3)
    library = smollm2._inner
    for _ in range(2000):
        ids = [rng.randrange(smollm2.vocab_size) for _ in range(16)]
        for skip in (True, False):
            whole = library.decode(ids, skip_special_tokens=skip)
            assert smollm2.decode(ids, skip) == whole
            assert stream(Detokenizer(smollm2, skip_special_tokens=skip), ids) == whole


@pytest.mark.model
def test_real_text_streams_without_replacement_signs(smollm2: Tokenizer) -> None:
    for text in [FAMILY, "깰 🇩🇪", *(text for text in random_texts(5, 300) if "\ufffd" not in text)]:
        ids = smollm2.encode(text)
        detokenizer = Detokenizer(smollm2, skip_special_tokens=False)
        pieces = [detokenizer.push(i) for i in ids]
        assert detokenizer.finish() == ""
        assert "".join(pieces) == text
        assert not any("\ufffd" in piece for piece in pieces)


def test_an_incomplete_character_is_held_and_shown_at_the_end_only() -> None:
    detokenizer = Detokenizer(Pieces([b"a\xe4", b"\xb8", b"\x96b\xf0\x9f"]))
    assert [detokenizer.push(i) for i in range(3)] == ["a", "", "世b"]
    assert detokenizer.finish() == "\ufffd"


def test_control_tokens_are_skipped_or_shown() -> None:
    pieces = Pieces([b"a\xe4\xb8", b"\x96"])
    assert stream(Detokenizer(pieces), [0, 1000, 1, 1001]) == "a世"
    assert stream(Detokenizer(pieces, skip_special_tokens=False), [0, 1, 1000]) == "a世<control>"


def test_the_tokenizers_own_space_is_dropped_only_where_a_text_begins(tinystories: Tokenizer) -> None:
    once = tinystories.encode("Once upon", add_special_tokens=False)
    assert stream(Detokenizer(tinystories, at_start=True), once) == "Once upon"
    assert stream(Detokenizer(tinystories), once) == " Once upon"
    assert stream(Detokenizer(tinystories, at_start=True), [1, *once]) == "Once upon"


def test_an_answer_continues_its_prompt_exactly(tinystories: Tokenizer) -> None:
    """Prompt text and answer text together are the text of all ids, wherever the prompt ends."""
    for text in ["Once upon a time, there was", "a 깰 b", "  two  spaces "]:
        ids = tinystories.encode(text)
        for end in range(1, len(ids)):
            prompt = decode_all(tinystories, ids[:end])
            answer = stream(Detokenizer(tinystories, at_start=end == 1), ids[end:])
            if "\ufffd" not in prompt:
                assert prompt + answer == text


@settings(max_examples=200)
@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=12))
def test_byte_level_spelling_of_foreign_text_is_that_text(text: str) -> None:
    if any(char not in BYTE_OF_CHAR for char in text):
        assert byte_level_bytes(text) == text.encode()


def test_the_byte_level_alphabet_covers_each_byte_once() -> None:
    assert sorted(BYTE_OF_CHAR.values()) == list(range(256))
    assert byte_level_bytes("Ġ") == b" " and byte_level_bytes("Ċ") == b"\n" and byte_level_bytes("âĤ¬") == "€".encode()
