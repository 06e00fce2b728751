"""The engine process: `python -m octavo.engine.host_process COMMANDS EVENTS`, started by `ProcessHost` alone.

Takes commands from one socket and sends what each step makes known over the other, in one message per step. With
nothing to do it blocks. It ends when it is told to, or when its parent's end of standard input closes, that is, when
the parent is gone.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Any

import msgspec
import zmq

from octavo import registry
from octavo.engine import wire
from octavo.engine.build import build_engine, grammars_of
from octavo.engine.loop import EngineLoop
from octavo.engine.questions import Question
from octavo.engine.start_up import no_collection
from octavo.errors import OctavoError

_LOG = logging.getLogger("octavo.engine")


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os._exit(0)


def _first(commands: zmq.Socket[bytes]) -> bytes:
    """The first message. Until it comes, import what nearly every engine needs."""
    if not commands.poll(0):
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            registry.resolve("executors", "local")
            registry.resolve("backends", "cpu")
    return commands.recv()


def _start(raw: bytes) -> tuple[EngineLoop, wire.Started]:
    message = wire.decode_command(raw)
    if not isinstance(message, wire.Start):
        raise ValueError("the first message must say what to start")
    config, files = message.unpack()
    core, info, close = build_engine(config, files)
    return EngineLoop(core, close, grammars_of(core, config, files, info)), wire.Started(info)


class _Server:
    """The loop between two sockets."""

    def __init__(self, loop: EngineLoop, commands: zmq.Socket[bytes], events: zmq.Socket[bytes]) -> None:
        self._loop = loop
        self._commands = commands
        self._events = events
        self._stopped = False

    def run(self) -> None:
        while not self._stopped:
            self._take_commands()
            if self._loop.has_work and not self._stopped:
                batch = self._loop.step()
                if batch.deltas or batch.stats is not None:
                    self._events.send(wire.encode(batch))

    def _take_commands(self) -> None:
        """All commands that are here; waits for one when there is nothing else to do."""
        flags = zmq.NOBLOCK if self._loop.has_work else 0
        try:
            while not self._stopped:
                self._obey(self._commands.recv(flags))
                flags = zmq.NOBLOCK
        except zmq.Again:
            pass

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
                self._events.send(wire.encode(self._answer(number, question)))
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
    context = zmq.Context()
    commands, events = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, address in ((commands, sys.argv[1]), (events, sys.argv[2])):
        socket.set_hwm(0)
        socket.linger = 2000
        socket.connect(address)
    try:
        with no_collection():
            loop, started = _start(_first(commands))
    except Exception as error:
        events.send(wire.encode(wire.failure(error)))
        context.destroy(linger=2000)
        return 1
    events.send(wire.encode(started))
    try:
        _Server(loop, commands, events).run()
    finally:
        loop.close()
        context.destroy(linger=2000)
    return 0


if __name__ == "__main__":
    sys.exit(main())
