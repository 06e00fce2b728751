"""/v1/files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.errors import RequestError
from octavo.server.batches.files import DeletedFile, FileObject, check_purpose, life_of
from octavo.server.batches.multipart import MultipartParser, Part
from octavo.server.batches.service import Batching
from octavo.server.body import read_pieces
from octavo.server.gate import send_json
from octavo.server.pages import Page, page_of
from octavo.server.query import query_choice, query_text
from octavo.server.sse import json_bytes

MAX_FIELDS = 16
MAX_FIELD_CHARS = 4096
MAX_FORM_BYTES = 64 << 10
"""What a form may hold beside the file."""

MAX_PAGE = 10_000
_PIECE_BYTES = 64 << 10


class UploadForm(msgspec.Struct, kw_only=True):
    """The fields of an upload's form."""

    file: Annotated[str, msgspec.Meta(extra_json_schema={"format": "binary"})]
    purpose: str
    expires_after: dict[str, Any] | None = None
    """As two fields, `expires_after[anchor]` and `expires_after[seconds]`."""


class FilePage(Page[FileObject], kw_only=True):
    pass


class Files:
    """GET and POST /v1/files."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        files = self._batching.files
        if scope["method"] == "POST":
            await self._upload(scope, receive, send)
            return
        listed = files.list(self._batching.tenant(), query_text(scope, "purpose"))
        if query_choice(scope, "order", ("desc", "asc")) == "desc":
            listed.reverse()
        await send_json(send, 200, json_bytes(page_of(scope, listed, FilePage, MAX_PAGE, MAX_PAGE)))

    async def _upload(self, scope: Scope, receive: Receive, send: Send) -> None:
        batching = self._batching
        batching.context.lifecycle.check_open()
        parser = MultipartParser(dict(scope["headers"]).get(b"content-type"))
        limit = batching.files.max_bytes + MAX_FORM_BYTES
        with batching.files.draft() as draft:
            form = _Form(lambda piece: batching.files.write(draft, piece))
            async for piece in read_pieces(scope, receive, limit, "--max-file-bytes"):
                for event in parser.feed(piece):
                    form.take(event)
            parser.finish()
            if form.filename is None:
                raise RequestError("file", message="file: must be given, as a part of the form that has a file name")
            purpose, life_s = check_purpose(form.fields.get("purpose")), life_of(form.fields)
            kept = batching.files.keep(draft, batching.tenant(), form.filename, purpose, life_s)
        await send_json(send, 200, json_bytes(kept))


class _Form:
    """A form with one file, before, after or among its other fields.

    Args:
        write: Takes the file's content.
    """

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._field: str | None = None
        """The field that data belongs to; None for the file."""
        self.filename: str | None = None
        self.fields: dict[str, str] = {}

    def take(self, event: Part | bytes) -> None:
        """The next thing that the parser found."""
        if isinstance(event, Part):
            self._begin(event)
        elif self._field is None:
            self._write(event)
        else:
            self._add(self._field, event.decode("utf-8", "replace"))

    def _begin(self, part: Part) -> None:
        if part.filename is not None:
            if part.name != "file" or self.filename is not None:
                raise RequestError(part.name[:64], message=f"{part.name[:64]}: the form may hold one file, named file")
            self.filename, self._field = part.filename, None
            return
        if part.name in self.fields or len(self.fields) >= MAX_FIELDS:
            raise RequestError(
                part.name[:64], message=f"{part.name[:64]}: is given twice, or there are too many fields"
            )
        self._field = part.name
        self.fields[part.name] = ""

    def _add(self, name: str, text: str) -> None:
        self.fields[name] += text
        if len(self.fields[name]) > MAX_FIELD_CHARS:
            raise RequestError(name[:64], message=f"{name[:64]}: is longer than {MAX_FIELD_CHARS} characters")


class File:
    """GET and DELETE /v1/files/{file_id}."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batching, file_id = self._batching, scope["path_params"]["file_id"]
        if scope["method"] != "DELETE":
            await send_json(send, 200, json_bytes(batching.files.get(batching.tenant(), file_id)))
            return
        batching.files.delete(batching.tenant(), file_id)
        await send_json(send, 200, json_bytes(DeletedFile(id=file_id)))


class FileContent:
    """GET /v1/files/{file_id}/content."""

    def __init__(self, batching: Batching) -> None:
        self._batching = batching

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        batching, file_id = self._batching, scope["path_params"]["file_id"]
        file = batching.files.get(batching.tenant(), file_id)
        await batching.context.lifecycle.run(_send_file(batching.files.path(file_id), file.bytes, send), receive)


async def _send_file(path: Path, size: int, send: Send) -> None:
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % size)]
    with path.open("rb") as source:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        while piece := source.read(_PIECE_BYTES):
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
