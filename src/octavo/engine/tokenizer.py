"""Tokenizer: text to token ids and back, of any kind that `tokenizer_sources` reads."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from functools import cached_property

import msgspec
import tokenizers

from octavo.engine.detokenizer import decode_all
from octavo.engine.heap import give_back
from octavo.engine.token_bytes import TokenSpelling, spelling_of
from octavo.engine.tokenizer_check import check_tokenizer
from octavo.engine.tokenizer_sources import read_source
from octavo.errors import ModelError, ModelFileError, RequestError
from octavo.weights.checkpoint import AddedToken, TokenizerFiles

# Texts come one at a time here: threads of the library's own would have nothing to share.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

LARGE_TEXT_CHARS = 1 << 16
"""The library takes some hundred bytes for each character while it works; after more of them they are given back."""


class Tokenizer:
    """Wraps a `tokenizers.Tokenizer`. Safe to use from several threads.

    Attributes:
        vocab_size: One more than the largest token id.
        bos_id, eos_id: Begin and end of a sequence, or None.
        special_ids: Control tokens: never text, left out when decoding.
        max_token_chars: No token stands for more characters than this.
        chat_template: Jinja source, or None.
        kind: What it is and where it comes from, for people.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        *,
        chat_template: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        file: str = "tokenizer.json",
        kind: str = "tokenizer.json",
    ) -> None:
        inner.no_truncation()
        inner.no_padding()
        self._inner = inner
        self._file = file
        self.kind = kind
        self._added = {i: token.content for i, token in inner.get_added_tokens_decoder().items()}
        self._spelling = _spelling(inner)
        self._bytes: dict[int, bytes] = {}
        self.special_ids = frozenset(i for i, token in inner.get_added_tokens_decoder().items() if token.special)
        vocabulary = inner.get_vocab(with_added_tokens=True)
        self.vocab_size = 1 + max(vocabulary.values(), default=-1)
        # A normaliser may join a letter and its accents into one character.
        self.max_token_chars = max(map(len, vocabulary), default=0) * (1 if inner.normalizer is None else 4)
        self.bos_token, self.bos_id = bos_token, self._id_of(bos_token)
        self.eos_token, self.eos_id = eos_token, self._id_of(eos_token)
        self.chat_template = chat_template
        self._special_pattern = _any_of([self._added[i] for i in self.special_ids])
        # Signs that no user can know, made here so that all threads see the same ones.
        self._guard_sign = f"\ue0f0{secrets.token_hex(8)}\ue0f1"
        self._token_sign = f"\ue0f2{secrets.token_hex(8)}\ue0f3"
        self._adds_bos = self.bos_id is not None and self._around()[:1] == [self.bos_id]

    @classmethod
    def load(cls, files: TokenizerFiles) -> Tokenizer:
        """Read a model's tokenizer.

        Raises:
            ModelFileError: If the file is missing, too large, or damaged.
            UnsupportedModelError: If it names a kind of tokenizer that Octavo does not have.
        """
        source = read_source(files)
        check_tokenizer(source.json, source.file)
        inner = _parse(source.json, source.file)
        _add_missing(inner, files.added, source.file)
        return cls(
            inner,
            chat_template=files.chat_template,
            bos_token=source.bos_token,
            eos_token=source.eos_token,
            file=source.file,
            kind=source.kind,
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`. Spellings of control tokens in it become those tokens, as in Hugging Face's tokenizers.

        With `add_special_tokens`, what the model's tokenizer puts around a text is added, except that a text which
        itself begins with the begin-of-sequence token gets no second one.

        Raises:
            RequestError: If the library fails on this text, as it does on words that a vocabulary without an unknown
                token lacks.
        """
        ids = _ids(self._inner, text, add_special_tokens=add_special_tokens)
        if add_special_tokens and self._adds_bos and ids[1:2] == [self.bos_id]:
            del ids[0]
        return ids

    def _around(self) -> list[int]:
        """What is put around a text.

        Raises:
            ModelFileError: If the tokenizer fails even without one.
        """
        try:
            return _ids(self._inner, "", add_special_tokens=True)
        except RequestError as error:
            raise ModelFileError(self._file, "tokenizer", str(error)) from None

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of whole ids; bytes that are no UTF-8 become U+FFFD."""
        return decode_all(self, token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one token; empty for an id without a token, such as padding of the embedding."""
        data = self._bytes.get(token_id)
        if data is None:
            data = self._bytes[token_id] = self._find_bytes(token_id)
        return data

    def id_of(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary."""
        token_id: int | None = self._inner.token_to_id(token)
        return token_id

    def special_ids_of(self, spellings: Iterable[str]) -> frozenset[int]:
        """The control tokens that are spelled so."""
        wanted = frozenset(spellings)
        return frozenset(i for i in self.special_ids if self._added[i] in wanted)

    @property
    def strips_leading_space(self) -> bool:
        """Whether the tokenizer puts a space of its own before a text, which decoding leaves out again."""
        return self._spelling.strips_leading_space

    def guard(self, text: str) -> str:
        """`text`, with a secret sign inside every spelling of a control token.

        Templates mix text of users with control tokens; guarded spellings are told apart by `encode_guarded`.
        """
        if self._special_pattern is None:
            return text
        return self._special_pattern.sub(lambda match: match[0][0] + self._guard_sign + match[0][1:], text)

    def encode_guarded(self, text: str) -> list[int]:
        """Token ids of rendered text: control tokens where the template wrote them, text where a user did."""
        if self._guard_sign not in text or self._special_pattern is None:
            return self.encode(text, add_special_tokens=False)
        marked = self._special_pattern.sub(lambda match: self._token_sign + match[0], text)
        return _ids(self._secret_twin, marked.replace(self._guard_sign, ""), add_special_tokens=False)

    @cached_property
    def _secret_twin(self) -> tokenizers.Tokenizer:
        """This tokenizer, but its control tokens are spelled with a secret sign in front, which no user can know."""
        settings = msgspec.json.decode(self._inner.to_str())
        renamed = {self._added[i]: self._token_sign + self._added[i] for i in self.special_ids}
        for token in settings["added_tokens"]:
            if token["special"]:
                token["content"] = renamed[token["content"]]
                token["normalized"] = False
        vocabulary = settings["model"]["vocab"]
        if isinstance(vocabulary, dict):
            settings["model"]["vocab"] = {renamed.get(token, token): i for token, i in vocabulary.items()}
        else:
            settings["model"]["vocab"] = [[renamed.get(token, token), score] for token, score in vocabulary]
        unknown = settings["model"].get("unk_token")
        settings["model"]["unk_token"] = renamed.get(unknown, unknown)
        settings["post_processor"] = None
        return _parse(msgspec.json.encode(settings), self._file)

    def _id_of(self, token: str | None) -> int | None:
        if token is None:
            return None
        token_id: int | None = self._inner.token_to_id(token)
        if token_id is None:
            raise ModelFileError(self._file, "special tokens", f"{token[:40]!r} is not in the vocabulary")
        return token_id

    def _find_bytes(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode("utf-8", "replace")
        token = self._inner.id_to_token(token_id) if 0 <= token_id < self.vocab_size else None
        return b"" if token is None else self._spelling.to_bytes(token)


def _ids(inner: tokenizers.Tokenizer, text: str, *, add_special_tokens: bool) -> list[int]:
    """Token ids. The library lets other Python threads run during a call for many texts, and not during one for one."""
    try:
        (encoded,) = inner.encode_batch_fast([text], add_special_tokens=add_special_tokens)
    except BaseException as error:
        # What a stranger's file makes the library do; its panics are BaseExceptions that would end a thread.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        why = f"the model's tokenizer fails on this text: {str(error)[:200]}"
        raise RequestError(None, message=why) from None
    ids: list[int] = encoded.ids
    if len(text) > LARGE_TEXT_CHARS:
        del encoded
        give_back()
    return ids


def _add_missing(inner: tokenizers.Tokenizer, tokens: Iterable[AddedToken], file: str) -> None:
    """Tokens that the files beside a vocabulary name and itself does not. One without an id must be a token already."""
    there = {token.content for token in inner.get_added_tokens_decoder().values()}
    for token in tokens:
        if token.content in there or (token.id is None and inner.token_to_id(token.content) is None):
            continue
        flags = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")}
        new = tokenizers.AddedToken(token.content, special=token.special, **flags)
        (inner.add_special_tokens if token.special else inner.add_tokens)([new])
        token_id = inner.token_to_id(token.content)
        if token.id is not None and token_id != token.id:
            why = f"token {token.content[:40]!r} is to have the id {token.id}, but there it would have {token_id}"
            raise ModelFileError(file, "added tokens", why)


def _any_of(spellings: list[str]) -> re.Pattern[str] | None:
    """Matches any of them, the longest first. One of a single character cannot be told from text."""
    longest_first = sorted((spelling for spelling in spellings if len(spelling) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _spelling(inner: tokenizers.Tokenizer) -> TokenSpelling:
    state = inner.decoder.__getstate__() if inner.decoder is not None else b"null"
    return spelling_of(msgspec.json.decode(state))


def _parse(data: bytes, file: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except (KeyboardInterrupt, SystemExit, ModelError):
        raise
    except BaseException as error:  # the Rust library's panics are BaseExceptions
        raise ModelFileError(file, "tokenizer", f"cannot be read ({str(error)[:200]})") from None
