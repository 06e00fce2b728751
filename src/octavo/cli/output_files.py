"""Whether results can be written, seen before the work that makes them. Nothing is created, nothing truncated."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from octavo.errors import ConfigError


def check_file(field: str, name: str | None, *, makes_folder: bool = False) -> None:
    """See that a file can be written.

    Args:
        field: The flag that names it.
        name: None if it was not asked for.
        makes_folder: Its folder, and those above, are made where they are missing.

    Raises:
        ConfigError: If it is a folder or cannot be written, or its folder is missing or takes no file.
    """
    if name is None:
        return
    path = Path(name)
    if not name or path.is_dir():
        raise ConfigError(field, name, "a file, not a folder")
    if path.exists():
        if not os.access(path, os.W_OK):
            raise ConfigError(field, name, "a file that may be written")
        return
    if not makes_folder and not path.parent.is_dir():
        raise ConfigError(field, name, f"in a folder that exists: {path.parent} does not")
    _check_takes_files(field, name, path.parent)


def check_folder(field: str, name: str) -> None:
    """See that files can be written to a folder, which is made if it is missing.

    Raises:
        ConfigError: If it is a file, or it or the folder that it would be made in takes no file.
    """
    if not name:
        raise ConfigError(field, name, "the name of a folder")
    _check_takes_files(field, name, Path(name))


def check_result(args: argparse.Namespace) -> None:
    """See that `--save-result` of a benchmark can be written.

    Raises:
        ConfigError: If not.
    """
    if not args.save_result:
        return
    folder = args.result_dir or "."
    check_folder("result_dir", folder)
    if args.result_filename is not None:
        check_file("result_filename", str(Path(folder) / args.result_filename), makes_folder=True)


def _check_takes_files(field: str, name: str, folder: Path) -> None:
    """The folder, or the nearest above it that exists."""
    folder = folder.absolute()
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise ConfigError(field, name, f"in a folder: {folder} is a file")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(field, name, f"in a folder that may be written to, not {folder}")
