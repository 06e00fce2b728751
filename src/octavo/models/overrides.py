"""Keys that a user put in the place of those of a model's config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import ConfigError, ModelError
from octavo.models.families import decoder_spec
from octavo.models.spec import DecoderSpec

_OLD_ROPE_KEYS = ("rope_scaling", "rope_theta")
"""Not read where a config has transformers 5's `rope_parameters`."""


def overridden_spec(config: Mapping[str, Any], overrides: Mapping[str, Any], context: int | None = None) -> DecoderSpec:
    """The spec of the model that `config` describes, some of its keys replaced.

    Args:
        context: See `decoder_spec`.

    Raises:
        ConfigError: Naming a key that changes nothing: a misspelt one would do so without a word.
        ModelError: As `decoder_spec` does.
    """
    changed = {**config, **overrides}
    spec = decoder_spec(changed, context)
    for key, value in overrides.items():
        without = {name: kept for name, kept in changed.items() if name != key}
        without |= {key: config[key]} if key in config else {}
        try:
            changes_nothing = decoder_spec(without, context) == spec
        except ModelError:  # as it was, it does not go with the rest
            changes_nothing = False
        if changes_nothing:
            allowed = "left out: it changes nothing in this model"
            if key in _OLD_ROPE_KEYS and "rope_parameters" in changed:
                allowed += "; its rotary embedding is described by rope_parameters, which may be overridden"
            raise ConfigError(f"hf_overrides.{key[:60]}", value, allowed)
    return spec
