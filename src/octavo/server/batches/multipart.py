"""multipart/form-data (RFC 7578), read as it comes: a file goes to disk without being in memory whole."""

from __future__ import annotations

import re
from collections.abc import Iterator

from octavo.server.openai.errors import HTTPProblem, problem

MAX_PART_HEADER_BYTES = 8 << 10
MAX_FILENAME_CHARS = 255

_BOUNDARY = re.compile(rb'(?i)^multipart/form-data\s*;.*?boundary=(?:"([^"\r\n]{1,70})"|([^\s;,"]{1,70}))')
_PARAMETER = re.compile(r';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Part:
    """The beginning of a field.

    Attributes:
        name: The field's.
        filename: What the client calls the file, without folders; None for a plain field.
    """

    def __init__(self, name: str, filename: str | None) -> None:
        self.name = name
        self.filename = filename


class MultipartParser:
    """Turns pieces of a body, cut anywhere, into `Part`s and the bytes that follow each.

    Args:
        content_type: The request's header.

    Raises:
        HTTPProblem: 415 for another kind of body; 400 for one that breaks the format.
    """

    def __init__(self, content_type: bytes | None) -> None:
        match = _BOUNDARY.match(content_type or b"")
        if match is None:
            message = "Content-Type must be multipart/form-data with a boundary"
            raise problem(415, message, "unsupported_media_type")
        self._delimiter = b"\r\n--" + (match[1] or match[2])
        self._buffer = b"\r\n"  # so that the first delimiter, which no line end comes before, is like the others
        self._state = self._find_first
        self._ended = False

    def feed(self, piece: bytes) -> Iterator[Part | bytes]:
        """What became certain with this piece."""
        self._buffer += piece
        while not self._ended and (found := self._state()) is not None:
            if found:
                yield found

    def finish(self) -> None:
        """The body has ended.

        Raises:
            HTTPProblem: If it was not complete.
        """
        if not self._ended:
            raise _malformed("ends before its last boundary")

    # Each state returns what it found, b"" for nothing new in another state, or None when it needs more bytes.

    def _find_first(self) -> Part | bytes | None:
        at = self._buffer.find(self._delimiter)
        if at < 0:
            if len(self._buffer) > MAX_PART_HEADER_BYTES:
                raise _malformed("does not begin with its boundary")
            return None
        return self._enter(at)

    def _after_delimiter(self) -> Part | bytes | None:
        if len(self._buffer) < 2:
            return None
        if self._buffer.startswith(b"--"):
            self._ended = True
            return None
        end = self._buffer.find(b"\r\n")
        if end < 0:
            if len(self._buffer) > MAX_PART_HEADER_BYTES:
                raise _malformed("has a boundary that its line does not end")
            return None
        if self._buffer[:end].strip(b" \t"):
            raise _malformed("has something behind a boundary")
        self._buffer = self._buffer[end:]
        self._state = self._headers
        return b""

    def _headers(self) -> Part | bytes | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0 or end > MAX_PART_HEADER_BYTES:
            if len(self._buffer) > MAX_PART_HEADER_BYTES:
                raise _malformed(f"has a part with more than {MAX_PART_HEADER_BYTES} bytes of headers")
            return None
        part = _part_of(self._buffer[2:end].decode("utf-8", "replace"))
        self._buffer = self._buffer[end + 2 :]  # with a line end before the data, which may be empty
        self._state = self._first_data
        return part

    def _first_data(self) -> Part | bytes | None:
        """As `_data`, behind the line end that belongs to the headers unless the data is empty."""
        if len(self._buffer) < len(self._delimiter) and self._delimiter.startswith(self._buffer):
            return None
        if self._buffer.startswith(self._delimiter):
            return self._enter(0)
        self._buffer = self._buffer[2:]
        self._state = self._data
        return b""

    def _data(self) -> Part | bytes | None:
        at = self._buffer.find(self._delimiter)
        if at >= 0:
            return self._enter(at)
        certain = len(self._buffer) - len(self._delimiter) + 1
        if certain <= 0:
            return None
        data, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return data

    def _enter(self, at: int) -> bytes:
        """Go behind the delimiter at a place; returns the data before it."""
        data = self._buffer[:at] if self._state == self._data else b""
        self._buffer = self._buffer[at + len(self._delimiter) :]
        self._state = self._after_delimiter
        return data


def _part_of(headers: str) -> Part:
    for line in headers.split("\r\n"):
        name, _, value = line.partition(":")
        if name.strip().lower() == "content-disposition" and value.strip().lower().startswith("form-data"):
            found = {key.lower(): text for key, text in _PARAMETER.findall(value)}
            if "name" in found:
                filename = found.get("filename")
                return Part(_unescaped(found["name"]), None if filename is None else _base_name(_unescaped(filename)))
    raise _malformed("has a part without a name")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _base_name(path: str) -> str:
    name = _CONTROL.sub("", path.replace("\\", "/").rpartition("/")[2])
    return name[-MAX_FILENAME_CHARS:] or "file"


def _malformed(why: str) -> HTTPProblem:
    return problem(400, f"the multipart body {why}", "invalid_multipart")
