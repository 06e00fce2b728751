"""The folder behind --files-dir: one server's at a time, and sound whenever the server is killed."""

from __future__ import annotations

import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo.errors import ConfigError

_ID = re.compile(r"(?:file|batch)[-_][0-9a-f]{32}")
_RECORD = ".json"

T = TypeVar("T")


class Folder:
    """Records (small, replaced whole) and data (large, appended to), by id.

    Args:
        path: Made if there is none. Locked until the process ends.

    Raises:
        ConfigError: If it cannot be made or written, or another server uses it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError("files_dir", str(path), f"a folder to write to ({error.strerror})") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError("files_dir", str(path), "a folder that no other server uses") from None

    def close(self) -> None:
        """Let another server have it."""
        os.close(self._lock)

    def records(self, prefix: str, kind: type[T]) -> Iterator[T]:
        """All records whose ids begin so. One that cannot be read is left out: it is not ours."""
        for path in sorted(self._path.glob(f"{prefix}*{_RECORD}")):
            if _ID.fullmatch(path.stem):
                try:
                    yield msgspec.json.decode(path.read_bytes(), type=kind)
                except (OSError, msgspec.MsgspecError):
                    continue

    def save(self, record_id: str, record: msgspec.Struct) -> None:
        """Put a record in place of the one before. Whoever looks finds the one or the other, whole."""
        path = self._path / (record_id + _RECORD)
        draft = path.with_suffix(".new")
        draft.write_bytes(msgspec.json.encode(record))
        draft.replace(path)

    def forget(self, record_id: str) -> None:
        """Remove a record, and data of the same id."""
        for path in (self._path / (record_id + _RECORD), self.data(record_id)):
            path.unlink(missing_ok=True)

    def data(self, record_id: str) -> Path:
        """Where the data of an id is."""
        return self._path / (record_id + ".data")

    def sweep(self, wanted: set[str]) -> None:
        """Remove data of other ids than these: what a killed server had begun and nobody will go on with."""
        for path in (*self._path.glob("*.data"), *self._path.glob("*.new")):
            if path.suffix == ".new" or path.stem not in wanted:
                path.unlink(missing_ok=True)


def new_id(prefix: str) -> str:
    """An id that cannot be guessed: `file-` or `batch_` and 128 random bits."""
    return prefix + secrets.token_hex(16)


def is_id(text: str) -> bool:
    """Whether a client's text can be an id. Nothing else ever becomes part of a path."""
    return _ID.fullmatch(text) is not None
