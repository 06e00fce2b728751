"""Files that clients upload and batches write."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec

from octavo.config import HTTPConfig
from octavo.errors import RequestError
from octavo.server.batches.folder import Folder, is_id, new_id
from octavo.server.openai.errors import HTTPProblem, problem

PURPOSES = ("batch", "user_data", "assistants", "vision", "fine-tune", "evals")
"""What a file may be for. Only batches read files here."""

OUTPUT_PURPOSE = "batch_output"

MAX_FILES = 10_000
"""Files of all tenants. Their records are kept in memory."""

MIN_LIFE_S, MAX_LIFE_S = 3600, 30 * 24 * 3600


class FileObject(msgspec.Struct, kw_only=True):
    """A file as clients see it. Times are seconds since the epoch."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: str = "processed"
    expires_at: int | None = None


class DeletedFile(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["file"] = "file"
    deleted: bool = True


class StoredFile(msgspec.Struct):
    """A record."""

    tenant: str
    file: FileObject


class Draft:
    """A file while it is being written."""

    out: IO[bytes]

    def __init__(self, file_id: str) -> None:
        self.id = file_id
        self.size = 0
        self.kept = False


class FileStore:
    """All files. Each belongs to a tenant, and for others there is no such file."""

    def __init__(self, folder: Folder, http: HTTPConfig) -> None:
        self._folder = folder
        self.max_bytes = http.max_file_bytes
        self._max_total = http.max_files_bytes
        self._files = {stored.file.id: stored for stored in folder.records("file-", StoredFile)}
        self._total = sum(stored.file.bytes for stored in self._files.values())
        self.in_use: Counter[str] = Counter()
        """Batches under way, by the id of their input."""
        self._expire()

    @property
    def ids(self) -> set[str]:
        return set(self._files)

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """A file to be written. Unless it is kept it leaves nothing behind.

        Raises:
            HTTPProblem: If there are too many files.
        """
        self._expire()
        if len(self._files) >= MAX_FILES:
            raise problem(507, f"there are {MAX_FILES} files already; delete some", "storage_full")
        draft = Draft(new_id("file-"))
        path = self._folder.data(draft.id)
        try:
            with path.open("xb") as out:
                draft.out = out
                yield draft
        finally:
            if not draft.kept:
                self._total -= draft.size
                path.unlink(missing_ok=True)

    def write(self, draft: Draft, piece: bytes) -> None:
        """Add to a draft.

        Raises:
            HTTPProblem: If it gets too large, or there is no room for it.
        """
        draft.size += len(piece)
        self._total += len(piece)
        self._check_size(draft.size)
        draft.out.write(piece)

    def keep(self, draft: Draft, tenant: str, filename: str, purpose: str, life_s: int | None) -> FileObject:
        """Make a draft a file."""
        draft.out.flush()
        draft.kept = True
        return self._keep(draft.id, tenant, filename, purpose, draft.size, life_s)

    def adopt(self, file_id: str, tenant: str, filename: str, life_s: int | None) -> None:
        """Make data that a batch has written a file. Doing it again changes nothing."""
        if file_id not in self._files:
            size = self._folder.data(file_id).stat().st_size
            self._total += size
            self._keep(file_id, tenant, filename, OUTPUT_PURPOSE, size, life_s)

    def get(self, tenant: str, file_id: str, *, param: str | None = None) -> FileObject:
        """A tenant's file.

        Raises:
            HTTPProblem: 404 if there is none.
        """
        self._expire()
        stored = self._files.get(file_id) if is_id(file_id) else None
        if stored is None or stored.tenant != tenant:
            raise no_such_file(param)
        return stored.file

    def path(self, file_id: str) -> Path:
        """Where the content of a known file is."""
        return self._folder.data(file_id)

    def list(self, tenant: str, purpose: str | None) -> list[FileObject]:
        """A tenant's files, the oldest first."""
        self._expire()
        mine = [stored.file for stored in self._files.values() if stored.tenant == tenant]
        return sorted((file for file in mine if purpose in (None, file.purpose)), key=lambda f: (f.created_at, f.id))

    def delete(self, tenant: str, file_id: str) -> None:
        """Remove a file and its content.

        Raises:
            HTTPProblem: 404 if there is none; 409 while a batch reads it.
        """
        self.get(tenant, file_id)
        if self.in_use[file_id]:
            raise problem(409, "a batch that has not ended reads this file; cancel it first", "file_in_use")
        self._forget(file_id)

    def _keep(
        self, file_id: str, tenant: str, filename: str, purpose: str, size: int, life_s: int | None
    ) -> FileObject:
        now = int(time.time())
        expires = None if life_s is None else now + life_s
        file = FileObject(
            id=file_id, bytes=size, created_at=now, filename=filename, purpose=purpose, expires_at=expires
        )
        stored = self._files[file_id] = StoredFile(tenant, file)
        self._folder.save(file_id, stored)
        return file

    def _check_size(self, size: int) -> None:
        if size > self.max_bytes:
            raise problem(413, f"file: is larger than {self.max_bytes} bytes (--max-file-bytes)", "file_too_large")
        if self._total > self._max_total:
            message = f"file: all files together would be larger than {self._max_total} bytes (--max-files-bytes)"
            raise problem(507, message, "storage_full")

    def _forget(self, file_id: str) -> None:
        self._total -= self._files.pop(file_id).file.bytes
        self._folder.forget(file_id)

    def _expire(self) -> None:
        now = time.time()
        late = [
            file_id
            for file_id, stored in self._files.items()
            if stored.file.expires_at is not None and stored.file.expires_at <= now and not self.in_use[file_id]
        ]
        for file_id in late:
            self._forget(file_id)


def no_such_file(param: str | None) -> HTTPProblem:
    return problem(404, "there is no such file", "not_found", param=param)


def check_purpose(purpose: str | None) -> str:
    """Raises RequestError unless a file may be for this."""
    if purpose not in PURPOSES:
        raise RequestError("purpose", purpose, "one of " + ", ".join(PURPOSES))
    return purpose


def life_of(fields: dict[str, str]) -> int | None:
    """Seconds that an upload shall be kept, from the form's `expires_after[...]`; None for ever.

    Raises:
        RequestError: Naming the field.
    """
    anchor, seconds = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise RequestError("expires_after.anchor", anchor, "created_at")
    text = seconds or ""
    if not (text.isascii() and text.isdigit() and len(text) <= 9 and MIN_LIFE_S <= int(text) <= MAX_LIFE_S):
        raise RequestError("expires_after.seconds", seconds, f"an integer from {MIN_LIFE_S} to {MAX_LIFE_S}")
    return int(text)
