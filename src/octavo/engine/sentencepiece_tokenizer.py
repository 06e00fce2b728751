"""A SentencePiece model, rewritten as the parts of a tokenizer.json that encodes as SentencePiece itself does.

Where the two part ways: spellings of control tokens in a text become those tokens, as in every tokenizer.json, and in a
unigram model the spelling of a byte (`<0x0A>`) becomes that byte.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence

from octavo.engine.tokenizer_json import (
    SPACE,
    Part,
    added_token,
    around,
    bpe,
    ids_of,
    normalizers,
    pre_tokenizers,
    replace,
    split,
    whole,
)
from octavo.errors import ModelFileError
from octavo.weights.sentencepiece import BPE, CONTROL, NORMAL, UNKNOWN, USER_DEFINED, SentencePieceModel

_BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def sentencepiece_json(
    model: SentencePieceModel,
    file: str,
    *,
    added: Sequence[Part] = (),
    add_bos: bool | None = None,
    add_eos: bool | None = None,
    every_part: bool = True,
) -> Part:
    """The contents of a tokenizer.json.

    Args:
        file: Its name, for messages.
        added: Tokens that stand beside the model's own.
        add_bos, add_eos: What is put around a text. Without a word on it a BPE model's text gets a beginning (as in
            Llama, Mistral and Gemma) and a unigram model's text an end (as in T5).
        every_part: Whether each text between two added tokens gets the space in front, and not only the first.

    Raises:
        ModelFileError: If the pieces contradict each other.
    """
    is_bpe = model.kind == BPE
    ids = ids_of(model.pieces, file, "pieces")
    missing = next((piece for piece in _BYTE_PIECES if piece not in ids), None) if model.byte_fallback else None
    if missing is not None:
        raise ModelFileError(file, "pieces", f"say that bytes are pieces, but there is no {missing}")
    own = _own_added_tokens(model)
    taken = {token["id"] for token in added}
    parts = {
        "normalizer": _normalizer(model, every_part),
        "pre_tokenizer": _pre_tokenizer(model, every_part),
        "decoder": _decoder(model),
        "model": _bpe(model, ids) if is_bpe else _unigram(model, file),
    }
    names = dict(enumerate(model.pieces)) | {token["id"]: token["content"] for token in added}
    bos = model.bos_id if (is_bpe if add_bos is None else add_bos) else None
    eos = model.eos_id if (not is_bpe if add_eos is None else add_eos) else None
    before, after = ([] if i is None else [(names[i], i)] for i in (bos, eos))
    return whole(parts, [*(token for token in own if token["id"] not in taken), *added], around(before, after))


def _splits_user_defined(model: SentencePieceModel) -> bool:
    """Whether pieces of the user's are cut out behind the space in front. In other BPE models they are added tokens,
    which are found before it and would part the text."""
    return model.kind == BPE and model.add_dummy_prefix


def _user_defined(model: SentencePieceModel) -> list[str]:
    return [piece for piece, kind in zip(model.pieces, model.types, strict=True) if kind == USER_DEFINED]


def _own_added_tokens(model: SentencePieceModel) -> list[Part]:
    found = []
    for i, (piece, kind) in enumerate(zip(model.pieces, model.types, strict=True)):
        if kind in (UNKNOWN, CONTROL):
            found.append(added_token(i, piece, special=True))
        elif kind == USER_DEFINED and model.kind == BPE and not _splits_user_defined(model):
            found.append(added_token(i, piece.replace(SPACE, " "), special=False, normalized=True))
    return found


def _normalizer(model: SentencePieceModel, every_part: bool) -> Part | None:
    parts: list[Part] = []
    if model.charsmap:
        parts.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        parts += [replace(rf"\A +|[ {SPACE}]+\z", "", regex=True), replace(" {2,}", " ", regex=True)]
    if model.add_dummy_prefix and every_part:
        parts.append({"type": "Prepend", "prepend": SPACE})
    return normalizers(*parts, replace(" ", SPACE))


def _pre_tokenizer(model: SentencePieceModel, every_part: bool) -> Part | None:
    parts: list[Part] = []
    if model.add_dummy_prefix and not every_part:
        parts.append({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False})
    pieces = _user_defined(model) if _splits_user_defined(model) else []
    if pieces:
        parts.append(split("|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True))))
        parts.append(split(r"\A<(?=0x[0-9A-F]{2}>\z)"))  # or what is left between two would be taken for a byte
    return pre_tokenizers(*parts)


def _decoder(model: SentencePieceModel) -> Part:
    decoders: list[Part] = [replace(SPACE, " ")]
    if model.byte_fallback:
        decoders.append({"type": "ByteFallback"})
    decoders.append({"type": "Fuse"})
    if model.add_dummy_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": decoders}


def _bpe(model: SentencePieceModel, ids: dict[str, int]) -> Part:
    unknown = None if model.unknown_id is None else model.pieces[model.unknown_id]
    # A piece of the user's is cut out as a word of its own, and is no result of merges.
    own_words = _splits_user_defined(model) and USER_DEFINED in model.types
    return bpe(
        ids,
        merges_of_scores(model),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
        ignore_merges=own_words,
    )


def merges_of_scores(model: SentencePieceModel) -> list[tuple[str, str]]:
    """The merges that a SentencePiece BPE vocabulary implies, best first.

    SentencePiece joins, again and again, the neighbours that make the piece with the highest score. So each way to
    cut a piece into two pieces is a merge, ranked by the score of the whole.
    """
    normal = {
        piece: i
        for i, (piece, kind) in enumerate(zip(model.pieces, model.types, strict=True))
        if kind == NORMAL and len(piece) < 256  # longer ones would take time and are not merged in practice
    }
    merges: list[tuple[str, str]] = []
    for piece, _ in sorted(normal.items(), key=lambda item: (-model.scores[item[1]], item[1])):
        pairs = []
        for cut in range(1, len(piece)):
            left = normal.get(piece[:cut])
            if left is not None:
                right = normal.get(piece[cut:])
                if right is not None:
                    pairs.append((left, right, cut))
        merges += [(piece[:cut], piece[cut:]) for *_, cut in sorted(pairs)]
    return merges


def _unigram(model: SentencePieceModel, file: str) -> Part:
    if model.unknown_id is None:
        raise ModelFileError(file, "pieces", "hold no unknown one, which a unigram model must have")
    vocabulary = [[piece, score] for piece, score in zip(model.pieces, model.scores, strict=True)]
    return {
        "type": "Unigram",
        "unk_id": model.unknown_id,
        "vocab": vocabulary,
        "byte_fallback": model.byte_fallback,
    }
