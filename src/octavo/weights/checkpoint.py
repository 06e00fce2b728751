"""Checkpoint: one face for every format a model can be stored in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import GroupedWeight
from octavo.weights.naming import Naming

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""float32, or uint16 holding the bits of bfloat16."""


class TensorInfo(msgspec.Struct, frozen=True):
    """A stored tensor. `dtype` is the format's own name in lower case: bf16, f16, f32, q4_1, ..."""

    shape: tuple[int, ...]
    dtype: str
    quantized: bool = False
    """A matrix that a tool has quantised: [out, in], whatever order the family has its own matrices in."""


class AddedToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token that stands beside the vocabulary proper and is looked for in the text first."""

    content: str
    id: int | None = None
    special: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer is built from. One of the first three is set."""

    tokenizer_json: Path | None = None
    gguf: Path | None = None
    vocabulary: Path | None = None
    """vocab.json, tokenizer.model, tekken.json or a .tiktoken file: see `engine.tokenizer_sources`."""
    merges: Path | None = None
    """merges.txt, with vocab.json."""
    chat_template: str | None = None
    """Jinja source, from tokenizer_config.json, chat_template.jinja or the GGUF metadata."""
    tool_template: str | None = None
    """The one to use instead in conversations with tools, where a model has two."""
    bos_token: str | None = None
    eos_token: str | None = None
    unknown_token: str | None = None
    add_bos: bool | None = None
    """Whether a text begins with the bos token; None where no file says so. A tokenizer.json says it by itself."""
    add_eos: bool | None = None
    add_prefix_space: bool | None = None
    legacy: bool | None = None
    """Of Llama's: whether each text between two control tokens gets the space in front, and not only the first."""
    added: tuple[AddedToken, ...] = ()
    tokenizer_class: str = ""
    model_type: str = ""
    """Of config.json: the family, for what only the family says."""


class Checkpoint(Protocol):
    """A model on disk, whatever its format, in Hugging Face's words: what is behind this protocol is written once.

    `config` has the keys of the family's `config.json`. Rows of queries and keys are in rotate-half order.
    """

    path: Path
    config: dict[str, Any]
    naming: Naming | None
    """Where the tensors are; None where the family's Hugging Face checkpoints have them."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What is stored and of no use here, for people."""

    def names(self) -> Iterable[str]: ...
    def info(self, name: str) -> TensorInfo:
        """Raises ModelFileError when there is no such tensor."""

    def check_readable(self, name: str) -> None:
        """Raises UnsupportedModelError when `read` would: the tensor is stored in a way that is not read."""

    def read(self, name: str, dtype: str, *, out: FloatArray | None = None) -> FloatArray:
        """The tensor as "float32" or "bfloat16" (uint16 holding its bits, rounded to nearest even).

        `out` receives it without another copy: a contiguous array of the tensor's size and that dtype, for example
        some rows of a larger one.
        """

    def read_grouped(self, name: str) -> GroupedWeight | None:
        """The matrix with the integers and scales that are stored; None if it is stored as floats."""

    def hollow_grouped(self, name: str) -> GroupedWeight | None:
        """The shape and format of what `read_grouped` gives, all zeros that take no memory. Nothing is read."""

    def fingerprint(self) -> str:
        """Hex digest that changes with the weights: hashes header, sizes and a sample of the data, in milliseconds."""

    def tokenizer_files(self) -> TokenizerFiles: ...
    def close(self) -> None: ...
