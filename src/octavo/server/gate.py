"""The outermost layer: keys, drain, request ids, the last catch, and the count of requests.

Access is decided on `scope["path"]`, the very value the router matches, never on a path rebuilt from the Host header or
the URL. Everything needs a key but the few routes that are open by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.server.auth import SEVERAL_KEYS, Access
from octavo.server.body import ClientDisconnectedError
from octavo.server.context import ServerContext
from octavo.server.envelopes import error_body
from octavo.server.openai.errors import ErrorReply, answer_to
from octavo.server.tenants import Traffic

CLIENT_LEFT_STATUS = 499
"""Counted for requests whose client left first; never sent."""

IS_ADMIN = "octavo.is_admin"
"""In a request's scope: whether it brought the admin key."""

_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class Gate:
    """ASGI middleware around the router.

    Args:
        access: Who may call what; by default as configured.
    """

    def __init__(self, app: ASGIApp, context: ServerContext, access: Access | None = None) -> None:
        self._app = app
        self._metrics = context.metrics
        self._access = access or Access(context.http)
        self._traffic = Traffic(context.http.max_tenant_requests)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        reply = _Reply(send, headers.get(b"x-request-id"))
        try:
            authorization = _authorization(scope["headers"])
            caller = self._access.check(scope["path"], authorization)
            scope[IS_ADMIN] = self._access.is_admin(authorization)
            with self._traffic.request(caller, counts=scope["method"] == "POST"):
                await self._app(scope, receive, reply.send)
        except ClientDisconnectedError:
            reply.status = CLIENT_LEFT_STATUS
        except Exception as error:
            answer = answer_to(error)
            if not reply.started:
                await send_error(reply.send, answer, scope["path"])
        finally:
            route = scope.get("route")
            self._metrics.count_http(getattr(route, "path", None), scope["method"], reply.status)


def _authorization(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The Authorization header, or what stands for it: Anthropic's clients send the bare key in `x-api-key`."""
    for name, prefix in ((b"authorization", b""), (b"x-api-key", b"Bearer ")):
        values = [value for given, value in headers if given == name]
        if values:
            return prefix + values[0] if len(values) == 1 else SEVERAL_KEYS
    return None


class _Reply:
    """Watches what is sent, and echoes a well-formed X-Request-Id."""

    def __init__(self, send: Send, request_id: bytes | None) -> None:
        self._send = send
        self._echo = request_id if request_id and _REQUEST_ID.fullmatch(request_id) else None
        self.started = False
        self.status = 500

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            self.status = message["status"]
            if self._echo is not None:
                message = {**message, "headers": [*message.get("headers", ()), (b"x-request-id", self._echo)]}
        await self._send(message)


async def send_error(send: Send, reply: ErrorReply, path: str) -> None:
    """Send the envelope as a whole response."""
    await send_json(send, reply.status, error_body(path, reply), reply.headers)


async def send_json(send: Send, status: int, body: bytes, headers: tuple[tuple[str, str], ...] = ()) -> None:
    """Send a JSON text as a whole response."""
    fields = {"content-type": "application/json", "content-length": str(len(body)), **dict(headers)}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})
