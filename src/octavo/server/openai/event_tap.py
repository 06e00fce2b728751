"""The steady state of a stream: a token becomes bytes on its connection in one call, and no coroutine is woken."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

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


class Joined:
    """Joins the deltas of a choice until they hold enough tokens. The first goes out at once, and so does the last with
    what has gathered before it.

    Args:
        interval: Tokens in a delta, at least.
    """

    def __init__(self, frames_of: Callable[[int, TextDelta], bytes], interval: int) -> None:
        self._frames_of = frames_of
        self._interval = interval
        self._gathered: dict[int, TextDelta | None] = {}
        """By choice, from its first delta on; None while there is nothing."""

    def __call__(self, choice: int, delta: TextDelta) -> bytes:
        begun = choice in self._gathered
        gathered = self._gathered.get(choice)
        if gathered is not None:
            gathered.append(delta)
            delta = gathered
        if begun and delta.finish_reason is None and len(delta.token_ids) < self._interval:
            self._gathered[choice] = delta
            return b""
        self._gathered[choice] = None
        return self._frames_of(choice, delta)


async def event_frames(
    generation: Generation,
    line: Line | None,
    frames_of: Callable[[int, TextDelta], bytes],
    ending: Callable[[], bytes] = bytes,
) -> AsyncGenerator[bytes, None]:
    """What the deltas of a request add to its stream. Those that go over `line` are not among them.

    Args:
        frames_of: The frames that a delta adds to a choice. Called once for each delta, in order.
        ending: What comes after the last.
    """
    if generation.stream_interval > 1:
        frames_of = Joined(frames_of, generation.stream_interval)
    tap = None if line is None else EventTap(generation, line, frames_of)
    async with aclosing(generation.deltas(tap)) as deltas:
        async for choice, delta in deltas:
            if frames := frames_of(choice, delta):
                delta.logprobs = None  # they are in the frames, and the delta stays until those are read
                yield frames
    if last := ending():
        yield last
