"""Lines of a batch: a request each, and the answers to them, in OpenAI's form."""

from __future__ import annotations

import uuid
from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import msgspec

from octavo.errors import RequestError
from octavo.server.body import parse_json_object
from octavo.server.inner import InnerReply
from octavo.server.openai.errors import HTTPProblem, reply_to
from octavo.server.openai.protocol import convert
from octavo.server.sse import json_bytes

MAX_ID_CHARS = 512


class Line(msgspec.Struct, kw_only=True):
    """A line as it is written."""

    custom_id: str
    method: str
    url: str
    body: dict[str, Any]


class BatchLine(msgspec.Struct, kw_only=True):
    """One request."""

    custom_id: str
    url: str
    body: bytes
    """JSON as it stands in the file: written anew, a number could become another."""


class _OfLine(msgspec.Struct):
    body: msgspec.Raw


class LineResponse(msgspec.Struct, kw_only=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class LineResult(msgspec.Struct, kw_only=True):
    """The answer to one line. A line that is no request has an `error` in place of a `response`."""

    id: str
    custom_id: str | None
    response: LineResponse | None
    error: dict[str, Any] | None

    @property
    def ok(self) -> bool:
        return self.response is not None and self.response.status_code == 200

    def text(self) -> bytes:
        """The line of the output."""
        return json_bytes(self) + b"\n"


def parse_line(raw: bytes, urls: Sequence[str]) -> BatchLine:
    """A line of the input. In front of the first there may be a byte order mark.

    Raises:
        RequestError, HTTPProblem: Naming the field.
    """
    raw = raw.removeprefix(BOM_UTF8)
    line = convert(parse_json_object(raw), Line)
    if not 0 < len(line.custom_id) <= MAX_ID_CHARS:
        raise RequestError("custom_id", line.custom_id, f"1 to {MAX_ID_CHARS} characters")
    if line.method != "POST":
        raise RequestError("method", line.method, "POST")
    if line.url not in urls:
        raise RequestError("url", line.url, " or ".join(urls))
    if line.body.get("stream"):
        raise RequestError("body.stream", line.body["stream"], "false or left out in a batch")
    body = bytes(msgspec.json.decode(raw, type=_OfLine).body)
    return BatchLine(custom_id=line.custom_id, url=line.url, body=body)


def answered(line: BatchLine, reply: InnerReply) -> LineResult:
    """The result of a line that was run."""
    request_id = f"req_{uuid.uuid4().hex}"
    response = LineResponse(status_code=reply.status, request_id=request_id, body=msgspec.Raw(reply.body))
    return LineResult(id=new_id(), custom_id=line.custom_id, response=response, error=None)


def refused(custom_id: str | None, error: RequestError | HTTPProblem) -> LineResult:
    """The result of a line that was not."""
    reply = reply_to(error)
    said = {"code": reply.code or "invalid_line", "message": reply.message, "param": reply.param}
    return LineResult(id=new_id(), custom_id=custom_id, response=None, error=said)


def expired(line: BatchLine) -> LineResult:
    """The result of a line whose batch ran out of time."""
    error = {"code": "batch_expired", "message": "the batch's completion window ended before this request was run"}
    return LineResult(id=new_id(), custom_id=line.custom_id, response=None, error=error)


def custom_id_of(raw: bytes) -> str | None:
    """The name of a line that is wrong in some other way."""
    try:
        found = msgspec.json.decode(raw.removeprefix(BOM_UTF8), type=dict[str, Any]).get("custom_id")
    except msgspec.MsgspecError:
        return None
    return found if isinstance(found, str) else None


def new_id() -> str:
    return f"batch_req_{uuid.uuid4().hex}"
