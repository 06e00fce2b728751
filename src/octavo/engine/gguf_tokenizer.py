"""The tokenizer inside a GGUF file, rewritten as a tokenizer.json.

Kinds: "gpt2" (byte-level BPE with merges and a named way to cut text into words first), "llama" (SentencePiece BPE:
scores instead of merges), "gemma4" (the same with merges) and "t5" (SentencePiece unigram).
"""

from __future__ import annotations

from typing import Any

from octavo.engine.pre_tokenizers import pre_tokenizer
from octavo.engine.sentencepiece_tokenizer import sentencepiece_json
from octavo.engine.tokenizer_json import SPACE, Part, added_token, around, bpe, byte_level, ids_of, replace, whole
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.gguf_vocabulary import GGUFVocabulary
from octavo.weights.sentencepiece import (
    BPE,
    CONTROL,
    NORMAL,
    UNIGRAM,
    UNKNOWN,
    USER_DEFINED,
    SentencePieceModel,
)

KINDS = ("gpt2", "llama", "gemma4", "t5")
_TOKENS = "metadata 'tokenizer.ggml.tokens'"


def tokenizer_json(vocabulary: GGUFVocabulary, file: str) -> dict[str, Any]:
    """The contents of a tokenizer.json that encodes as the file's tokenizer does.

    Args:
        vocabulary: The checked metadata.
        file: The file's name, for messages.

    Raises:
        UnsupportedModelError: For a kind of tokenizer, or a pre-tokenizer, that is not known for sure.
        ModelFileError: If merges, scores or tokens contradict each other.
    """
    kind = vocabulary.model
    if kind not in KINDS:
        raise UnsupportedModelError(f"{file}: tokenizer model {kind[:40]!r}: supported are {', '.join(KINDS)}")
    if kind in ("llama", "t5"):
        return _sentencepiece(vocabulary, file)
    ids = ids_of(vocabulary.tokens, file, _TOKENS)
    parts = _byte_level(vocabulary, file, ids) if kind == "gpt2" else _merged_pieces(vocabulary, file, ids)
    return whole(parts, _added_tokens(vocabulary), _post_processor(vocabulary))


def _byte_level(vocabulary: GGUFVocabulary, file: str, ids: dict[str, int]) -> Part:
    cut = pre_tokenizer(vocabulary.pre, file)
    return {
        "normalizer": {"type": "NFC"} if cut.nfc else None,
        "pre_tokenizer": cut.parts,
        "decoder": byte_level(use_regex=True),
        "model": bpe(ids, _merges(vocabulary, file, ids), ignore_merges=cut.ignore_merges),
    }


def _merged_pieces(vocabulary: GGUFVocabulary, file: str, ids: dict[str, int]) -> Part:
    """Pieces spelled as SentencePiece spells them, with the merges in the file."""
    unknown = None if vocabulary.unknown_id is None else vocabulary.tokens[vocabulary.unknown_id]
    options = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": replace(" ", SPACE),
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [replace(SPACE, " "), {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": bpe(ids, _merges(vocabulary, file, ids), **options),
    }


def _merges(vocabulary: GGUFVocabulary, file: str, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ") if not merge.startswith(" ") else (" ", "", merge[2:])
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(file, "metadata 'tokenizer.ggml.merges'", f"merge {merge[:40]!r} names no tokens")
        merges.append((left, right))
    return merges


def _sentencepiece(vocabulary: GGUFVocabulary, file: str) -> Part:
    if vocabulary.scores is None:
        raise ModelFileError(file, "metadata 'tokenizer.ggml.scores'", "is missing")
    is_unigram = vocabulary.model == "t5"
    prefix = vocabulary.add_space_prefix is not False
    types = [NORMAL] * len(vocabulary.tokens) if vocabulary.token_types is None else vocabulary.token_types.tolist()
    # Tokens of the user's are found first. A text that gets a space in front gets it behind each of them, too.
    added = [
        added_token(i, token.replace(SPACE, " "), special=False, normalized=not prefix)
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, types, strict=True))
        if kind == USER_DEFINED
    ]
    model = SentencePieceModel(
        kind=UNIGRAM if is_unigram else BPE,
        pieces=vocabulary.tokens,
        scores=vocabulary.scores.tolist(),
        types=[CONTROL if kind == USER_DEFINED else kind for kind in types],
        unknown_id=vocabulary.unknown_id,
        bos_id=vocabulary.bos_id,
        eos_id=vocabulary.eos_id,
        byte_fallback="<0x00>" in vocabulary.tokens[:1024],
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=is_unigram and vocabulary.remove_extra_whitespaces is not False,
        charsmap=vocabulary.charsmap or b"",
    )
    return sentencepiece_json(model, file, added=added, add_bos=vocabulary.adds_bos, add_eos=vocabulary.adds_eos)


def _added_tokens(vocabulary: GGUFVocabulary) -> list[Part]:
    if vocabulary.token_types is None:
        return []
    return [
        added_token(i, token, special=kind != USER_DEFINED)
        for i, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.token_types.tolist(), strict=True))
        if kind in (UNKNOWN, CONTROL, USER_DEFINED) and token
    ]


def _post_processor(vocabulary: GGUFVocabulary) -> Part | None:
    """Begin-of-sequence and end-of-sequence tokens around a text, where the file asks for them."""
    tokens = vocabulary.tokens
    before = [vocabulary.bos_id] if vocabulary.adds_bos and vocabulary.bos_id is not None else []
    after = [vocabulary.eos_id] if vocabulary.adds_eos and vocabulary.eos_id is not None else []
    return around([(tokens[i], i) for i in before], [(tokens[i], i) for i in after])
