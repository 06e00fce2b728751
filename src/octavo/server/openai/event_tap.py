"""The steady state of a stream: a token becomes bytes on its connection in one call, and no coroutine is woken."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.outputs import TextDelta
from octavo.server.line import Line
from octavo.server.openai.generation import Generation


class EventTap:
    """Writes what deltas add to a stream of one prompt; see `octavo.engine.dispatch.Tap`.

    The stream's beginning and end, its errors, and all of it while the client is slow go the usual way.

    Args:
        frames_of: The frames that a delta adds, by choice. Called once for each delta, in order.
    """

    def __init__(self, generation: Generation, line: Line, frames_of: Callable[[int, TextDelta], bytes]) -> None:
        self._generation = generation
        self._line = line
        self._frames_of = frames_of
        self._frames: list[bytes] = []

    def take(self, delta: TextDelta) -> bool:
        if not self._line.open:
            return False
        self._generation.note(0, delta.index, delta)
        self._frames.append(self._frames_of(delta.index, delta))
        return True

    def flush(self) -> None:
        """One write for all choices of a step."""
        frames, self._frames = b"".join(self._frames), []
        if frames:
            self._line.write(frames)
