"""Flags made from the fields of the config dataclasses.

A field `max_model_len` is the flag `--max-model-len`, the environment variable `OCTAVO_MAX_MODEL_LEN`, and the key
`max-model-len` of a `--config` file; the flag wins over the variable, the variable over the file. `metadata["flag"]`
gives a field another name where two groups would clash.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from octavo.cli.parser import integer
from octavo.config import (
    CacheConfig,
    EngineConfig,
    ExecutionConfig,
    HTTPConfig,
    ModelConfig,
    SchedulerConfig,
    SpeculationConfig,
)
from octavo.errors import ConfigError

ENGINE_GROUPS: tuple[type, ...] = (ModelConfig, CacheConfig, SchedulerConfig, ExecutionConfig, SpeculationConfig)
_WORDS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
_PARSERS: dict[str, Callable[[str], Any]] = {"int": integer, "float": float, "str": str}
_ALLOWED = {"int": "an integer, such as 4096 or 4K", "float": "a number", "bool": "true or false", "str": "text"}


@dataclass(frozen=True)
class Flag:
    """One config field as a flag."""

    group: type
    field: str
    name: str
    """Without dashes in front, words joined by `-`."""
    kind: str
    """int, float, str or bool."""
    is_list: bool
    is_optional: bool
    """Whether None, or the word `auto`, is a value."""
    section: str
    """The heading it stands under."""
    default: Any
    help: str
    aliases: tuple[str, ...]
    choices: tuple[str, ...]

    @property
    def dest(self) -> str:
        return f"{self.group.__name__}.{self.field}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return "OCTAVO_" + self.name.replace("-", "_").upper()


def flags_of(group: type) -> list[Flag]:
    """The flags of a config class, in the order of its fields."""
    flags = []
    for f in dataclasses.fields(group):
        kind, is_list = _kind(str(f.type))
        meta = f.metadata
        flags.append(
            Flag(
                group=group,
                field=f.name,
                name=meta["flag"] or f.name.replace("_", "-"),
                kind=kind,
                is_list=is_list,
                is_optional=str(f.type).endswith("| None"),
                section=meta["section"] or (group.__doc__ or group.__name__).strip().rstrip("."),
                default=f.default,
                help=meta["help"],
                aliases=meta["aliases"],
                choices=meta["choices"],
            )
        )
    return flags


def _kind(annotation: str) -> tuple[str, bool]:
    plain = annotation.removesuffix(" | None")
    is_list = plain.startswith("tuple[")
    if is_list:
        plain = plain.removeprefix("tuple[").removesuffix(", ...]")
    if plain not in _ALLOWED:
        raise TypeError(f"no flag can be made for a field of type {annotation}")
    return plain, is_list


def add_flags(parser: argparse.ArgumentParser, groups: Iterable[type], without: Iterable[str] = ()) -> None:
    """Add the groups' flags, each under its heading. Values stay out of the namespace unless given."""
    headings: dict[str, Any] = {}
    for flag in (flag for group in groups for flag in flags_of(group)):
        if flag.field not in without:
            if flag.section not in headings:
                headings[flag.section] = parser.add_argument_group(flag.section)
            _add(headings[flag.section], flag)


def _add(heading: Any, flag: Flag) -> None:
    names = [name if name.startswith("-") else f"--{name}" for name in (flag.name, *flag.aliases)]
    common = {"dest": flag.dest, "default": argparse.SUPPRESS, "help": help_text(flag).replace("%", "%%")}
    if flag.kind == "bool":
        heading.add_argument(*names, action=argparse.BooleanOptionalAction, **common)
        return
    metavar = "{" + ",".join(flag.choices) + "}" if flag.choices else {"int": "N", "float": "X"}.get(flag.kind, "TEXT")
    action = "extend" if flag.is_list else "store"
    heading.add_argument(*names, action=action, type=_reader(flag), metavar=metavar, **common)


def _reader(flag: Flag) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        if flag.choices and text not in flag.choices:
            raise argparse.ArgumentTypeError(f"{text!r} must be one of {', '.join(flag.choices)}")
        try:
            return _several(flag, text) if flag.is_list else _one(flag, text)
        except (ValueError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} must be {_ALLOWED[flag.kind]}") from None

    return read


def _one(flag: Flag, text: str) -> Any:
    """vLLM's scripts say `auto` or -1 for what is left to the engine."""
    if flag.is_optional and flag.kind != "str" and text in ("auto", "-1"):
        return None
    return _PARSERS[flag.kind](text)


def _several(flag: Flag, text: str) -> list[Any]:
    """One value, or a JSON list of them."""
    parts = json.loads(text) if text.startswith("[") else [text]
    return [_PARSERS[flag.kind](str(part)) for part in parts]


def help_text(flag: Flag) -> str:
    """The field's help with its default, the way `--help` and the documentation show it."""
    if flag.default is None or flag.default == ():
        return flag.help + (" (repeat for several)" if flag.is_list else "")
    shown = {True: "on", False: "off"}[flag.default] if isinstance(flag.default, bool) else flag.default
    shown = ", ".join(shown) if isinstance(shown, tuple) else shown
    return f"{flag.help} (default: {shown})"


def read_group(group: type, args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Any:
    """The config object of a group: flags given, then environment variables, then the config file, then defaults.

    Raises:
        ConfigError: For a value out of range; a variable that cannot be read is named.
    """
    values: dict[str, Any] = {}
    file = getattr(args, "from_file", None)
    for flag in flags_of(group):
        if hasattr(args, flag.dest):
            values[flag.field] = _settled(flag, getattr(args, flag.dest))
        elif environ.get(flag.variable):
            values[flag.field] = _from_environment(flag, environ[flag.variable])
        elif hasattr(file, flag.dest):
            values[flag.field] = _settled(flag, getattr(file, flag.dest))
    return group(**values)


def _settled(flag: Flag, value: Any) -> Any:
    return tuple(value) if flag.is_list else value


def _from_environment(flag: Flag, text: str) -> Any:
    """Lists are separated by commas."""
    try:
        if flag.kind == "bool":
            return _WORDS[text.lower()]
        if flag.is_list:
            return tuple(_PARSERS[flag.kind](part) for part in text.split(",") if part)
        return _one(flag, text)
    except (KeyError, ValueError, OverflowError):
        raise ConfigError(flag.variable, text, _ALLOWED[flag.kind]) from None


def is_set(args: argparse.Namespace, name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the flag `name` was given, or its variable is set."""
    flag = _named(name)
    return hasattr(args, flag.dest) or bool(environ.get(flag.variable))


def set_flag(args: argparse.Namespace, name: str, value: Any) -> None:
    """As if the flag had been given: a command's own default."""
    setattr(args, _named(name).dest, value)


def _named(name: str) -> Flag:
    return next(flag for group in ENGINE_GROUPS for flag in flags_of(group) if flag.name == name)


def engine_config(args: argparse.Namespace, **model: Any) -> EngineConfig:
    """The engine's settings. `model` are fields of ModelConfig the command has as arguments of its own."""
    for field, value in model.items():
        if value is not None:
            setattr(args, f"{ModelConfig.__name__}.{field}", value)
    groups = {f.name: read_group(cast(type, f.default_factory), args) for f in dataclasses.fields(EngineConfig)}
    return EngineConfig(**groups)


def http_config(args: argparse.Namespace) -> HTTPConfig:
    """The HTTP server's settings."""
    return cast(HTTPConfig, read_group(HTTPConfig, args))
