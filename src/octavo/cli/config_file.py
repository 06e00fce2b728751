"""`--config FILE`: flags in a YAML file, for those who start the same server again and again.

Keys are the long names of flags, `-` and `_` alike, those of older servers included. A flag on the command line wins
over its variable, the variable over the file, the file over the default.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from octavo.cli.parser import Parser
from octavo.errors import ConfigError

FLAG = "config"
VARIABLE = "OCTAVO_CONFIG"
MAX_FILE_BYTES = 1 << 20


def add_config_flag(parser: argparse.ArgumentParser, environ: Mapping[str, str] = os.environ) -> None:
    """Add `--config`. What the file says is `args.from_file` once the command line has been read."""
    text = f"YAML file of flags, keyed by their long names; the command line wins (also {VARIABLE})"
    parser.add_argument("--config", metavar="FILE", help=text)
    if isinstance(parser, Parser):
        parser.on_parsed.append(lambda args: _read(parser, args, args.config or environ.get(VARIABLE)))


def _read(parser: Parser, args: argparse.Namespace, file: str | None) -> None:
    if file:
        name = Path(file).name
        inner = parser.sub_parse(words_of(load(Path(file)), name), where=name)
        args.from_file = inner


def load(path: Path) -> Any:
    """The document in a YAML file.

    Raises:
        ConfigError: If there is no such file, it is larger than a megabyte, or no YAML.
    """
    try:
        with path.expanduser().open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(FLAG, str(path), f"a file to read ({error.strerror})") from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(FLAG, str(path), f"a file of at most {MAX_FILE_BYTES} bytes")
    import yaml

    try:
        return yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        raise ConfigError(FLAG, str(path), f"YAML{where}") from None


def words_of(document: Any, name: str) -> list[str]:
    """A document as the words of a command line.

    Raises:
        ConfigError: If it is no map from flag names to values.
    """
    if document is None:
        return []
    if not isinstance(document, dict):
        raise ConfigError(FLAG, name, "a map from flag names to values")
    words: list[str] = []
    for key, value in document.items():
        flag = str(key).replace("_", "-").removeprefix("--")
        if not isinstance(key, str) or not flag or flag in (FLAG, "help", "debug"):
            raise ConfigError(f"{name}: {str(key)[:64]}", value, "left out of the file: it is for the command line")
        words += _words(flag, value)
    return words


def _words(flag: str, value: Any) -> list[str]:
    match value:
        case None:
            return []
        case True:
            return [f"--{flag}"]
        case False:
            return [f"--no-{flag}"]
        case list():
            return [word for item in value for word in _words(flag, item)]
        case dict():
            return [f"--{flag}={json.dumps(value)}"]
        case _:
            return [f"--{flag}={value}"]
