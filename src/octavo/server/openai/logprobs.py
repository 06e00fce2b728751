"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any

from octavo.engine.detokenizer import Detokenizer
from octavo.messages import TokenLogprobs

if TYPE_CHECKING:
    from octavo.engine.tokenizer import Tokenizer

LOGPROB_FLOOR = -9999.0
"""Stands for minus infinity, which JSON cannot hold."""


def finite(logprob: float) -> float:
    """`logprob`, or the floor when it is minus infinity or not a number."""
    return logprob if logprob > LOGPROB_FLOOR else LOGPROB_FLOOR


def token_text(raw: bytes) -> str:
    """A token as a string. What is no whole UTF-8 is shown as `bytes:\\xf0\\x9f`, so that no two look alike."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class TextOffsets:
    """Where each token of an answer begins, in characters, however the answer is cut into deltas.

    A token inside a multi-byte character begins where that character does; a special token that the text leaves out has
    no length.
    """

    def __init__(self, tokenizer: Tokenizer, start: int, *, skip_special_tokens: bool) -> None:
        self._detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip_special_tokens)
        self._position = start

    def next(self, token_id: int) -> int:
        """The offset of `token_id`, which follows those given before."""
        offset = self._position
        self._position += len(self._detokenizer.push(token_id))
        return offset


def prompt_offsets(tokenizer: Tokenizer, text: str, token_ids: list[int]) -> list[int]:
    """Where each prompt token begins in the prompt's text.

    A tokenizer may put a space before the first word that is not in the text; nor are control tokens, unless they were
    spelled out in it.
    """
    offsets: list[int] = []
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    position = 0
    for token_id in token_ids:
        offsets.append(min(position, len(text)))
        piece = decoder.decode(tokenizer.token_bytes(token_id))
        if token_id in tokenizer.special_ids and not text.startswith(piece, position):
            piece = ""
        elif position == 0 and not text.startswith(piece):
            piece = piece.removeprefix(" ")
        position += len(piece)
    return offsets


def completion_logprobs(
    tokenizer: Tokenizer, entries: list[TokenLogprobs | None], token_ids: list[int], offsets: list[int], num_top: int
) -> dict[str, Any]:
    """The `logprobs` of a completions choice. An entry of None is a prompt's first token, which nothing predicts."""
    return {
        "tokens": [token_text(tokenizer.token_bytes(token_id)) for token_id in token_ids],
        "token_logprobs": [None if entry is None else finite(entry.logprob) for entry in entries],
        "top_logprobs": [None if entry is None else _top_by_text(tokenizer, entry, num_top) for entry in entries],
        "text_offset": offsets,
    }


def _top_by_text(tokenizer: Tokenizer, entry: TokenLogprobs, num_top: int) -> dict[str, float]:
    """The likeliest tokens, and the chosen one in any case, as this endpoint has always given them."""
    top = {token_text(tokenizer.token_bytes(token_id)): finite(value) for token_id, value in entry.top[:num_top]}
    top.setdefault(token_text(tokenizer.token_bytes(entry.token_id)), finite(entry.logprob))
    return top


def chat_logprobs(tokenizer: Tokenizer, entries: list[TokenLogprobs], num_top: int) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = []
    for entry in entries:
        item = _chat_token(tokenizer, entry.token_id, entry.logprob)
        item["top_logprobs"] = [_chat_token(tokenizer, *pair) for pair in entry.top[:num_top]]
        content.append(item)
    return {"content": content, "refusal": None}


def _chat_token(tokenizer: Tokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {"token": token_text(raw), "logprob": finite(logprob), "bytes": list(raw)}


def prompt_logprobs(tokenizer: Tokenizer, entries: list[TokenLogprobs | None]) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` extension: per prompt token, candidates by token id."""
    return [None if entry is None else _by_id(tokenizer, entry) for entry in entries]


def _by_id(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, Any]:
    ranked = {token_id: (value, rank) for rank, (token_id, value) in enumerate(entry.top, 1)}
    ranked[entry.token_id] = (entry.logprob, entry.rank)
    return {
        str(token_id): {
            "logprob": finite(value),
            "rank": rank,
            "decoded_token": token_text(tokenizer.token_bytes(token_id)),
        }
        for token_id, (value, rank) in ranked.items()
    }
