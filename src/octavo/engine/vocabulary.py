"""The tokens of a model as bytes, for whoever matches texts token by token."""

from __future__ import annotations

from functools import cached_property

from octavo.engine.tokenizer import Tokenizer
from octavo.structured import Vocabulary

_SIGN = "\x02"
"""A character that no token joins with the text behind it. In front of a text it keeps a tokenizer from adding its own
space."""


def vocabulary(tokenizer: Tokenizer, size: int, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """A model's vocabulary.

    Args:
        size: Width of the logits.
        eos_token_ids: The tokens that end an answer; the tokenizer's own is added.
    """
    own_eos = () if tokenizer.eos_id is None else (tokenizer.eos_id,)
    tokens = [tokenizer.token_bytes(token_id) for token_id in range(min(size, tokenizer.vocab_size))]
    special_ids = sorted(token_id for token_id in tokenizer.special_ids if token_id < size)
    return Vocabulary(
        size=size,
        tokens=tokens,
        special_ids=special_ids,
        eos_ids=[token_id for token_id in dict.fromkeys((*eos_token_ids, *own_eos)) if token_id < size],
        encode=_ExactEncoder(tokenizer, tokens, frozenset(special_ids)),
    )


class _ExactEncoder:
    """Tokens whose bytes are those of a text, none of them a control token."""

    def __init__(self, tokenizer: Tokenizer, tokens: list[bytes], special_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._tokens = tokens
        self._special_ids = special_ids

    def __call__(self, text: str) -> list[int]:
        data = text.encode()
        for prefix in ("", _SIGN):
            token_ids = self._tokenizer.encode(prefix + text, add_special_tokens=False)
            for start in range(min(3, len(token_ids))):
                tail = token_ids[start:]
                if b"".join(self._tokens[i] for i in tail) == data and self._special_ids.isdisjoint(tail):
                    return tail
        return self._longest_first(data)

    def _longest_first(self, data: bytes) -> list[int]:
        """The longest token that fits, again and again; as far as there is one."""
        found, start = [], 0
        while start < len(data):
            ends = range(min(len(data), start + self._longest), start, -1)
            end = next((end for end in ends if data[start:end] in self._ids), None)
            if end is None:
                break
            found.append(self._ids[data[start:end]])
            start = end
        return found

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        known = {token: i for i, token in enumerate(self._tokens) if i not in self._special_ids}
        known.pop(b"", None)
        return known

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self._ids), default=0)
