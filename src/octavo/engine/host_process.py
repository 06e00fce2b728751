"""The engine process: `python -m octavo.engine.host_process FD`, started by `ProcessHost` alone.

Takes commands from the socket that has this descriptor, and sends what each step makes known, in one message per step.
With nothing to do it blocks. It ends when it is told to, or when its parent's end of standard input closes, that is,
when the parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import Any

import msgspec

from octavo import registry
from octavo.engine import wire
from octavo.engine.build import build_engine, grammars_of
from octavo.engine.loop import EngineLoop
from octavo.engine.pipe import Pipe
from octavo.engine.questions import Question
from octavo.engine.start_up import no_collection
from octavo.errors import OctavoError

_LOG = logging.getLogger("octavo.engine")
_LINGER_S = 2.0
"""For what the front end has not taken when this process ends."""


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _first(pipe: Pipe) -> bytes:
    """The first message. Until it comes, import what nearly every engine needs."""
    message = pipe.receive()
    if message is None:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            registry.resolve("executors", "local")
            registry.resolve("backends", "cpu")
    while message is None:
        pipe.wait(None)
        message = pipe.receive()
    return message


def _start(raw: bytes) -> tuple[EngineLoop, wire.Started]:
    message = wire.decode_command(raw)
    if not isinstance(message, wire.Start):
        raise ValueError("the first message must say what to start")
    config, files = message.unpack()
    core, info, close = build_engine(config, files)
    return EngineLoop(core, close, grammars_of(core, config, files, info)), wire.Started(info)


class _Server:
    """The loop at the end of a pipe."""

    def __init__(self, loop: EngineLoop, pipe: Pipe) -> None:
        self._loop = loop
        self._pipe = pipe
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            self._take_commands()
            if self._loop.has_work and not self._stopped:
                batch = self._loop.step()
                if batch.deltas or batch.stats is not None:
                    self._pipe.send(wire.encode(batch))

    def _take_commands(self) -> None:
        """All commands that are here; waits for one when there is nothing else to do."""
        while not self._stopped:
            message = self._pipe.receive()
            if message is not None:
                self._obey(message)
            elif self._loop.has_work:
                return
            else:
                self._pipe.wait(None)

    def _obey(self, raw: bytes) -> None:
        try:
            command = wire.decode_command(raw)
        except msgspec.DecodeError:
            _LOG.warning("dropped a message that is no command")
            return
        match command:
            case wire.Add(request):
                self._loop.add(request)
            case wire.Abort(request_id, index):
                self._loop.abort(request_id, index)
            case wire.Ask(number, question):
                self._pipe.send(wire.encode(self._answer(number, question)))
            case wire.Stop():
                self._stopped = True
            case wire.Start():
                _LOG.warning("dropped a second start")

    def _answer(self, number: int, question: Question[Any]) -> wire.Answered | wire.Unanswered:
        try:
            answer: object = self._loop.ask(question)
        except Exception as error:  # whoever asks must not be able to stop the engine
            _LOG.exception("a question could not be answered")
            return wire.Unanswered(number, str(error) if isinstance(error, OctavoError) else type(error).__name__)
        return wire.Answered(number, msgspec.Raw(wire.encode(answer)))


def main() -> int:
    """Serve until told to stop. The exit status is 0 after that, 1 after a failure."""
    # The terminal and service managers signal the whole group; the parent drains first and then says when to stop.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    pipe = Pipe(socket.socket(fileno=int(sys.argv[1])))
    try:
        with no_collection():
            loop, started = _start(_first(pipe))
    except Exception as error:
        pipe.send(wire.encode(wire.failure(error)))
        pipe.close(_LINGER_S)
        return 1
    pipe.send(wire.encode(started))
    try:
        _Server(loop, pipe).run()
    finally:
        loop.close()
        pipe.close(_LINGER_S)
    return 0


if __name__ == "__main__":
    sys.exit(main())
