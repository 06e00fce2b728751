"""Reading a JSON request body: bounded, strict, and named when wrong."""

from __future__ import annotations

import asyncio
import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncGenerator, Iterable
from typing import Any, NoReturn

from starlette.types import Message, Receive, Scope

from octavo.errors import OctavoError
from octavo.server.openai.errors import HTTPProblem, problem

MAX_JSON_DEPTH = 64
"""Nesting of arrays and objects; the deepest documented request needs about ten."""

LONG_BODY_BYTES = 64 << 10
"""Larger bodies are parsed in a thread, so that other streams do not wait for them."""

BODY_TIMEOUT_S = 60.0
"""Longest pause between two pieces of a body."""

_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_SURROGATE = re.compile("[\ud800-\udfff]")


class ClientDisconnectedError(OctavoError):
    """The client went away; there is nobody to answer."""


async def read_json_object(
    scope: Scope, receive: Receive, max_bytes: int, *, may_be_empty: bool = False
) -> dict[str, Any]:
    """The request's body as a JSON object. No body at all is an empty object where it `may_be_empty`.

    Stricter than most parsers: duplicate names, NaN and Infinity, lone surrogates and deep nesting are refused, since
    two readers of such a text may understand different things.

    Raises:
        HTTPProblem: 400, 408, 413 or 415, saying what is wrong.
        ClientDisconnectedError: If the client leaves before the body is complete.
    """
    headers = dict(scope["headers"])
    if not may_be_empty:
        _check_content_type(headers.get(b"content-type"))
    raw = b"".join([piece async for piece in read_pieces(scope, receive, max_bytes, "--max-body-bytes")])
    if may_be_empty:
        if not raw:
            return {}
        _check_content_type(headers.get(b"content-type"))
    if len(raw) > LONG_BODY_BYTES:
        return await asyncio.to_thread(parse_json_object, raw)
    return parse_json_object(raw)


def parse_json_object(raw: bytes) -> dict[str, Any]:
    """Parse strictly; see `read_json_object`. A byte order mark in front is none of the text."""
    raw = raw.removeprefix(BOM_UTF8)
    if not raw.strip():
        raise _malformed("the body is empty; send a JSON object")
    try:
        value = json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise _malformed(f"the body is not valid UTF-8 (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise _malformed(
            f"the body is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        ) from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # an integer with thousands of digits
        raise _malformed("the body holds a number that is too long") from None
    if not isinstance(value, dict):
        raise _malformed("the body must be a JSON object")
    if raw.count(b"[") + raw.count(b"{") > MAX_JSON_DEPTH and _depth(value) > MAX_JSON_DEPTH:
        raise _too_deep()
    if _SURROGATE_ESCAPE.search(raw) and (where := _find_surrogate(value, "")) is not None:
        raise problem(400, f"{where}: holds a lone surrogate, which is not valid text", "invalid_json", param=where)
    return value


def _check_content_type(content_type: bytes | None) -> None:
    if content_type is None:
        return
    kind = content_type.partition(b";")[0].strip().lower()
    if kind != b"application/json" and not (kind.startswith(b"application/") and kind.endswith(b"+json")):
        raise problem(415, "Content-Type must be application/json", "unsupported_media_type")


def _check_content_encoding(headers: Iterable[tuple[bytes, bytes]]) -> None:
    for name, value in headers:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            shown = value.decode("ascii", "replace")[:64]
            message = f"Content-Encoding: {shown} is not supported; send the body as it is (identity)"
            accepted = (("accept-encoding", "identity"),)
            raise problem(415, message, "unsupported_content_encoding", headers=accepted)


def _declared_length(content_length: bytes | None) -> int:
    return int(content_length) if content_length is not None and content_length.isdigit() else 0


async def read_pieces(scope: Scope, receive: Receive, max_bytes: int, flag: str) -> AsyncGenerator[bytes, None]:
    """The body as it comes, for those that need not have it whole.

    Args:
        flag: The setting that `max_bytes` is, for the message.

    Raises:
        HTTPProblem: 408, 413, or 415 for one that is compressed.
        ClientDisconnectedError: If the client leaves before the body is complete.
    """
    _check_content_encoding(scope["headers"])
    received = 0
    declared = _declared_length(dict(scope["headers"]).get(b"content-length"))
    more = True
    while more:
        if max(received, declared) > max_bytes:
            raise _too_large(max_bytes, flag)
        message = await _next_message(receive)
        if message["type"] == "http.disconnect":
            raise ClientDisconnectedError
        piece = message.get("body", b"")
        received += len(piece)
        more = message.get("more_body", False)
        if received <= max_bytes:
            yield piece
    if received > max_bytes:
        raise _too_large(max_bytes, flag)


async def _next_message(receive: Receive) -> Message:
    try:
        return await asyncio.wait_for(receive(), BODY_TIMEOUT_S)
    except TimeoutError:
        raise problem(408, "the body did not arrive in time", "request_timeout") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                name = name if _SURROGATE.search(name) is None else "a name"
                raise problem(400, f"{name[:64]}: is given twice in one object", "invalid_json", param=name[:64])
            seen.add(name)
    return result


def _refuse_constant(name: str) -> NoReturn:
    raise _malformed(f"the body is not valid JSON: {name} is not a number")


def _too_large(max_bytes: int, flag: str) -> HTTPProblem:
    return problem(413, f"the body is larger than {max_bytes} bytes ({flag})", "request_too_large")


def _malformed(message: str) -> HTTPProblem:
    return problem(400, message, "invalid_json")


def _too_deep() -> HTTPProblem:
    return _malformed(f"the body is nested deeper than {MAX_JSON_DEPTH} levels")


def _depth(value: Any) -> int:
    """Levels of arrays and objects, counted to one past the limit."""
    depth = 0
    level = [value]
    while level and depth <= MAX_JSON_DEPTH:
        level = [child for parent in level for child in _children(parent) if isinstance(child, dict | list)]
        depth += 1
    return depth


def _children(value: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value


def _find_surrogate(value: Any, where: str) -> str | None:
    """The field that holds a lone surrogate, as `messages[0].content`. Depth is bounded by the caller."""
    if isinstance(value, str):
        return (where or "the body") if _SURROGATE.search(value) else None
    if isinstance(value, dict):
        for name, child in value.items():
            if _SURROGATE.search(name):
                return where or "a field's name"
            if (found := _find_surrogate(child, f"{where}.{name}" if where else name)) is not None:
                return found
    if isinstance(value, list):
        for i, child in enumerate(value):
            if (found := _find_surrogate(child, f"{where}[{i}]")) is not None:
                return found
    return None
