"""GET /openapi.json."""

from __future__ import annotations

from functools import cache

from starlette.types import Receive, Scope, Send

from octavo.server.gate import send_json
from octavo.server.sse import json_bytes


class OpenAPI:
    """The description of every route, made when it is first asked for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_json(send, 200, _document())


@cache
def _document() -> bytes:
    from octavo.server.openapi.document import openapi

    return json_bytes(openapi())
