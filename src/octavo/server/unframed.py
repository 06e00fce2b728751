"""Answers of unknown length to HTTP/1.0, which knows no chunked encoding: as they are, to the end of the connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


class Unframed:
    """In place of a cycle's `send`, which would chunk what comes without a length (RFC 9112, 6.1)."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._send = cycle.send
        self._has_length = False

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
            if not self._has_length:
                self._cycle.chunked_encoding = False
        elif not self._has_length:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._send(message)


def unframe(cycle: RequestResponseCycle) -> None:
    """Have a cycle that has sent nothing yet send no chunks."""
    cycle.send = Unframed(cycle).send  # type: ignore[method-assign]
