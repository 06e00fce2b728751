"""uvicorn's HTTP protocol with two things it lacks: a bound on header size, and our error envelope."""

from __future__ import annotations

import http

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from octavo.server.line import offer_line
from octavo.server.openai.errors import ErrorReply

MAX_HEADER_BYTES = 64 << 10
"""Request line and headers together. One read of the socket may pass it before it is noticed."""


class OctavoHTTPProtocol(HttpToolsProtocol):
    """One connection."""

    _in_headers = False
    _header_bytes = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
                message = f"the request's headers are larger than {MAX_HEADER_BYTES} bytes"
                self._refuse(ErrorReply(status=431, message=message, code="headers_too_large"))

    def on_message_begin(self) -> None:
        self._in_headers = True
        self._header_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_headers = False
        super().on_headers_complete()
        if self.cycle is not None and self.cycle.scope is self.scope:  # not one that is refused
            offer_line(self.cycle)

    def send_400_response(self, msg: str) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # The request that is being handled went wrong midway: its handler learns that nobody listens any more.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:  # a second reply would be read as part of the first
                self.transport.close()
                return
        self._refuse(ErrorReply(status=400, message="the request is not valid HTTP", code="invalid_http"))

    def _refuse(self, reply: ErrorReply) -> None:
        body = reply.body()
        head = (
            f"HTTP/1.1 {reply.status} {http.HTTPStatus(reply.status).phrase}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
