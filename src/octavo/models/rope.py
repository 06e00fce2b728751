"""Rotary frequencies from a config: the plain ones and the ways to stretch them.

Formulas: Su et al., arXiv:2104.09864 (default); linear interpolation, arXiv:2306.15595; "llama3", the scaling that
Llama 3.1's config describes; "longrope" with one list of factors for every length.
"""

from __future__ import annotations

import math
from typing import Any

from octavo.backends.protocol import RopeParams
from octavo.errors import ModelFileError, UnsupportedModelError

_FILE = "config"


def rope_params(config: dict[str, Any], head_dim: int, max_position: int) -> RopeParams:
    """The rotary embedding that a Hugging Face config describes.

    Both spellings are read: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling`.

    Raises:
        ModelFileError: If a value is missing or out of range.
        UnsupportedModelError: If the kind of scaling is not one of the above.
    """
    rope = _settings(config)
    theta = _number(rope if "rope_theta" in rope else config, "rope_theta", 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    rotated = int(head_dim * _number(rope if "partial_rotary_factor" in rope else config, "partial_rotary_factor", 1.0))
    if rotated < 2 or rotated % 2 or rotated > head_dim:
        raise ModelFileError(_FILE, "partial_rotary_factor", f"rotates {rotated} of {head_dim} elements")
    frequencies = [theta ** (-2.0 * i / rotated) for i in range(rotated // 2)]
    scale = 1.0
    if kind == "linear":
        factor = _number(rope, "factor")
        frequencies = [f / factor for f in frequencies]
    elif kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif kind == "longrope" and rope.get("short_factor") == rope.get("long_factor"):
        frequencies = _longrope(frequencies, rope)
        scale = _longrope_scale(config, rope, max_position)
    elif kind != "default":
        raise UnsupportedModelError(
            f"rope scaling {str(kind)[:40]!r}; supported are default, linear, llama3, and longrope with equal factors"
        )
    return RopeParams(inv_freq=tuple(frequencies), scale=scale, max_position=max_position)


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if found:
            if not isinstance(found, dict):
                raise ModelFileError(_FILE, key, f"is {str(found)[:40]}; must be an object")
            return found
    return {}


def _llama3(frequencies: list[float], rope: dict[str, Any]) -> list[float]:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    original = _number(rope, "original_max_position_embeddings")
    if high <= low:
        raise ModelFileError(_FILE, "high_freq_factor", f"is {high:g}; must be above low_freq_factor ({low:g})")

    def stretch(frequency: float) -> float:
        turns = original * frequency / (2.0 * math.pi)  # how often the angle goes round in the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1.0 - keep) * frequency / factor + keep * frequency

    return [stretch(f) for f in frequencies]


def _longrope(frequencies: list[float], rope: dict[str, Any]) -> list[float]:
    factors = rope.get("short_factor")
    if not isinstance(factors, list) or len(factors) != len(frequencies):
        raise ModelFileError(_FILE, "short_factor", f"must be a list of {len(frequencies)} numbers")
    return [
        f / _number({"short_factor": factor}, "short_factor") for f, factor in zip(frequencies, factors, strict=True)
    ]


def _longrope_scale(config: dict[str, Any], rope: dict[str, Any], max_position: int) -> float:
    """`attention_factor`, or what the stretching of the original context asks for."""
    if rope.get("attention_factor") is not None:
        return _number(rope, "attention_factor")
    key = "original_max_position_embeddings"
    original = _number(rope if rope.get(key) is not None else config, key)
    stretch = _number(rope, "factor", max_position / original)
    return 1.0 if stretch <= 1.0 or original <= 1.0 else math.sqrt(1.0 + math.log(stretch) / math.log(original))


def _number(config: dict[str, Any], key: str, default: float | None = None) -> float:
    """A number for which every frequency stays finite."""
    value = config.get(key)
    value = default if value is None else value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-6 <= value <= 1e15:
        raise ModelFileError(_FILE, key, f"is {str(value)[:40]}; must be a number from 1e-6 to 1e15")
    return float(value)
