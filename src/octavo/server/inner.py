"""A route called from inside: the same checks, the same work and the same errors as for a client, without a socket."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

from octavo.errors import EngineDeadError, OverloadedError, ShuttingDownError
from octavo.server.envelopes import error_body
from octavo.server.openai.errors import ErrorReply, answer_to

RETRIED = (429, 503)
"""Statuses that say: not now."""


@dataclass(frozen=True)
class InnerReply:
    """A whole reply."""

    status: int
    body: bytes


async def call(route: ASGIApp, path: str, body: bytes, scope: Mapping[str, Any] = {}) -> InnerReply:
    """POST a JSON text to a route. Cancelling this ends its work, as a client does that leaves.

    Args:
        scope: What the gate would have put into the request's scope.

    Raises:
        OverloadedError: If there is no room now; try again after `retry_after_s`.
        ShuttingDownError, EngineDeadError: If nothing is served any more.
    """
    exchange = _Exchange(body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    request = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    try:
        await route({**scope, **request}, exchange.receive, exchange.send)
    except (OverloadedError, ShuttingDownError, EngineDeadError):
        raise
    except Exception as error:
        reply = answer_to(error)
        if reply.status in RETRIED:
            raise OverloadedError(reply.message, _wait_s(reply)) from None
        return InnerReply(reply.status, error_body(path, reply))
    return InnerReply(exchange.status, b"".join(exchange.pieces))


def _wait_s(reply: ErrorReply) -> float:
    text = dict(reply.headers).get("retry-after", "")
    return max(1.0, math.ceil(float(text))) if text.isdigit() else 1.0


class _Exchange:
    """Both ends of the conversation with a route."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self.status = 500
        self.pieces: list[bytes] = []

    async def receive(self) -> Message:
        """The body, and then nothing until this is cancelled: nobody leaves."""
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.pieces.append(message.get("body", b""))
