"""A response body's shortest way out: bytes are written at once, where ASGI's `send` is a coroutine behind others.

Our own HTTP protocol offers it to every request as an ASGI extension. Under another server there is none, and
everything goes through `send`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LINE, _WRITER = "octavo.line", "line"
"""The extension's name in a request's scope, and of the line in the extension."""


class Line:
    """Writes pieces of a body in chunked encoding, between those that `send` writes."""

    __slots__ = ("_cycle",)

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle

    @property
    def open(self) -> bool:
        """Whether a piece may be written now: the headers are out, and the client keeps up and is still there."""
        cycle = self._cycle
        return (
            cycle.response_started
            and not cycle.response_complete
            and cycle.chunked_encoding is True
            and not cycle.flow.write_paused
            and not cycle.disconnected
        )

    def write(self, piece: bytes) -> None:
        """Write a piece, not empty, while `open`."""
        self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))


def line_of(scope: Scope) -> Line | None:
    """The line of a request, where the server offers one."""
    line: Line | None = scope.get("extensions", {}).get(LINE, {}).get(_WRITER)
    return line


def offer_line(cycle: RequestResponseCycle) -> None:
    """Put a line into the request's scope."""
    cycle.scope.setdefault("extensions", {})[LINE] = {_WRITER: Line(cycle)}
