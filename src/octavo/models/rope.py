"""Rotary frequencies from a config: the plain ones and the ways to stretch them.

Frequencies belong to a model and the context it is served with, never to a sequence: where transformers chooses them by
the length that a sequence has reached (dynamic, longrope), they are here those of the longest that may come. So no
answer depends on how long it, or its neighbours, became.

Formulas: Su et al., arXiv:2104.09864 (default); linear interpolation, arXiv:2306.15595; dynamic NTK, the base grown so
that the slowest frequency fits the longer context; YaRN, arXiv:2309.00071; LongRoPE, arXiv:2402.13753; "llama3", the
scaling that Llama 3.1's config describes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from octavo.backends.protocol import RopeParams
from octavo.errors import ModelFileError
from octavo.models.config_reader import FILE, Config, unsupported


class _Rope(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of scaling starts from."""

    settings: Config
    """`rope_parameters`."""
    theta: float
    rotated: int
    trained: int
    """Context in tokens that the config names."""
    context: int
    """Longest sequence."""
    original: float
    """Context before it was stretched."""

    @property
    def plain(self) -> list[float]:
        return [self.theta ** (-2.0 * i / self.rotated) for i in range(self.rotated // 2)]


def rope_params(config: Config, settings: Mapping[str, Any] | None = None) -> RopeParams:
    """The rotary embedding that a config describes.

    Both spellings are read: `rope_parameters` (transformers 5) and `rope_theta` with `rope_scaling`.

    Args:
        settings: What to read in the place of `rope_parameters`, for layers that have their own.

    Raises:
        ModelFileError: If a value is missing or out of range.
        UnsupportedModelError: If the kind of scaling is none of `KINDS`.
    """
    found = Config(rope_settings(config) if settings is None else settings)
    head_dim, trained = config.head_dim, config.size("max_position_embeddings")

    def number(key: str, default: float) -> float:
        return found.number(key) if key in found.values else config.number(key, default)

    rotated = int(head_dim * number("partial_rotary_factor", 1.0))
    if rotated < 2 or rotated % 2 or rotated > head_dim:
        raise ModelFileError(FILE, config.name("partial_rotary_factor"), f"rotates {rotated} of {head_dim} elements")
    original = "original_max_position_embeddings"
    theta = number("rope_theta", 10000.0)
    if theta <= 1.0:
        raise ModelFileError(FILE, config.name("rope_theta"), f"is {theta:g}; must be above 1")
    rope = _Rope(
        settings=found,
        theta=theta,
        rotated=rotated,
        trained=trained,
        context=config.context,
        original=(config if config.get(original) is not None else found).number(original, trained),
    )
    kind = str(found.values.get("rope_type", found.values.get("type", "default")))
    if kind in ("su", "yarn") and "short_factor" in found.values:  # first names of longrope
        kind = "longrope"
    if kind not in KINDS:
        raise unsupported("rope scaling", kind, KINDS)
    frequencies, scale = KINDS[kind](rope)
    return RopeParams(inv_freq=tuple(frequencies), scale=scale, max_position=config.context)


def rope_settings(config: Config) -> Mapping[str, Any]:
    for key in ("rope_parameters", "rope_scaling"):
        found = config.get(key)
        if found:
            if not isinstance(found, dict):
                raise config.wrong(key, "must be an object")
            return found
    return {}


def _default(rope: _Rope) -> tuple[list[float], float]:
    return rope.plain, 1.0


def _linear(rope: _Rope) -> tuple[list[float], float]:
    factor = rope.settings.number("factor")
    return [f / factor for f in rope.plain], 1.0


def _dynamic(rope: _Rope) -> tuple[list[float], float]:
    factor = rope.settings.number("factor")
    if rope.rotated < 4:
        raise ModelFileError(
            FILE, "rope_scaling", f"is dynamic, and rotates {rope.rotated} elements; must be 4 or more"
        )
    grown = factor * max(rope.context, rope.trained) / rope.trained - (factor - 1.0)
    theta = rope.theta * grown ** (rope.rotated / (rope.rotated - 2))
    return msgspec.structs.replace(rope, theta=theta).plain, 1.0


def _llama3(rope: _Rope) -> tuple[list[float], float]:
    """Long wavelengths are divided by `factor`, short ones kept, those between blended."""
    factor = rope.settings.number("factor")
    low, high = rope.settings.number("low_freq_factor"), rope.settings.number("high_freq_factor")
    if high <= low:
        raise ModelFileError(FILE, "high_freq_factor", f"is {high:g}; must be above low_freq_factor ({low:g})")

    def stretch(frequency: float) -> float:
        turns = rope.original * frequency / (2.0 * math.pi)  # how often the angle goes round in the original context
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        return (1.0 - keep) * frequency / factor + keep * frequency

    return [stretch(f) for f in rope.plain], 1.0


def _yarn(rope: _Rope) -> tuple[list[float], float]:
    """Pairs that turn often in the original context are kept, those that turn seldom divided by `factor`, with a ramp
    over the pairs between."""
    settings = rope.settings
    factor = settings.number("factor", rope.trained / rope.original)
    first = _pair_that_turns(rope, settings.number("beta_fast", 32.0))
    last = _pair_that_turns(rope, settings.number("beta_slow", 1.0))
    if settings.values.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0.0), min(last, rope.rotated - 1.0)
    width = last - first if last != first else 0.001

    def stretch(pair: int, frequency: float) -> float:
        share = min(1.0, max(0.0, (pair - first) / width))
        return frequency / factor * share + frequency * (1.0 - share)

    return [stretch(i, f) for i, f in enumerate(rope.plain)], _yarn_scale(settings, factor)


def _pair_that_turns(rope: _Rope, times: float) -> float:
    """Index, not whole, of the pair whose angle goes round so often in the original context."""
    return rope.rotated * math.log(rope.original / (times * 2.0 * math.pi)) / (2.0 * math.log(rope.theta))


def _yarn_scale(settings: Config, factor: float) -> float:
    if settings.get("attention_factor") is not None:
        return settings.number("attention_factor")

    def grown(by: float) -> float:
        return 1.0 if factor <= 1.0 else 0.1 * by * math.log(factor) + 1.0

    if settings.get("mscale") and settings.get("mscale_all_dim"):
        return grown(settings.number("mscale")) / grown(settings.number("mscale_all_dim"))
    return grown(1.0)


def _longrope(rope: _Rope) -> tuple[list[float], float]:
    key = "long_factor" if rope.context > rope.original else "short_factor"
    factors = rope.settings.get(key)
    if not isinstance(factors, list) or len(factors) != rope.rotated // 2:
        raise ModelFileError(FILE, key, f"must be a list of {rope.rotated // 2} numbers")
    numbers = [Config({key: factor}).number(key) for factor in factors]
    return [f / number for f, number in zip(rope.plain, numbers, strict=True)], _longrope_scale(rope)


def _longrope_scale(rope: _Rope) -> float:
    """`attention_factor`, or what the stretching of the original context asks for."""
    if rope.settings.get("attention_factor") is not None:
        return rope.settings.number("attention_factor")
    stretch = rope.settings.number("factor", rope.trained / rope.original)
    if stretch <= 1.0 or rope.original <= 1.0:
        return 1.0
    return math.sqrt(1.0 + math.log(stretch) / math.log(rope.original))


KINDS: dict[str, Callable[[_Rope], tuple[list[float], float]]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "longrope": _longrope,
    "llama3": _llama3,
}
"""By Hugging Face's names: frequencies, and what cosines and sines are multiplied with."""
