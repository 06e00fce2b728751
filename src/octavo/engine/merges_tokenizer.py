"""Byte-level BPE in vocab.json and merges.txt, as GPT-2, OPT and Qwen 2 were first published, rewritten as a
tokenizer.json. The files do not say how text is cut into words, nor what stands before it; the family does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from octavo.engine.pre_tokenizers import pre_tokenizer
from octavo.engine.tokenizer_json import Part, added_token, around, bpe, byte_level, whole
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.files import read_json, read_text

MAX_MERGES_BYTES = 64 << 20
MAX_TOKENS = 1 << 20


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What the two files leave unsaid, where the files beside them say nothing either."""

    pre: str
    """Of `PRE_TOKENIZERS`."""
    bos: str | None = "<|endoftext|>"
    eos: str = "<|endoftext|>"
    pad: str | None = None
    add_bos: bool = False


_GPT2 = Family(pre="gpt-2")
_QWEN2 = Family(pre="qwen2", bos=None)
_DIGITS = Family(pre="starcoder")
_OPT = Family(pre="gpt-2", bos="</s>", eos="</s>", pad="<pad>", add_bos=True)
FAMILIES = {
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj", "codegen", "phi"), _GPT2),
    "opt": _OPT,
    **dict.fromkeys(("gpt_bigcode", "starcoder2", "granite"), _DIGITS),
    **dict.fromkeys(("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"), _QWEN2),
    "qwen3_5": Family(pre="qwen35", bos=None),
}
"""By `model_type` of config.json."""


def merges_json(files: TokenizerFiles) -> tuple[Part, str | None, str | None]:
    """A tokenizer.json of the two files, and its beginning and end of sequence.

    Raises:
        ModelFileError: If a file is missing or damaged, or merges name no tokens.
        UnsupportedModelError: For a family that is not in the table.
    """
    assert files.vocabulary is not None and files.merges is not None
    family = FAMILIES.get(files.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"{files.vocabulary.name}: of the family {files.model_type[:40]!r}, and the file does not say how text is "
            f"cut into words; known are {', '.join(FAMILIES)}; a tokenizer.json says it itself"
        )
    ids = _ids(files.vocabulary)
    merges = _merges(files.merges, ids)
    bos, eos = files.bos_token or family.bos, files.eos_token or family.eos
    added = _added(files, ids, [bos, eos, family.pad])
    known = ids | {token["content"]: token["id"] for token in added}
    begins = family.add_bos if files.add_bos is None else files.add_bos
    before = [(bos, known[bos])] if begins and bos is not None and bos in known else []
    after = [(eos, known[eos])] if files.add_eos and eos in known else []
    cut = pre_tokenizer(family.pre, files.vocabulary.name)
    words = cut.parts
    if files.add_prefix_space and words == byte_level(use_regex=True):
        words = byte_level(use_regex=True, add_prefix_space=True)
    parts = {
        "normalizer": {"type": "NFC"} if cut.nfc else None,
        "pre_tokenizer": words,
        "decoder": byte_level(use_regex=True),
        "model": bpe(ids, merges),
    }
    return whole(parts, added, around(before, after)), bos if bos in known else None, eos if eos in known else None


def _ids(path: Path) -> dict[str, int]:
    ids = read_json(path, dict[str, int])
    if not 1 <= len(ids) <= MAX_TOKENS or not all(0 <= i < 2 * MAX_TOKENS for i in ids.values()):
        raise ModelFileError(path.name, "file", f"must map 1 to {MAX_TOKENS} tokens to their ids")
    if len(set(ids.values())) != len(ids):
        raise ModelFileError(path.name, "file", "gives one id to two tokens")
    return ids


def _merges(path: Path, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for number, line in enumerate(read_text(path, MAX_MERGES_BYTES).split("\n"), 1):
        line = line.rstrip("\r")
        if not line or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise ModelFileError(path.name, f"line {number}", f"merge {line[:40]!r} names no tokens")
        merges.append((left, right))
    return merges


def _added(files: TokenizerFiles, ids: dict[str, int], named: list[str | None]) -> list[Part]:
    """Control tokens: those that files name, and the family's as far as the vocabulary has them."""
    found: dict[str, Part] = {}
    for token in files.added:
        token_id = ids.get(token.content, token.id)
        if token_id is not None:
            flags = {flag: getattr(token, flag) for flag in ("lstrip", "rstrip", "single_word", "normalized")}
            found[token.content] = added_token(token_id, token.content, special=token.special, **flags)
    for name in named:
        if name is not None and name in ids and name not in found:
            found[name] = added_token(ids[name], name, special=True)
    return sorted(found.values(), key=lambda token: int(token["id"]))
