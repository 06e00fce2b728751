"""The parsed answer of a model, piece by piece and whole.

An answer's text goes through an `OutputParser`, made for one answer. `feed(text)` returns the pieces that became
certain, `finish()` what was held back; pieces are in the order in which the model wrote them. However the text is cut,
the same pieces result once neighbours of one kind are joined, so a streamed answer is the whole one, byte for byte:

    parser = ...                       # an OutputParser
    answer = ParsedAnswer()
    for delta in deltas:
        answer.add(parser.feed(delta.text))
    answer.add(parser.finish())
    answer.reasoning, answer.text, answer.tool_calls, answer.parts

A call begins with one `CallStart`, which has its index, id and whole name; `CallArguments` of the same index follow
and together are the arguments' text, which is JSON when the model wrote JSON to the end. Calls are numbered from 0 and
never overlap. Reasoning and text may come between calls, and in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import msgspec


class Reasoning(msgspec.Struct, frozen=True):
    """Thoughts before the answer, without the marks around them."""

    text: str


class Text(msgspec.Struct, frozen=True):
    """Words for the user."""

    text: str


class CallStart(msgspec.Struct, frozen=True):
    """A tool call begins."""

    index: int
    id: str
    name: str


class CallArguments(msgspec.Struct, frozen=True):
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


Piece = Reasoning | Text | CallStart | CallArguments


class ToolCall(msgspec.Struct):
    """A call as far as it came. `arguments` is JSON unless the answer was cut off or the model wrote something else."""

    id: str
    name: str
    arguments: str = ""


class ParsedAnswer(msgspec.Struct):
    """All pieces of an answer, joined."""

    parts: list[Reasoning | Text | ToolCall] = []
    """In the model's order; no two neighbours are both reasoning or both text."""

    def add(self, pieces: Iterable[Piece]) -> None:
        """What the parser returned next."""
        for piece in pieces:
            last = self.parts[-1] if self.parts else None
            match piece:
                case Text(text) if isinstance(last, Text):
                    self.parts[-1] = Text(last.text + text)
                case Reasoning(text) if isinstance(last, Reasoning):
                    self.parts[-1] = Reasoning(last.text + text)
                case Text() | Reasoning():
                    self.parts.append(piece)
                case CallStart(_, call_id, name):
                    self.parts.append(ToolCall(call_id, name))
                case CallArguments(index, text):
                    self.tool_calls[index].arguments += text

    @property
    def reasoning(self) -> str | None:
        """All of it; None when there is none."""
        return "".join(part.text for part in self.parts if isinstance(part, Reasoning)) or None

    @property
    def text(self) -> str | None:
        """All of it; None when there is none."""
        return "".join(part.text for part in self.parts if isinstance(part, Text)) or None

    @property
    def tool_calls(self) -> list[ToolCall]:
        return [part for part in self.parts if isinstance(part, ToolCall)]


class OutputParser(Protocol):
    """Takes one answer's text as it comes. It never fails: what it does not understand is text."""

    @property
    def in_reasoning(self) -> bool:
        """Whether what comes next is reasoning, or may end it."""
        ...

    def feed(self, text: str) -> list[Piece]:
        """The pieces that are certain now, neighbours of one kind joined."""
        ...

    def finish(self) -> list[Piece]:
        """The answer has ended: everything held back. Call once."""
        ...


class PieceList:
    """Collects pieces a few characters at a time and joins neighbours of one kind."""

    def __init__(self) -> None:
        self._kind: type[Reasoning] | type[Text] | int | None = None
        """Of the characters gathered; an int is the call whose arguments they are."""
        self._chars: list[str] = []
        self._pieces: list[Piece] = []

    def reasoning(self, text: str) -> None:
        self._gather(Reasoning, text)

    def text(self, text: str) -> None:
        self._gather(Text, text)

    def arguments(self, index: int, text: str) -> None:
        self._gather(index, text)

    def start(self, call: CallStart) -> None:
        self._close()
        self._pieces.append(call)

    def take(self) -> list[Piece]:
        """What was collected since the last time."""
        self._close()
        pieces, self._pieces = self._pieces, []
        return pieces

    def _gather(self, kind: type[Reasoning] | type[Text] | int, text: str) -> None:
        if kind is not self._kind and kind != self._kind:
            self._close()
            self._kind = kind
        self._chars.append(text)

    def _close(self) -> None:
        text, kind = "".join(self._chars), self._kind
        self._chars, self._kind = [], None
        if not text or kind is None:
            return
        self._pieces.append(CallArguments(kind, text) if isinstance(kind, int) else kind(text))
