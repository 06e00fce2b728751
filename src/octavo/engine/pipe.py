"""Pipe: whole messages over one of a pair of connected sockets, to the process that has the other."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
import time
from collections import deque

_LENGTH = struct.Struct("<I")
_CHUNK = 1 << 18
"""Bytes taken from the socket at once."""


class Pipe:
    """One end. Messages arrive whole and in order; each is preceded by its length, 4 bytes, little-endian.

    `send` never waits, from whatever thread: what the socket has no room for is kept, and goes out while this end
    waits in `wait`, or with the next message. One thread receives.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._sending = threading.Lock()
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()
        self._start = 0
        """Of the first message in `_received` that was not handed out."""
        self._ended = False
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        """`wait` ends when there is something to send that it does not know of yet."""
        self._poll = select.poll()
        self._poll.register(self._woken, select.POLLIN)

    @classmethod
    def pair(cls) -> tuple[Pipe, socket.socket]:
        """One end, and a socket to make the other of in another process: `Pipe(socket.socket(fileno=...))`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        return cls(ours), theirs

    def send(self, data: bytes) -> None:
        """Send a message. To an end that is gone nothing is sent: `receive` tells of it."""
        with self._sending:
            kept = bool(self._unsent)
            self._unsent.append(memoryview(_LENGTH.pack(len(data)) + data))
            if not self._flush() and not kept:
                with contextlib.suppress(BlockingIOError):  # there are wake-ups enough then
                    os.write(self._wake, b"\0")

    def _flush(self) -> bool:
        """Send what there is room for; whether that was all. The caller holds `_sending`."""
        try:
            while self._unsent:
                rest = self._unsent[0]
                sent = self._socket.send(rest)
                if sent == len(rest):
                    self._unsent.popleft()
                else:
                    self._unsent[0] = rest[sent:]
        except BlockingIOError:
            return False
        except OSError:  # nobody reads any more
            self._unsent.clear()
        return True

    def receive(self) -> bytes | None:
        """The next message, or None while none is there.

        Raises:
            EOFError: If the other end is gone and all that it sent has been received.
        """
        if self._unsent:
            with self._sending:
                self._flush()
        while True:
            message = self._next()
            if message is not None:
                return message
            if self._ended:
                raise EOFError
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return None
            except OSError:
                data = b""
            if data:
                self._received += data
            else:
                self._ended = True

    def _next(self) -> bytes | None:
        begin = self._start + _LENGTH.size
        if begin <= len(self._received):
            (length,) = _LENGTH.unpack_from(self._received, self._start)
            if begin + length <= len(self._received):
                self._start = begin + length
                return bytes(memoryview(self._received)[begin : self._start])
        del self._received[: self._start]
        self._start = 0
        return None

    def wait(self, timeout_s: float | None) -> None:
        """After `receive` gave None: until it may have something to say, or the time is over. Meanwhile what is kept is
        sent."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            with self._sending:
                events = select.POLLIN if self._flush() else select.POLLIN | select.POLLOUT
            self._poll.register(self._socket, events)
            left_ms = None if until_s is None else max(0.0, until_s - time.monotonic()) * 1000
            ready = dict(self._poll.poll(left_ms))
            if self._woken in ready:
                os.read(self._woken, _CHUNK)
            if ready.get(self._socket.fileno(), 0) & ~select.POLLOUT:
                return
            if until_s is not None and time.monotonic() >= until_s:
                return

    def close(self, linger_s: float = 0.0) -> None:
        """Let go of this end, after at most `linger_s` seconds for what is still to be sent."""
        until_s = time.monotonic() + linger_s
        with self._sending:
            while not self._flush() and (left_s := until_s - time.monotonic()) > 0:
                select.select([], [self._socket], [], left_s)
            self._unsent.clear()
        self._socket.close()
        os.close(self._woken)
        os.close(self._wake)
