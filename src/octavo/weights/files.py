"""Opening the files of a model without trusting them."""

from __future__ import annotations

import hashlib
import mmap
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.errors import ModelFileError

MAX_JSON_BYTES = 32 << 20
"""Largest JSON file beside the weights; shard indexes are the longest."""

JSONObject = dict[str, Any]

_T = TypeVar("_T")


def map_file(path: Path) -> mmap.mmap:
    """Map a regular file that holds something, to read.

    Raises:
        ModelFileError: If it is missing, not a regular file (opening a pipe would wait for ever), empty or unreadable.
    """
    try:
        if _regular_size(path) == 0:
            raise ModelFileError(path.name, "file", "is empty")
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise os_error(path, error) from None


def drop_pages(mapped: mmap.mmap, start: int, num_bytes: int) -> None:
    """Let go of the memory of a range that was read. It is still there to read, from the page cache or the file."""
    if hasattr(mmap, "MADV_DONTNEED"):
        first = start // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, first, start + num_bytes - first)


def is_there(path: Path) -> bool:
    """Whether there is something of that name. A link to nothing is: it tells of a file that was lost."""
    try:
        return path.exists() or path.is_symlink()
    except OSError as error:
        raise os_error(path, error) from None


def read_small(path: Path, max_bytes: int) -> bytes:
    """The whole of a regular file of at most `max_bytes`.

    Raises:
        ModelFileError: If it is missing, unreadable, not a regular file or larger.
    """
    try:
        if _regular_size(path) > max_bytes:
            raise ModelFileError(path.name, "file", f"is larger than {max_bytes} bytes")
        return path.read_bytes()
    except OSError as error:
        raise os_error(path, error) from None


def read_text(path: Path, max_bytes: int) -> str:
    """The same, as UTF-8 text."""
    try:
        return read_small(path, max_bytes).decode()
    except UnicodeDecodeError:
        raise ModelFileError(path.name, "file", "is not UTF-8") from None


def read_json(path: Path, kind: type[_T], max_bytes: int = MAX_JSON_BYTES) -> _T:
    """A JSON file, decoded as `kind`: what does not fit is refused before it is built.

    Raises:
        ModelFileError: Also when it is not JSON, or is nested too deep.
    """
    return decode_json(read_small(path, max_bytes), kind, path.name, "file")


def decode_json(raw: bytes | msgspec.Raw, kind: type[_T], file: str, what: str) -> _T:
    """JSON bytes as `kind`. Raises ModelFileError naming `file` and `what`."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelFileError(file, what, f"is not the JSON it must be: {error}") from None
    except RecursionError:
        raise ModelFileError(file, what, "is nested too deep") from None


def fingerprint(headers: Iterable[bytes], tensors: Iterable[npt.NDArray[np.uint8]]) -> str:
    """Hex digest of headers in full and of up to eight pieces of 64 bytes of each tensor, spread over it."""
    digest = hashlib.blake2b(digest_size=16)
    for header in headers:
        digest.update(len(header).to_bytes(8, "little"))
        digest.update(header)
    for data in tensors:
        digest.update(data.size.to_bytes(8, "little"))
        for start in sorted({max(0, (data.size - 64) * i // 7) for i in range(8)}):
            digest.update(data[start : start + 64].tobytes())
    return digest.hexdigest()


def _regular_size(path: Path) -> int:
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise ModelFileError(path.name, "file", "is not a regular file")
    return info.st_size


def is_file(path: Path) -> bool:
    """Whether it is a regular file that can be seen. Where it cannot, opening it will say why."""
    try:
        return path.is_file()
    except OSError:
        return False


def os_error(path: Path, error: OSError) -> ModelFileError:
    """What the system said of a file."""
    return ModelFileError(path.name, "file", os.strerror(error.errno or 0).lower())
