"""Incremental detokenisation: the same characters as decoding the whole, one token at a time."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

_UTF8 = codecs.getincrementaldecoder("utf-8")


class TokenBytes(Protocol):
    """What detokenising needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]: ...
    @property
    def strips_leading_space(self) -> bool: ...
    def token_bytes(self, token_id: int) -> bytes: ...


class Detokenizer:
    """Turns tokens into text as they come.

    A token is a few bytes, and a character may be split over tokens: bytes that might still become a character are
    held back until they do, or until it is certain that they never will, when they become U+FFFD as in
    `bytes.decode("utf-8", "replace")`. Nothing is ever decoded twice, so a token costs the same wherever it stands.

    Args:
        tokenizer: Gives the bytes.
        skip_special_tokens: Leave out control tokens such as the end of a turn.
        shown: Control tokens that are not left out.
        at_start: Whether no text stands before the first token. Only then is the space that a SentencePiece
            tokenizer puts before every text its own invention, to be left out.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        at_start: bool = False,
    ) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset()
        self._decoder = _UTF8("replace")
        self._strip_next = at_start and tokenizer.strips_leading_space

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; empty while a character is incomplete."""
        if token_id in self._skipped:
            return ""
        text = self._decoder.decode(self._token_bytes(token_id))
        return self._without_prefix(text) if self._strip_next else text

    def finish(self) -> str:
        """What was held back, as U+FFFD. Call once, after the last token."""
        return self._decoder.decode(b"", final=True)

    def _without_prefix(self, text: str) -> str:
        if text:
            self._strip_next = False
        return text.removeprefix(" ")


def decode_all(tokenizer: TokenBytes, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
    """The text of whole ids, in one go."""
    skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
    data = b"".join([tokenizer.token_bytes(token_id) for token_id in token_ids if token_id not in skipped])
    text = data.decode("utf-8", "replace")
    return text.removeprefix(" ") if tokenizer.strips_leading_space else text
