"""uvicorn's HTTP protocol with what it lacks: bounds on size, time and number, and our error envelope."""

from __future__ import annotations

import asyncio
import http
import logging
import socket

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.config import HTTPConfig
from octavo.server.line import offer_line
from octavo.server.openai.errors import UNAVAILABLE, ErrorReply
from octavo.server.unframed import unframe

log = logging.getLogger("octavo.server")

MAX_PIPELINED = 64
"""Requests that one connection may send ahead of their answers."""

BODY_SHARE = 10
"""A body may take so many times as long as headers to arrive."""

HALF_OPEN_LOOK_S = 0.1
"""Between two looks at a client that sends no more."""

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_NOT_HTTP = ErrorReply(status=400, message="the request is not valid HTTP", code="invalid_http")
_NO_WEBSOCKETS = ErrorReply(
    status=400, message="there are no WebSockets here; streams are server-sent events", code="websocket_unsupported"
)
_NO_HOST = ErrorReply(status=400, message="the request needs one Host header", code="invalid_host")


class _RefusedError(Exception):
    """Raised in the parser's callbacks, which then stops."""

    def __init__(self, reply: ErrorReply) -> None:
        super().__init__(reply.message)
        self.reply = reply


class OctavoHTTPProtocol(HttpToolsProtocol):
    """One connection."""

    limits = HTTPConfig()
    _in_headers = False
    _header_bytes = 0
    _arrival: asyncio.TimerHandle | None = None
    """Ends a connection whose request does not arrive."""
    _unread: asyncio.TimerHandle | None = None
    """Ends a connection whose answer is not read."""
    _half_open: asyncio.TimerHandle | None = None
    """Looks whether a client that sends no more is still there."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=self.limits.max_unread_bytes)
        if len(self.connections) > self.limits.max_connections:
            why = f"there are {self.limits.max_connections} connections, as many as there may be (--max-connections)"
            wait = (("retry-after", "1"),)
            full = ErrorReply(status=503, message=why, type=UNAVAILABLE, code="too_many_connections", headers=wait)
            self._refuse(full)
            return
        self._expect(self.limits.read_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._expect(None)
        self._watch_reader(False)
        if self._half_open is not None:
            self._half_open.cancel()

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more, which is how both one that has left and one that closed its sending side look.

        Where its request has arrived it is asked whether it still reads: with an interim response, to which the system
        of a client that has left answers with a reset. HTTP/1.0 has none; and TLS ends with either side.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        if self.scheme == "https" or cycle.scope["http_version"] == "1.0":
            return False
        cycle.keep_alive = False
        if not cycle.response_started and not self.pipeline:  # else the pieces of answers serve
            self.transport.write(_CONTINUE)
        if self._half_open is None:
            self._look()
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # what comes after a refusal
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # who asks for another protocol is answered in this one, as HTTP has it
        except httptools.HttpParserError as error:
            why = error.__context__
            self._give_up(why.reply if isinstance(why, _RefusedError) else _NOT_HTTP)
            return
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.max_header_bytes and not self.transport.is_closing():
                self._refuse(self._headers_too_large())
        elif self._arrival is None and (self.cycle is None or self.cycle.response_complete):
            self._expect(self.limits.read_timeout)  # bytes that begin no request

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _RefusedError(_NOT_HTTP)
        self._in_headers = True
        self._header_bytes = 0
        self._expect(self.limits.read_timeout)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        num_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if num_bytes > self.limits.max_header_bytes:  # which came in one piece
            raise _RefusedError(self._headers_too_large())
        if self._get_upgrade() == b"websocket":
            raise _RefusedError(_NO_WEBSOCKETS)
        version = self.parser.get_http_version()
        num_hosts = len(self._values(b"host"))
        if num_hosts > 1 or (num_hosts == 0 and version == "1.1"):
            raise _RefusedError(_NO_HOST)
        self._check_codings()
        self._expect(self.limits.read_timeout * BODY_SHARE)
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # not one that is refused
            offer_line(self.cycle)
            if version == "1.0":
                unframe(self.cycle)

    def on_message_complete(self) -> None:
        self._expect(None)
        super().on_message_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader(True)

    def resume_writing(self) -> None:
        self._watch_reader(False)
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._watch_reader(True)  # closing waits until what is written has been read

    def _values(self, name: bytes) -> list[bytes]:
        return [value for given, value in self.headers if given == name]

    def _check_codings(self) -> None:
        codings = [value.strip().lower() for value in b",".join(self._values(b"transfer-encoding")).split(b",")]
        if codings not in ([b""], [b"chunked"]):
            shown = b", ".join(codings).decode("ascii", "replace")[:64]
            message = f"Transfer-Encoding: {shown} is not supported; chunked is, alone and once"
            raise _RefusedError(ErrorReply(status=501, message=message, code="unsupported_transfer_encoding"))

    def _headers_too_large(self) -> ErrorReply:
        limit = self.limits.max_header_bytes
        message = f"the request's headers are larger than {limit} bytes (--max-header-bytes)"
        return ErrorReply(status=431, message=message, code="headers_too_large")

    def _expect(self, within_s: float | None) -> None:
        """From now on so many seconds for what is to arrive; None when nothing is."""
        if self._arrival is not None:
            self._arrival.cancel()
        self._arrival = None if within_s is None else self.loop.call_later(within_s, self._late)

    def _late(self) -> None:
        self._arrival = None
        if self.flow.read_paused:  # it is we who do not read
            self._expect(self.limits.read_timeout * BODY_SHARE)
        elif not self.transport.is_closing():
            message = "the request did not arrive in time (--read-timeout)"
            self._give_up(ErrorReply(status=408, message=message, code="request_timeout"))

    def _watch_reader(self, pending: bool) -> None:
        if self._unread is not None:
            self._unread.cancel()
        self._unread = self.loop.call_later(self.limits.write_timeout, self.transport.abort) if pending else None

    def _look(self) -> None:
        """Now and then: whether there was a reset. Nobody else tells once nothing is read."""
        if self.transport.is_closing():
            return
        if self.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._half_open = self.loop.call_later(HALF_OPEN_LOOK_S, self._look)

    def _give_up(self, reply: ErrorReply) -> None:
        """End the connection. The request that is being handled learns that nobody listens any more."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:  # a second reply would be read as part of the first
                self.transport.close()
                return
        self._refuse(reply)

    def _refuse(self, reply: ErrorReply) -> None:
        log.debug("a connection is refused: %s", reply.message)
        body = reply.body()
        head = [
            f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in reply.headers),
            "connection: close",
        ]
        self.transport.write("\r\n".join([*head, "\r\n"]).encode() + body)
        self.transport.close()
        self._watch_reader(True)


def protocol_with(limits: HTTPConfig) -> type[OctavoHTTPProtocol]:
    """The protocol of a server with these limits."""
    return type("LimitedHTTPProtocol", (OctavoHTTPProtocol,), {"limits": limits})
