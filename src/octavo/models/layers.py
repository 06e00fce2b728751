"""What differs from layer to layer: windows and rotary embeddings, as rules for the table of families."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from octavo.backends.protocol import RopeParams
from octavo.errors import ModelFileError
from octavo.models.config_reader import FILE, Config, Rule, unsupported
from octavo.models.rope import rope_params, rope_settings
from octavo.models.spec import LayerSpec

FULL, WINDOWED = "full_attention", "sliding_attention"
"""Hugging Face's names in `layer_types`."""

IsWindowed = Callable[[Config, int], bool]
"""Whether a layer has a window, for configs without `layer_types`."""
Ropes = Callable[[Config, Sequence[str]], list[RopeParams | None]]
"""The rotary embedding of each layer, given their kinds."""


def never(config: Config, index: int) -> bool:
    return False


def always(config: Config, index: int) -> bool:
    return True


def from_layer(config: Config, index: int) -> bool:
    """Qwen's: the layers from `max_window_layers` on."""
    return index >= config.size("max_window_layers")


def all_but_every(pattern: int | None = None) -> IsWindowed:
    """Every n-th layer sees everything; n from `sliding_window_pattern` if it is not given."""
    return lambda config, index: (index + 1) % (pattern or config.size("sliding_window_pattern")) != 0


def without_rope(config: Config, index: int) -> bool:
    """SmolLM3's: the layers that have no positions."""
    return not _has_rope(config)[index]


def one_rope(config: Config, kinds: Sequence[str]) -> list[RopeParams | None]:
    """The same for all."""
    return [rope_params(config)] * len(kinds)


def no_rope(config: Config, kinds: Sequence[str]) -> list[RopeParams | None]:
    return [None] * len(kinds)


def some_ropes(config: Config, kinds: Sequence[str]) -> list[RopeParams | None]:
    """SmolLM3's: where `no_rope_layers` has a 1; without such a list, in all layers but every n-th."""
    rope = rope_params(config)
    return [rope if has else None for has in _has_rope(config)]


def ropes_by_kind(local_theta: str) -> Ropes:
    """Windowed layers turn by their own theta, never stretched, unless `rope_parameters` says otherwise.

    Args:
        local_theta: The key of that theta.
    """

    def rule(config: Config, kinds: Sequence[str]) -> list[RopeParams | None]:
        found = rope_settings(config)
        if FULL in found or WINDOWED in found:  # transformers 5 has one object for each kind of layer
            full, local = (found.get(kind) or {} for kind in (FULL, WINDOWED))
            if not isinstance(full, dict) or not isinstance(local, dict):
                raise ModelFileError(FILE, "rope_parameters", f"must hold objects for {FULL} and {WINDOWED}")
        else:
            full, local = dict(found), {}
        local = {"rope_theta": config.number(local_theta), **local}
        ropes = {FULL: rope_params(config, full), WINDOWED: rope_params(config, local)}
        return [ropes[kind] for kind in kinds]

    return rule


def layers(is_windowed: IsWindowed = never, *, ropes: Ropes = one_rope, switch: str | None = None) -> Rule:
    """The layers of a spec.

    Args:
        switch: A flag without which no layer has a window.
    """

    def rule(config: Config) -> tuple[LayerSpec, ...]:
        kinds = layer_kinds(config, is_windowed)
        window = _window(config) if switch is None or config.flag(switch) else None
        windows = [window if kind == WINDOWED else None for kind in kinds]
        return tuple(
            LayerSpec(window=window, rope=rope) for window, rope in zip(windows, ropes(config, kinds), strict=True)
        )

    return rule


def layer_kinds(config: Config, is_windowed: IsWindowed) -> list[str]:
    """The kind of each layer: as `layer_types` says, or else by the family's habit."""
    count, listed = config.size("num_hidden_layers"), config.get("layer_types")
    if listed is None:
        return [WINDOWED if is_windowed(config, index) else FULL for index in range(count)]
    if not isinstance(listed, list) or len(listed) != count:
        raise ModelFileError(FILE, "layer_types", f"must be a list of {count} names, one a layer")
    for name in listed:
        if name not in (FULL, WINDOWED):
            raise unsupported("layer type", str(name), (FULL, WINDOWED))
    return listed


def _window(config: Config) -> int | None:
    """Tokens; None where there is none, or it is as long as the longest sequence."""
    found = config.optional_size("sliding_window")
    longest = max(config.context, config.size("max_position_embeddings"))
    return None if found is None or found >= longest else found


def _has_rope(config: Config) -> list[bool]:
    count, listed = config.size("num_hidden_layers"), config.get("no_rope_layers")
    if listed is None:
        interval = config.size("no_rope_layer_interval")
        return [(index + 1) % interval != 0 for index in range(count)]
    if not isinstance(listed, list) or len(listed) != count or any(has not in (0, 1) for has in listed):
        raise ModelFileError(FILE, "no_rope_layers", f"must be a list of {count} times 0 or 1, one a layer")
    return [has == 1 for has in listed]
