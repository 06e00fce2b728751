"""The tokenizer inside a GGUF file, rewritten as a tokenizer.json.

Two kinds: "gpt2" (byte-level BPE with merges and a named way to cut text into words first) and "llama"
(SentencePiece BPE: scores instead of merges, spaces written as U+2581, bytes as a fallback).
"""

from __future__ import annotations

from typing import Any

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.gguf_vocabulary import GGUFVocabulary

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "▁"

# Words of Llama 3 and Qwen 2: contractions; a letter run with the sign before it; digits, up to three or one at a time;
# other signs; ends of lines; spaces, the last of which belongs to the next word.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_LLAMA3_WORDS = r"\p{N}{1,3}".join(_WORDS)
_QWEN2_WORDS = r"\p{N}".join(_WORDS)


def _byte_level(use_regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def _sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


_DIGITS = {"type": "Digits", "individual_digits": True}
_PRE_TOKENIZERS: dict[str, dict[str, Any]] = {
    "gpt-2": _byte_level(use_regex=True),
    "default": _byte_level(use_regex=True),
    "smollm": _sequence(_DIGITS, _byte_level(use_regex=True)),
    "starcoder": _sequence(_DIGITS, _byte_level(use_regex=True)),
    "llama-bpe": _sequence(_split(_LLAMA3_WORDS), _byte_level(use_regex=False)),
    "qwen2": _sequence(_split(_QWEN2_WORDS), _byte_level(use_regex=False)),
}


def tokenizer_json(vocabulary: GGUFVocabulary, file: str) -> dict[str, Any]:
    """The contents of a tokenizer.json that encodes as the file's tokenizer does.

    Args:
        vocabulary: The checked metadata.
        file: The file's name, for messages.

    Raises:
        UnsupportedModelError: For a kind of tokenizer, or a pre-tokenizer, that is not known for sure.
        ModelFileError: If merges, scores or tokens contradict each other.
    """
    if vocabulary.model == "gpt2":
        parts = _byte_level_parts(vocabulary, file)
    elif vocabulary.model == "llama":
        parts = _sentencepiece_parts(vocabulary, file)
    else:
        raise UnsupportedModelError(f"{file}: tokenizer model {vocabulary.model!r}: only gpt2 and llama are supported")
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(vocabulary),
        "post_processor": _post_processor(vocabulary),
        **parts,
    }


def _ids(vocabulary: GGUFVocabulary, file: str) -> dict[str, int]:
    ids = {token: i for i, token in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        twice = next(token for i, token in enumerate(vocabulary.tokens) if ids[token] != i)
        raise ModelFileError(file, "metadata 'tokenizer.ggml.tokens'", f"token {twice[:40]!r} stands twice")
    return ids


def _byte_level_parts(vocabulary: GGUFVocabulary, file: str) -> dict[str, Any]:
    pre = vocabulary.pre
    if pre is None or pre not in _PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"{file}: pre-tokenizer {'(none named)' if pre is None else repr(pre[:40])}: "
            f"supported are {', '.join(_PRE_TOKENIZERS)}"
        )
    ids = _ids(vocabulary, file)
    merges = [tuple(merge.split(" ", 1)) for merge in vocabulary.merges]
    for pair in merges:
        if len(pair) != 2 or pair[0] not in ids or pair[1] not in ids or pair[0] + pair[1] not in ids:
            raise ModelFileError(
                file, "metadata 'tokenizer.ggml.merges'", f"merge {' '.join(pair)[:40]!r} names no tokens"
            )
    return {
        "normalizer": {"type": "NFC"} if pre == "qwen2" else None,
        "pre_tokenizer": _PRE_TOKENIZERS[pre],
        "decoder": _byte_level(use_regex=True),
        "model": _bpe(ids, merges, ignore_merges=pre == "llama-bpe"),
    }


def _sentencepiece_parts(vocabulary: GGUFVocabulary, file: str) -> dict[str, Any]:
    if vocabulary.scores is None:
        raise ModelFileError(file, "metadata 'tokenizer.ggml.scores'", "is missing")
    ids = _ids(vocabulary, file)
    unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    to_space: dict[str, Any] = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    prefix = vocabulary.add_space_prefix is not False
    normalizers = [{"type": "Prepend", "prepend": _SPACE}, to_space] if prefix else [to_space]
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    merges = merges_of_scores(vocabulary.tokens, vocabulary.scores.tolist(), ids)
    return {
        "normalizer": {"type": "Sequence", "normalizers": normalizers},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True),
    }


def merges_of_scores(tokens: list[str], scores: list[float], ids: dict[str, int]) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins, again and again, the neighbours that make the piece with the highest score. So each way to
    cut a piece into two pieces is a merge, ranked by the score of the whole.
    """
    ranked: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                ranked.append((-score, ids[left], ids[right], (left, right)))
    ranked.sort(key=lambda entry: entry[:3])
    return [pair for *_, pair in ranked]


def _bpe(ids: dict[str, int], merges: list[Any], **options: Any) -> dict[str, Any]:
    return {"type": "BPE", "vocab": ids, "merges": merges, **options}


def _added_tokens(vocabulary: GGUFVocabulary) -> list[dict[str, Any]]:
    if vocabulary.token_types is None:
        return []
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": i, "content": token, **flags, "special": kind != _USER_DEFINED}
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.token_types.tolist(), strict=True))
        if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
    ]


def _post_processor(vocabulary: GGUFVocabulary) -> dict[str, Any] | None:
    """Begin-of-sequence and end-of-sequence tokens around a text, where the file asks for them."""
    before = [vocabulary.bos_id] if vocabulary.adds_bos and vocabulary.bos_id is not None else []
    after = [vocabulary.eos_id] if vocabulary.add_eos and vocabulary.eos_id is not None else []
    if not before and not after:
        return None
    tokens = vocabulary.tokens
    special = {tokens[i]: {"id": tokens[i], "ids": [i], "tokens": [tokens[i]]} for i in {*before, *after}}

    def piece(i: int, type_id: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": tokens[i], "type_id": type_id}}

    def text(name: str, type_id: int) -> list[dict[str, Any]]:
        sequence = {"Sequence": {"id": name, "type_id": type_id}}
        return [*(piece(i, type_id) for i in before), sequence, *(piece(i, type_id) for i in after)]

    return {
        "type": "TemplateProcessing",
        "single": text("A", 0),
        "pair": text("A", 0) + text("B", 1),
        "special_tokens": special,
    }
