"""The rotary embedding of a GGUF model in the words of a Hugging Face config."""

from __future__ import annotations

from typing import Any

import numpy as np

from octavo.errors import ModelFileError, UnsupportedModelError
from octavo.weights.dequantize import dequantize
from octavo.weights.gguf_header import GGUFHeader

PLAIN, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
FACTORS = (PLAIN, SHORT, LONG)
"""Tensors that say what a Hugging Face config says in `rope_parameters`."""


def rope_config(header: GGUFHeader, head_dim: int, context: int) -> dict[str, Any]:
    """`rope_theta`, `rope_parameters` and, with factors, `original_max_position_embeddings`.

    Frequency factors become `rope_type` "longrope". `rope_freqs.weight` is one list for all lengths: it is the short
    and the long one, with an attention factor of 1, which is what it computes: inv_freq[i] / factor[i].

    Args:
        context: Tokens.

    Raises:
        ModelFileError: If a number is missing or of the wrong type.
        UnsupportedModelError: If a kind of scaling is not supported.
    """
    theta = header.get_float("rope.freq_base") or 10000.0
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    rotated = header.get_int("rope.dimension_count")
    if rotated is not None and rotated != head_dim:
        if not 2 <= rotated < head_dim or rotated % 2:
            raise header.wrong("rope.dimension_count", f"is {rotated}")
        rope["partial_rotary_factor"] = rotated / head_dim
    rope |= _scaling(header)
    config: dict[str, Any] = {"rope_theta": theta, "rope_parameters": rope}
    factors = _factors(header, rotated or head_dim)
    if factors and rope["rope_type"] != "default":
        raise UnsupportedModelError(f"{header.name}: {rope['rope_type']} rope scaling with frequency factors")
    if factors:
        rope |= factors
        original = header.get_int("rope.scaling.original_context_length")
        config["original_max_position_embeddings"] = original or context
    return config


def _scaling(header: GGUFHeader) -> dict[str, Any]:
    kind = header.get_str("rope.scaling.type") or "none"
    legacy = header.get_float("rope.scale_linear")
    if kind == "none":
        return {"rope_type": "linear", "factor": legacy} if legacy not in (None, 0.0, 1.0) else {}
    if kind == "longrope":  # the factors are tensors
        return {}
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(
            f"{header.name}: rope scaling {kind[:40]!r}; supported are linear, longrope and yarn"
        )
    scaling: dict[str, Any] = {"rope_type": kind, "factor": header.need_float("rope.scaling.factor")}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = header.need_int("rope.scaling.original_context_length")
        scaling |= header.floats(
            beta_fast="rope.scaling.yarn_beta_fast",
            beta_slow="rope.scaling.yarn_beta_slow",
        )
        # llama.cpp multiplies YaRN's own factor with these; Hugging Face's attention_factor takes its place.
        for key in ("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"):
            if header.get_float(key) not in (None, 1.0):
                raise UnsupportedModelError(f"{header.name}: {key} = {header.get_float(key)} with yarn; supported is 1")
    return scaling


def _factors(header: GGUFHeader, rotated: int) -> dict[str, Any]:
    if header.has(PLAIN):
        plain = _values(header, PLAIN, rotated)
        return {"rope_type": "longrope", "short_factor": plain, "long_factor": plain, "attention_factor": 1.0}
    if not header.has(SHORT, LONG):
        return {}
    return {
        "rope_type": "longrope",
        "short_factor": _values(header, SHORT, rotated),
        "long_factor": _values(header, LONG, rotated),
        "attention_factor": header.get_float("rope.scaling.attn_factor") or 1.0,
    }


def _values(header: GGUFHeader, name: str, rotated: int) -> list[float]:
    what, tensor = f"tensor {name!r}", header.file.tensor(name)
    if tensor.shape != (rotated // 2,) or tensor.type.name != "f32":
        raise ModelFileError(
            header.name, what, f"is {tensor.type.name} of shape {tensor.shape}; must be f32 of ({rotated // 2},)"
        )
    factors = dequantize(header.file.tensor_data(name), "f32", tensor.shape, "float32")
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ModelFileError(header.name, what, "holds a factor that is not a finite number above 0")
    values: list[float] = factors.tolist()
    return values
