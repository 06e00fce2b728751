"""Checkpoint: one face for every format a model can be stored in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import GroupedWeight

FloatArray = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""float32, or uint16 holding the bits of bfloat16."""


class TensorInfo(msgspec.Struct, frozen=True):
    """A stored tensor. `dtype` is the format's own name in lower case: bf16, f16, f32, q4_1, ..."""

    shape: tuple[int, ...]
    dtype: str


class TokenizerFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What a tokenizer is built from. One of the first two is set."""

    tokenizer_json: Path | None = None
    gguf: Path | None = None
    chat_template: str | None = None
    """Jinja source, from tokenizer_config.json, chat_template.jinja or the GGUF metadata."""
    bos_token: str | None = None
    eos_token: str | None = None
    add_bos: bool = False


class Checkpoint(Protocol):
    """A model on disk, whatever its format, under Hugging Face's names.

    Tensor names and layouts are those of the Hugging Face checkpoint of the family (`model.layers.0.self_attn.
    q_proj.weight`, `[out, in]`, rotate-half order), and `config` has the keys of its `config.json`, so that
    everything behind this protocol is written once.
    """

    path: Path
    config: dict[str, Any]

    def names(self) -> Iterable[str]: ...
    def info(self, name: str) -> TensorInfo:
        """Raises ModelFileError when there is no such tensor."""

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
