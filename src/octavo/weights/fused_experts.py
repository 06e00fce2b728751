"""Mixtures of experts whose weights transformers saved as it computes with them: all experts of a layer in one tensor.

`...mlp.experts.gate_up_proj` `[experts, 2 * inner, hidden]` holds gate and up of one expert after another,
`...mlp.experts.down_proj` `[experts, hidden, inner]` the rest. Elsewhere each expert has tensors of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from octavo.weights.shards import Shards

_FUSED = re.compile(r"(.+)\.mlp\.experts\.(gate_up_proj|down_proj)")
_NAMES = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}
_MIXTRAL_NAMES = {"gate_up_proj": ("w1", "w3"), "down_proj": ("w2",)}
_ROUTER = ".mlp.gate.weight"


def cut_experts(shards: Shards, config: Mapping[str, Any]) -> None:
    """Put tensors for each expert in the place of those that hold all of a layer.

    Raises:
        ModelFileError: If such a tensor has an odd shape, or an expert's is there besides.
    """
    for name in list(shards):
        pieces = pieces_of(name, shards.tensor(name).shape, config)
        if pieces:
            shards.cut(name, pieces)


def pieces_of(name: str, shape: tuple[int, ...], config: Mapping[str, Any]) -> list[str]:
    """The names, in the usual way to save, of the equal pieces that a tensor holds; none if it is saved that way."""
    mixtral = config.get("model_type") == "mixtral"  # whose usual names are those of its first code
    if mixtral and name.endswith(_ROUTER):
        return [f"{name.removesuffix(_ROUTER)}.block_sparse_moe.gate.weight"]
    match = _FUSED.fullmatch(name)
    if match is None or len(shape) != 3 or shape[0] not in (config.get("num_experts"), config.get("num_local_experts")):
        return []
    layer, part = match.groups()
    names = (_MIXTRAL_NAMES if mixtral else _NAMES)[part]
    module = "block_sparse_moe" if mixtral else "mlp"
    return [f"{layer}.{module}.experts.{expert}.{each}.weight" for expert in range(shape[0]) for each in names]
