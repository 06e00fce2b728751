"""What every route that takes a JSON object does around its own work."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

from starlette.types import Receive, Scope, Send

from octavo.server.body import read_json_object
from octavo.server.context import ServerContext

R = TypeVar("R")


class Endpoint(ABC, Generic[R]):
    """A POST of a JSON object, as an ASGI application.

    The body is read and checked, nothing is begun while the server drains, and the work ends when the client leaves.
    """

    def __init__(self, context: ServerContext) -> None:
        self.context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival_s = time.perf_counter()
        context = self.context
        context.lifecycle.check_open()
        body = await read_json_object(scope, receive, context.http.max_body_bytes)
        request, unknown = self.parse(body)
        context.report_unknown_fields(unknown)
        context.lifecycle.check_open()  # the body may have taken its time
        await context.lifecycle.run(self.answer(request, scope, send, arrival_s), receive)

    @abstractmethod
    def parse(self, body: dict[str, Any]) -> tuple[R, list[str]]:
        """The request, and the names of its unknown fields.

        Raises:
            RequestError: Naming the field that cannot be.
        """

    @abstractmethod
    async def answer(self, request: R, scope: Scope, send: Send, arrival_s: float) -> None:
        """Do the work and send the reply. `arrival_s` is `time.perf_counter()` at the request's arrival."""
