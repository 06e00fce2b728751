"""A parser written as a coroutine that asks for one character after another.

That an answer may be cut anywhere then needs no thought: the coroutine sees characters, never deltas. It can give
characters back, so that what looked like a call and is none is read again as text.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TypeVar

from octavo.engine.parsers.pieces import CallStart, Piece, PieceList

T = TypeVar("T")
Steps = Generator[None, str, T]

END = ""
"""What the coroutine reads when the answer has ended, as often as it asks."""


class Scanner:
    """The base of parsers; see `OutputParser`. A subclass writes `run`, which begins when this is constructed.

    Args:
        new_id: Makes the ids of calls.
    """

    in_reasoning = False

    def __init__(self, new_id: Callable[[], str]) -> None:
        self.out = PieceList()
        self.num_calls = 0
        self._new_id = new_id
        self._given_back: deque[str] = deque()
        self._unused: list[str] = []
        self._ended = False
        self._plain = False
        self._coroutine = self.run()
        next(self._coroutine, None)

    def run(self) -> Steps[None]:
        """Read characters until END and write to `out`. Returning earlier makes all that follows text."""
        raise NotImplementedError  # every parser has its own; __init__ runs it, so a class without one cannot be made

    def feed(self, text: str) -> list[Piece]:
        if not self._plain:
            send = self._coroutine.send
            for done, char in enumerate(text):
                try:
                    send(char)
                except StopIteration:
                    self._plain = True
                    text = "".join(self._given_back) + text[done + 1 :]
                    self._given_back.clear()
                    break
            else:
                return self.out.take()
        self.out.text(text)
        return self.out.take()

    def finish(self) -> list[Piece]:
        self._ended = True
        if not self._plain:
            try:
                self._coroutine.send(END)
            except StopIteration:
                self.out.text("".join(self._given_back))
        return self.out.take()

    # --- for subclasses ---

    def next(self) -> Steps[str]:
        """The next character, or END. It counts as unused until `use`."""
        if self._given_back:
            char = self._given_back.popleft()
        elif self._ended:
            char = END
        else:
            char = yield
        self._unused.append(char)
        return char

    def next_visible(self) -> Steps[str]:
        """The next character that is no white space, or END."""
        while (char := (yield from self.next())).isspace():
            pass
        return char

    def use(self) -> None:
        """What was read so far is represented in the output, or is only syntax."""
        self._unused.clear()

    def give_back(self, count: int = 1) -> None:
        """Read the last `count` characters again."""
        for _ in range(count):
            self._given_back.appendleft(self._unused.pop())

    def give_back_unused(self) -> None:
        """Read again what was not used."""
        self.give_back(len(self._unused))

    def start_call(self, name: str, call_id: str | None = None) -> int:
        """Begin a call; its index."""
        index, self.num_calls = self.num_calls, self.num_calls + 1
        self.out.start(CallStart(index, call_id or self._new_id(), name))
        return index
