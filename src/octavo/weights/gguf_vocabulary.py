"""The tokenizer that a GGUF file carries, checked."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError
from octavo.weights.gguf import GGUFFile

MAX_TOKENS = 1 << 20
_BOS_BY_DEFAULT = frozenset(
    {"llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken", "chameleon"}
)
_NO_TOKEN = 0xFFFFFFFF
"""Some writers store -1, "none", in the unsigned field."""


class GGUFVocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The `tokenizer.ggml.*` metadata. Lists that belong to tokens are as long as `tokens`."""

    model: str
    """Kind of tokenizer: "gpt2" (byte-level BPE), "llama" (SentencePiece), ..."""
    pre: str | None
    """Name of the pre-tokenizer, for "gpt2"."""
    tokens: list[str]
    token_types: npt.NDArray[np.int32] | None
    """1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte."""
    scores: npt.NDArray[np.float32] | None
    merges: list[str]
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    padding_id: int | None
    add_bos: bool | None
    add_eos: bool | None
    add_space_prefix: bool | None
    remove_extra_whitespaces: bool | None = None
    charsmap: bytes | None = None
    """SentencePiece's compiled normaliser, for "t5"."""
    chat_template: str | None
    tool_template: str | None = None

    @property
    def adds_eos(self) -> bool:
        """Whether prompts end with the eos token."""
        return self.model == "t5" if self.add_eos is None else self.add_eos

    @property
    def adds_bos(self) -> bool:
        """Whether prompts begin with the bos token. Files that do not say follow llama.cpp's defaults."""
        if self.add_bos is not None:
            return self.add_bos
        return self.model == "llama" or self.pre in _BOS_BY_DEFAULT


def read_vocabulary(file: GGUFFile) -> GGUFVocabulary:
    """The vocabulary of `file`.

    Raises:
        ModelFileError: If there is none, or a part has another type or length than it must, or an id is out of range.
    """
    meta, name = file.metadata, file.path.name
    model = meta.get_str("tokenizer.ggml.model")
    array = meta.get_array("tokenizer.ggml.tokens", "string")
    if model is None or array is None:
        raise ModelFileError(name, "metadata", "holds no tokenizer (tokenizer.ggml.model and tokenizer.ggml.tokens)")
    if not 1 <= len(array) <= MAX_TOKENS:
        raise ModelFileError(
            name, "metadata 'tokenizer.ggml.tokens'", f"{len(array)} tokens; must be 1 to {MAX_TOKENS}"
        )
    tokens: list[str] = array.to_list()
    charsmap = meta.get_array("tokenizer.ggml.precompiled_charsmap", "uint8", "int8")
    return GGUFVocabulary(
        model=model,
        pre=meta.get_str("tokenizer.ggml.pre"),
        tokens=tokens,
        token_types=_numbers(file, "tokenizer.ggml.token_type", "int32", len(tokens)),
        scores=_numbers(file, "tokenizer.ggml.scores", "float32", len(tokens)),
        merges=meta.get_strings("tokenizer.ggml.merges") or [],
        bos_id=token_id(file, "bos", len(tokens)),
        eos_id=token_id(file, "eos", len(tokens)),
        unknown_id=token_id(file, "unknown", len(tokens)),
        padding_id=token_id(file, "padding", len(tokens)),
        add_bos=meta.get_bool("tokenizer.ggml.add_bos_token"),
        add_eos=meta.get_bool("tokenizer.ggml.add_eos_token"),
        add_space_prefix=meta.get_bool("tokenizer.ggml.add_space_prefix"),
        remove_extra_whitespaces=meta.get_bool("tokenizer.ggml.remove_extra_whitespaces"),
        charsmap=None if charsmap is None else charsmap.to_numpy().tobytes(),
        chat_template=meta.get_str("tokenizer.chat_template"),
        tool_template=meta.get_str("tokenizer.chat_template.tool_use"),
    )


def token_id(file: GGUFFile, role: str, num_tokens: int) -> int | None:
    """The id that `tokenizer.ggml.<role>_token_id` names, or None. It must be below `num_tokens`."""
    key = f"tokenizer.ggml.{role}_token_id"
    value = file.metadata.get_int(key)
    if value is None or value == _NO_TOKEN:
        return None
    if not 0 <= value < num_tokens:
        raise ModelFileError(file.path.name, f"metadata {key!r}", f"is {value}; the vocabulary has {num_tokens} tokens")
    return value


def _numbers(file: GGUFFile, key: str, element_type: str, count: int) -> npt.NDArray[Any] | None:
    array = file.metadata.get_array(key, element_type)
    if array is None:
        return None
    if len(array) != count:
        raise ModelFileError(file.path.name, f"metadata {key!r}", f"{len(array)} elements for {count} tokens")
    return array.to_numpy()
