"""From a model's files to one tokenizer.json, whatever kind of tokenizer they hold.

tokenizer.json                  as it is
vocab.json and merges.txt       byte-level BPE: GPT-2, OPT, Qwen 2              merges_tokenizer
tokenizer.model, a protobuf     SentencePiece: Llama, Mistral, Gemma, T5        sentencepiece_tokenizer
tokenizer.model, *.tiktoken     ranks in base64: Llama 3, Qwen                  tiktoken_tokenizer
tekken.json                     Mistral                                         tiktoken_tokenizer
the metadata of a GGUF file     all of the above                                gguf_tokenizer
"""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.engine.gguf_tokenizer import tokenizer_json
from octavo.engine.merges_tokenizer import merges_json
from octavo.engine.sentencepiece_tokenizer import sentencepiece_json
from octavo.engine.tiktoken_tokenizer import MAX_FILE_BYTES, TEKKEN, is_ranks, tekken_json, tiktoken_json
from octavo.engine.tokenizer_json import Part, added_token
from octavo.errors import ModelFileError
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.files import read_small
from octavo.weights.gguf import GGUFFile
from octavo.weights.gguf_vocabulary import read_vocabulary
from octavo.weights.sentencepiece import SentencePieceModel, parse_sentencepiece

MAX_TOKENIZER_BYTES = 128 << 20
"""Largest tokenizer.json read; the largest in use take 35 MB."""


class TokenizerSource(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer.json and what stands beside it."""

    json: bytes
    file: str
    """For messages."""
    kind: str
    """For people: what the tokenizer is and where it comes from."""
    bos_token: str | None
    eos_token: str | None


def read_source(files: TokenizerFiles) -> TokenizerSource:
    """Read a model's tokenizer.

    Raises:
        ModelFileError: If a file is missing, too large, or damaged.
        UnsupportedModelError: If it names a kind of tokenizer that Octavo does not have.
    """
    path = files.tokenizer_json or files.gguf or files.vocabulary
    if path is None:
        raise ModelFileError("tokenizer.json", "file", "the model has no tokenizer")
    if files.tokenizer_json is not None:
        data = read_small(path, MAX_TOKENIZER_BYTES)
        return _source(data, path.name, "tokenizer.json", files.bos_token, files.eos_token)
    if files.gguf is not None:
        return _of_gguf(files)
    if files.merges is not None:
        content, bos, eos = merges_json(files)
        return _source(content, path.name, "byte-level BPE (vocab.json, merges.txt)", bos, eos)
    if path.name == TEKKEN:
        content, bos, eos = tekken_json(path, files.add_bos)
        return _source(
            content, path.name, "byte-level BPE (tekken.json)", files.bos_token or bos, files.eos_token or eos
        )
    data = read_small(path, MAX_FILE_BYTES)
    if is_ranks(data):
        content, bos, eos = tiktoken_json(files, data, path.name)
        return _source(content, path.name, f"byte-level BPE (ranks in {path.name})", bos, eos)
    return _of_sentencepiece(parse_sentencepiece(data, path.name), files, path.name)


def _source(data: bytes | Part, file: str, kind: str, bos: str | None, eos: str | None) -> TokenizerSource:
    raw = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return TokenizerSource(json=raw, file=file, kind=kind, bos_token=bos, eos_token=eos)


def _of_gguf(files: TokenizerFiles) -> TokenizerSource:
    assert files.gguf is not None
    with GGUFFile(files.gguf) as gguf:
        vocabulary = read_vocabulary(gguf)
    tokens = vocabulary.tokens
    bos = tokens[vocabulary.bos_id] if vocabulary.bos_id is not None else files.bos_token
    eos = tokens[vocabulary.eos_id] if vocabulary.eos_id is not None else files.eos_token
    words = f", words as in {vocabulary.pre}" if vocabulary.model == "gpt2" else ""
    kind = f"{_GGUF_KINDS.get(vocabulary.model, vocabulary.model)} (GGUF metadata{words})"
    return _source(tokenizer_json(vocabulary, files.gguf.name), files.gguf.name, kind, bos, eos)


_GGUF_KINDS = {
    "gpt2": "byte-level BPE",
    "llama": "SentencePiece BPE",
    "gemma4": "SentencePiece BPE",
    "t5": "SentencePiece unigram",
}


def _of_sentencepiece(model: SentencePieceModel, files: TokenizerFiles, file: str) -> TokenizerSource:
    pieces = list(model.pieces)
    for token in files.added:  # some models have other names for pieces that stand there to be named
        if token.id is not None and token.id < len(pieces) and token.content not in pieces:
            pieces[token.id] = token.content
    ids = {piece: i for i, piece in enumerate(pieces)}
    added: list[dict[str, Any]] = []
    for token in files.added:
        token_id = ids.get(token.content, token.id)
        if token_id is not None and (token_id >= len(pieces) or token.special):
            flags = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word")}
            added.append(added_token(token_id, token.content, special=token.special, **flags))
    known = ids | {token["content"]: token["id"] for token in added}
    bos_id = known.get(files.bos_token, model.bos_id) if files.bos_token else model.bos_id
    eos_id = known.get(files.eos_token, model.eos_id) if files.eos_token else model.eos_id
    prefix = model.add_dummy_prefix if files.add_prefix_space is None else files.add_prefix_space
    llama = files.tokenizer_class in ("LlamaTokenizer", "LlamaTokenizerFast") or files.model_type in _LIKE_LLAMA
    model = msgspec.structs.replace(
        model,
        pieces=pieces,
        add_dummy_prefix=prefix,
        # As Hugging Face's tokenizers of these families, which keep a text's spaces as they are.
        remove_extra_whitespaces=model.remove_extra_whitespaces and not llama,
        bos_id=bos_id,
        eos_id=eos_id,
    )
    content = sentencepiece_json(
        model,
        file,
        added=added,
        add_bos=files.add_bos,
        add_eos=files.add_eos,
        every_part=files.legacy is not False,
    )
    bos = None if bos_id is None else _content(pieces, added, bos_id)
    eos = None if eos_id is None else _content(pieces, added, eos_id)
    return _source(content, file, f"SentencePiece {'BPE' if model.kind == 'bpe' else 'unigram'} ({file})", bos, eos)


_LIKE_LLAMA = frozenset({"llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text", "phi3"})


def _content(pieces: list[str], added: list[Part], token_id: int) -> str:
    if token_id < len(pieces):
        return pieces[token_id]
    return str(next(token["content"] for token in added if token["id"] == token_id))
