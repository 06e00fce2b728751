"""Sampling parameters of requests that leave them out: --generation-config and --override-generation-config."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from octavo.config import HTTPConfig
from octavo.engine.generation_config import (
    GENERATION_CONFIG,
    LIMIT_FIELD,
    SAMPLING_FIELDS,
    read_generation_config,
    sampling_values,
)
from octavo.errors import ConfigError, ModelFileError, RequestError

OF_THE_MODEL, NONE = "auto", "vllm"
"""Words for --generation-config; anything else is a folder."""

_OVERRIDE = "override_generation_config"
_FIELDS = (*SAMPLING_FIELDS, LIMIT_FIELD)


class SamplingDefaults(msgspec.Struct, frozen=True):
    """What a server puts in for fields that a request leaves out.

    Attributes:
        values: Fields of SamplingParams, `max_tokens` apart.
        max_tokens: The longest answer where a request gives no limit.
        caps: Whether no answer may be longer, whatever its request says. So it is where the operator named the limit;
            one in the model's own file only fills a gap.
    """

    values: dict[str, Any] = {}
    max_tokens: int | None = None
    caps: bool = False

    def limit(self, asked: int | None) -> int | None:
        """The answer's limit in tokens. None stands for no limit but the context's."""
        if asked is None or self.max_tokens is None:
            return self.max_tokens if asked is None else asked
        return min(asked, self.max_tokens) if self.caps else asked

    def fingerprint(self) -> str:
        """A text that changes with them."""
        return repr((sorted(self.values.items()), self.max_tokens, self.caps))


NO_DEFAULTS = SamplingDefaults()


def sampling_defaults(http: HTTPConfig, of_model: Mapping[str, Any]) -> SamplingDefaults:
    """What the settings ask for, of a model whose generation_config.json holds `of_model`.

    Raises:
        ConfigError: If a setting cannot be; names the field.
        ModelFileError: If a value in the file cannot be.
    """
    override = _override(http.override_generation_config)
    source = http.generation_config
    base = of_model if source == OF_THE_MODEL else {} if source == NONE else _of_folder(source)
    try:
        values = sampling_values({**base, **override})
    except RequestError as error:
        why = f"is {str(error.value)[:40]}; must be {error.allowed} (--generation-config {NONE} leaves the file out)"
        raise ModelFileError(GENERATION_CONFIG, str(error.param), why) from None
    limit = values.pop("max_tokens", None)
    named = LIMIT_FIELD in override or source not in (OF_THE_MODEL, NONE)
    return SamplingDefaults(values, limit, caps=named and limit is not None)


def _override(text: str) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise ConfigError(_OVERRIDE, text, 'a JSON object, such as {"temperature": 0.6}') from None
    for name, value in given.items():
        if name not in _FIELDS:
            raise ConfigError(f"{_OVERRIDE}.{name[:40]}", value, f"left out; there is {', '.join(_FIELDS)}")
    try:
        sampling_values(given)
    except RequestError as error:
        raise ConfigError(f"{_OVERRIDE}.{error.param}", error.value, str(error.allowed)) from None
    return given


def _of_folder(source: str) -> dict[str, Any]:
    config = read_generation_config(Path(source).expanduser())
    if config is None:
        allowed = f"{OF_THE_MODEL}, {NONE}, or a folder that holds a {GENERATION_CONFIG}"
        raise ConfigError("generation_config", source, allowed)
    return config
