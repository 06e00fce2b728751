"""How a setting is declared and checked."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import field
from typing import Any

from octavo.errors import ConfigError


def setting(
    default: Any,
    help: str,
    *,
    flag: str = "",
    aliases: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    section: str = "",
) -> Any:
    """A field of a config class, for `flags_of`.

    Args:
        help: What `--help` says, without the default.
        flag: The flag's name where it is not the field's.
        aliases: Other names of the flag, without `--`; one that begins with `-` is a short one (`-q`, `-sc`).
        choices: The texts allowed, where not every one is.
        section: The heading it stands under, where that is not the class's.
    """
    return field(
        default=default,
        metadata={"help": help, "flag": flag, "aliases": aliases, "choices": choices, "section": section},
    )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raises ConfigError unless `value` is one of `choices`."""
    if value not in choices:
        raise ConfigError(name, value, "one of " + ", ".join(choices))


def check_range(name: str, value: float | None, low: float, high: float, unit: str = "") -> None:
    """Raises ConfigError unless `value` is None or a number from `low` to `high`."""
    if value is None:
        return
    if isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(name, value, f"from {low:g} to {high:g}{unit}")


def check_choices(config: Any) -> None:
    """`check_choice` for every field that has choices."""
    for f in dataclasses.fields(config):
        choices = f.metadata.get("choices")
        if choices:
            check_choice(f.name, getattr(config, f.name), choices)


def json_object(name: str, value: str) -> dict[str, Any]:
    """The object that a setting holds as text. Raises ConfigError if it is none."""
    try:
        given = json.loads(value)
    except (ValueError, RecursionError) as error:
        raise ConfigError(name, value, f"a JSON object ({error})") from error
    if not isinstance(given, dict):
        raise ConfigError(name, value, "a JSON object")
    return given
