"""Byte-level BPE by ranks, as tiktoken has it, rewritten as a tokenizer.json.

A vocabulary is a list of byte strings; the rank of one is its id and the priority of the merge that makes it. Three
kinds of files hold one: lines of base64 (Llama 3's tokenizer.model, Qwen's qwen.tiktoken), which say nothing of the
words that text is cut into or of control tokens, and Mistral's tekken.json, which says both.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from octavo.engine.pre_tokenizers import LLAMA3, QWEN2, splits
from octavo.engine.token_bytes import CHAR_OF_BYTE
from octavo.engine.tokenizer_json import Part, added_token, around, bpe, byte_level, whole
from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.checkpoint import TokenizerFiles
from octavo.weights.files import decode_json, read_small

MAX_FILE_BYTES = 64 << 20
MAX_TOKENS = 1 << 20
MAX_TOKEN_BYTES = 1 << 10
TEKKEN = "tekken.json"


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """What files of ranks leave unsaid."""

    pattern: str
    nfc: bool = False
    specials: tuple[str, ...]
    """Control tokens, from the first id after the ranks on."""
    bos: str | None = None
    eos: str


def _llama3_specials() -> tuple[str, ...]:
    """Of Llama 3.1 and later: 256, most of them reserved."""
    named = {0: "begin_of_text", 1: "end_of_text", 4: "finetune_right_pad_id", 6: "start_header_id", 7: "end_header_id",
             8: "eom_id", 9: "eot_id", 10: "python_tag"}  # fmt: skip
    reserved = iter(range(256))
    return tuple(f"<|{named.get(i) or f'reserved_special_token_{next(reserved)}'}|>" for i in range(256))


_LLAMA3 = Family(pattern=LLAMA3, specials=_llama3_specials(), bos="<|begin_of_text|>", eos="<|end_of_text|>")
_QWEN_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)))
_QWEN = Family(pattern=QWEN2, nfc=True, specials=_QWEN_SPECIALS, eos="<|endoftext|>")
FAMILIES = {"llama": _LLAMA3, "qwen": _QWEN, "qwen2": _QWEN}
"""By `model_type` of config.json. Llama 1 and 2 have no file of ranks."""


def is_ranks(data: bytes) -> bool:
    """Whether a file holds lines of base64 and not a protobuf, which begins with a byte that no such line has."""
    return data[:1] not in (b"\n", b"") and b" " in data.split(b"\n", 1)[0]


def tiktoken_json(files: TokenizerFiles, data: bytes, file: str) -> tuple[Part, str | None, str | None]:
    """A tokenizer.json of a file of ranks, and its beginning and end of sequence.

    Raises:
        ModelFileError: If a line is none, or ranks leave gaps.
        UnsupportedModelError: For a family whose words and control tokens are not known.
    """
    family = FAMILIES.get(files.model_type)
    if family is None:
        raise UnsupportedModelError(
            f"{file}: a tiktoken vocabulary of the family {files.model_type[:40]!r}, which does not say how text is "
            f"cut into words; known are {', '.join(FAMILIES)}"
        )
    tokens = _read_ranks(data, file)
    names = list(family.specials)
    for token in files.added:
        if token.id is not None and len(tokens) <= token.id < len(tokens) + len(names):
            names[token.id - len(tokens)] = token.content
    added = [added_token(len(tokens) + i, name, special=True) for i, name in enumerate(names)]
    bos, eos = files.bos_token or family.bos, files.eos_token or family.eos
    ids = {name: len(tokens) + i for i, name in enumerate(names)}
    begins = family.bos is not None if files.add_bos is None else files.add_bos
    before = [(bos, ids[bos])] if begins and bos in ids else []
    parts = {
        "normalizer": {"type": "NFC"} if family.nfc else None,
        "pre_tokenizer": splits(family.pattern),
        "decoder": byte_level(use_regex=True),
        "model": _by_rank(tokens, {}, offset=0),
    }
    return whole(parts, added, around(before, [])), bos, eos


def _read_ranks(data: bytes, file: str) -> list[bytes]:
    if len(data) > MAX_FILE_BYTES:
        raise ModelFileError(file, "file", f"is larger than {MAX_FILE_BYTES} bytes")
    tokens: list[bytes] = []
    for line in data.splitlines():
        if not line.strip():
            continue
        spelling, _, rank = line.partition(b" ")
        if len(tokens) == MAX_TOKENS or not rank.strip().isdigit() or int(rank) != len(tokens):
            raise ModelFileError(
                file, f"line {len(tokens) + 1}", f"must be a token in base64 and the rank {len(tokens)}"
            )
        tokens.append(_from_base64(spelling, file, len(tokens)))
    return tokens


def _from_base64(spelling: bytes | str, file: str, rank: int) -> bytes:
    try:
        token = base64.b64decode(spelling, validate=True)
    except (binascii.Error, ValueError):
        token = b""
    if not 1 <= len(token) <= MAX_TOKEN_BYTES:
        raise ModelFileError(file, f"token {rank}", f"must be 1 to {MAX_TOKEN_BYTES} bytes in base64")
    return token


def _by_rank(tokens: Sequence[bytes], others: Mapping[str, int], *, offset: int) -> Part:
    """The BPE model in which a token's id is its rank and `offset`, with other tokens beside."""
    rank_of = {token: rank for rank, token in enumerate(tokens)}
    spelled = ["".join(map(CHAR_OF_BYTE.__getitem__, token)) for token in tokens]
    merges: list[tuple[str, str]] = []
    for token in tokens:
        pairs = []
        for cut in range(1, len(token)):
            left, right = rank_of.get(token[:cut]), rank_of.get(token[cut:])
            if left is not None and right is not None:
                pairs.append((left, right))
        merges += [(spelled[left], spelled[right]) for left, right in sorted(pairs)]
    ids = {spelling: rank + offset for rank, spelling in enumerate(spelled)}
    return bpe({**others, **ids}, merges, ignore_merges=True)


class _TekkenConfig(msgspec.Struct):
    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int = 1000


class _TekkenToken(msgspec.Struct):
    rank: int
    token_bytes: str


class _TekkenSpecial(msgspec.Struct):
    rank: int
    token_str: str


class _Tekken(msgspec.Struct):
    config: _TekkenConfig
    vocab: list[_TekkenToken]
    special_tokens: list[_TekkenSpecial] | None = None


_OLD_SPECIALS = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip
"""Of files that name none."""


def tekken_json(path: Path, add_bos: bool | None) -> tuple[Part, str | None, str | None]:
    """A tokenizer.json of a tekken.json: control tokens have the first ids, and ranks count on from there.

    Raises:
        ModelFileError: If a field is missing, or ranks leave gaps.
    """
    file = path.name
    tekken = decode_json(read_small(path, MAX_FILE_BYTES), _Tekken, file, "file")
    config = tekken.config
    offset, size = config.default_num_special_tokens, config.default_vocab_size
    if not 0 <= offset < size <= MAX_TOKENS or len(tekken.vocab) < size - offset:
        why = f"{size} tokens, {offset} of them special, of a list of {len(tekken.vocab)}"
        raise ModelFileError(file, "config", f"tells of {why}")
    tokens = []
    for rank, token in enumerate(tekken.vocab[: size - offset]):
        if token.rank != rank:
            raise ModelFileError(file, f"vocab[{rank}].rank", f"is {token.rank}; must be {rank}")
        tokens.append(_from_base64(token.token_bytes, file, rank))
    names = [f"<SPECIAL_{i}>" for i in range(offset)]
    listed = tekken.special_tokens
    given = enumerate(_OLD_SPECIALS) if listed is None else ((token.rank, token.token_str) for token in listed)
    for rank, name in given:
        if not 0 <= rank < offset or not name:
            raise ModelFileError(file, "special_tokens", f"rank {rank} is not one of {offset}")
        names[rank] = name
    ids = {name: i for i, name in enumerate(names)}
    bos = "<s>" if "<s>" in ids else None
    parts = {
        "normalizer": None,
        "pre_tokenizer": splits(config.pattern),
        "decoder": byte_level(use_regex=True),
        "model": _by_rank(tokens, ids, offset=offset),
    }
    before = [(bos, ids[bos])] if bos is not None and add_bos is not False else []
    added = [added_token(i, name, special=True) for i, name in enumerate(names)]
    return whole(parts, added, around(before, [])), bos, "</s>" if "</s>" in ids else None
