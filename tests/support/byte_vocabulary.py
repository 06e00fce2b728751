"""A vocabulary of single bytes and a few words, small enough to reason about."""

from __future__ import annotations

from octavo.structured import Vocabulary

WORDS = [b"true", b"false", b"null", b'{"', b'":', b"ab", b"12"]
EOS = 256 + len(WORDS)
CONTROL = EOS + 1
SIZE = EOS + 10
"""Some ids past the tokens stand for nothing."""


def byte_vocabulary() -> Vocabulary:
    tokens = [bytes([i]) for i in range(256)] + WORDS + [b"<end>", b"<control>"]
    return Vocabulary(
        size=SIZE, tokens=tokens, special_ids=[EOS, CONTROL], eos_ids=[EOS], encode=lambda text: [*text.encode()]
    )
