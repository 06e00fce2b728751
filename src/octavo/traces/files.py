"""Reading the lines of a workload's file, plain or gzip, with errors that say where."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from octavo.errors import ConfigError

_Record = TypeVar("_Record")

_GZIP_MAGIC = b"\x1f\x8b"

_MAX_LINE_BYTES = 1 << 20

MAX_TOKENS = 1 << 24
"""Longest prompt or answer that a file may hold. A wrong column (a time stamp, an id) is found by it."""


def bundled(name: str) -> Path:
    """A file that comes with the package."""
    return Path(str(resources.files("octavo.traces") / "data" / name))


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number from 1, line without its end) of every line that is not blank.

    Raises:
        ConfigError: If the file cannot be read, is damaged, holds no line, or a line is not text.
    """
    any_line = False
    with _opened(path) as file:
        number = 0
        while line := file.readline(_MAX_LINE_BYTES):
            number += 1
            if len(line) == _MAX_LINE_BYTES:
                raise bad(path, number, "line", line[:60], f"shorter than {_MAX_LINE_BYTES} bytes")
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            except UnicodeDecodeError:
                raise bad(path, number, "line", line[:60], "UTF-8 text") from None
            if text.strip():
                any_line = True
                yield number, text
    if not any_line:
        raise ConfigError(str(path), "", "a file with at least one line")


def bad(path: Path, line: int, field: str, value: object, allowed: str) -> ConfigError:
    """The error for a value that a file may not hold."""
    return ConfigError(f"{path}, line {line}: {field}", value, allowed)


def in_order(
    path: Path, records: list[tuple[int, _Record]], when: Callable[[_Record], Any], tell: Callable[[str], None]
) -> list[_Record]:
    """The records of numbered lines in order of time, those of one time as they came.

    Args:
        tell: Told of the first line that is earlier than the one before it, if there is one.
    """
    for (_, before), (number, record) in pairwise(records):
        if when(record) < when(before):
            tell(f"{path.name}, line {number} is earlier than the line before it: the trace was put in order of time")
            break
    return sorted((record for _, record in records), key=when)


def token_count(path: Path, line: int, field: str, text: str, *, least: int = 1) -> int:
    """The number of tokens that a cell holds.

    Raises:
        ConfigError: If it is no integer from `least` to MAX_TOKENS.
    """
    digits = text.strip()
    if digits.isascii() and digits.isdigit() and len(digits) < 12 and least <= int(digits) <= MAX_TOKENS:
        return int(digits)
    raise bad(path, line, field, text, f"an integer from {least} to {MAX_TOKENS}")


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if zipped:
                with gzip.open(file) as unzipped:
                    yield unzipped  # type: ignore[misc]  # typeshed has it as a reader of its own
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ConfigError(str(path), str(error), "a whole gzip file") from None
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error), "a file that can be read") from None
