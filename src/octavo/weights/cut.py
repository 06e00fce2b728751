"""One stored tensor as several: the weights of all experts of a layer often lie in one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from octavo.errors import ModelFileError
from octavo.weights.gguf import GGUFTensor
from octavo.weights.safetensors import SafeTensor

_Stored = TypeVar("_Stored", GGUFTensor, SafeTensor)


def cut(tensors: dict[str, _Stored], name: str, pieces: Sequence[str], file: str) -> None:
    """Put equal pieces of a tensor in its place, matrices of its rows (the last axis), one piece after another.

    Args:
        tensors: Of an open file, by name. Their place there is all that is looked at.
        pieces: Their names.
        file: For messages.

    Raises:
        ModelFileError: If the rows do not divide into so many pieces, or there is a tensor of a piece's name.
    """
    tensor = tensors.pop(name)
    rows, rest = divmod(math.prod(tensor.shape[:-1]), len(pieces))
    if rest or rows == 0:
        raise ModelFileError(file, f"tensor {name!r}", f"has shape {tensor.shape}; must hold {len(pieces)} matrices")
    size = tensor.num_bytes // len(pieces)
    for number, piece in enumerate(pieces):
        if piece in tensors:
            raise ModelFileError(file, f"tensor {piece[:100]!r}", f"is a part of {name[:100]!r}, and there beside it")
        tensors[piece] = msgspec.structs.replace(
            tensor, name=piece, shape=(rows, tensor.shape[-1]), offset=tensor.offset + number * size, num_bytes=size
        )
