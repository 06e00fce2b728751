"""GET /: a chat page, as it lies in the folder `page`. It loads nothing from elsewhere and speaks to no one else."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.types import Receive, Scope, Send

from octavo.server.page_files import PAGE_FILES

_FOLDER = Path(__file__).with_name("page")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",  # kept, but asked for anew, so that a new version is seen at once
}


class ChatPage:
    """One of the page's files."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        content, kind, tag = _read(scope["path"])
        known = dict(scope["headers"]).get(b"if-none-match") == tag
        body = b"" if known or scope["method"] == "HEAD" else content
        headers = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
        headers += [(b"content-type", kind.encode()), (b"etag", tag)]
        if not known:
            headers.append((b"content-length", str(len(content)).encode()))
        await send({"type": "http.response.start", "status": 304 if known else 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


@cache
def _read(path: str) -> tuple[bytes, str, bytes]:
    """Content, type, and a tag that changes with the content."""
    name, kind = PAGE_FILES[path]
    content = (_FOLDER / name).read_bytes()
    return content, kind, b'"%b"' % hashlib.sha256(content).hexdigest()[:16].encode()
