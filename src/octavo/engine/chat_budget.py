"""What one rendering of a chat template may take: turns, seconds, and memory for all that it makes.

A value costs what it takes written out, not what it takes as it is: a list that holds one long text a thousand times
over is small, and its text is not. `weigh` finds that out without making it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import jinja2
import jinja2.utils

MAX_OUTPUT_CHARS = 32 << 20
"""Longest text a template may make, in one piece or in all."""
MAX_MADE_BYTES = 512 << 20
"""Memory of all values that it makes, those included that it has let go of."""
MAX_ITEMS = 1 << 20
"""Elements of one list."""
MAX_TURNS = 1_000_000
"""Turns of all loops and calls in one rendering."""
MAX_RENDER_S = 5.0

_TEXT_BYTES = 56
"""Of a short string, besides its characters."""
_CONTAINERS: tuple[type[Collection[Any]], ...] = (
    list,
    tuple,
    dict,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


patience_s: ContextVar[float] = ContextVar("patience_s", default=MAX_RENDER_S)
"""For how long whoever asks for a rendering can wait where he is: a server's loop, at which everybody waits, not for
long. What takes longer ends with OutOfPatienceError, to be done again elsewhere."""
PATIENT_CHARS = 16_384
"""A longer text takes its time to become tokens."""


class OutOfPatienceError(Exception):
    """The rendering may be sound, and takes longer than `patience_s`."""


class TemplateLimitError(jinja2.TemplateError):
    """A rendering takes more than it may."""


class Budget:
    """What one rendering may still take."""

    def __init__(self) -> None:
        self._turns_left = MAX_TURNS
        self._bytes_left = MAX_MADE_BYTES
        self._is_patient = patience_s.get() >= MAX_RENDER_S
        self._deadline_s = time.monotonic() + min(patience_s.get(), MAX_RENDER_S)
        # By identity, each with the container itself: it must live for as long as its weight counts. Nothing in the
        # sandbox changes a container.
        self._weights: dict[int, tuple[Any, int]] = {}

    def take_turns(self, count: int = 1) -> None:
        self._turns_left -= count
        if self._turns_left < 0:
            raise TemplateLimitError(f"its loops and calls take more than {MAX_TURNS} turns")
        if time.monotonic() > self._deadline_s:
            if not self._is_patient:
                raise OutOfPatienceError
            raise TemplateLimitError(f"it takes longer than {MAX_RENDER_S:g} seconds")

    def take_bytes(self, count: int) -> None:
        self._bytes_left -= count
        if self._bytes_left < 0:
            raise TemplateLimitError(f"it makes texts and lists of more than {MAX_MADE_BYTES} bytes in all")

    def weight_of(self, value: Any) -> int:
        """Characters of `value` written out, nearly."""
        if isinstance(value, str | bytes):
            return len(value)
        if isinstance(value, int):
            return value.bit_length() // 3
        if isinstance(value, jinja2.utils.Namespace):  # the one thing that a template can change
            raise TemplateLimitError("it writes out or compares a namespace")
        if not isinstance(value, _CONTAINERS):
            return 1
        known = self._weights.get(id(value))
        if known is not None:
            return known[1]
        self.take_turns(1 + len(value))
        weight = 2 + sum(2 + self.weight_of(part) for part in _parts(value))
        check_length(weight)
        self._weights[id(value)] = value, weight
        return weight


budget: ContextVar[Budget] = ContextVar("budget")
"""Of the rendering, or the compiling, under way in this thread."""


def check_length(length: int) -> None:
    if length > MAX_OUTPUT_CHARS:
        raise TemplateLimitError(f"it makes a text of more than {MAX_OUTPUT_CHARS} characters")


def check_items(count: int) -> None:
    if count > MAX_ITEMS:
        raise TemplateLimitError(f"it makes a list of more than {MAX_ITEMS} elements")


def weigh(value: Any) -> Any:
    """The value, unless it would be too long written out. Takes a turn.

    To be asked before whatever looks at all of a value: to write it, to compare it, to sort it.
    """
    left = budget.get()
    left.take_turns()
    check_length(left.weight_of(value))
    return value


def made(value: Any) -> Any:
    """The value, taken off what may still be made."""
    if isinstance(value, str):
        check_length(len(value))
        budget.get().take_bytes(len(value) if value.isascii() else 4 * len(value))
    elif isinstance(value, list | tuple):
        check_items(len(value))
        budget.get().take_bytes(8 * len(value))
    elif isinstance(value, dict):
        check_items(len(value))
        budget.get().take_bytes(sys.getsizeof(value))
    return value


def made_parts(count: int) -> None:
    """Take off what a list of so many short new strings needs."""
    check_items(count)
    budget.get().take_bytes(count * (8 + _TEXT_BYTES))


def counted(items: Any) -> Iterator[Any]:
    """The items, a turn for each."""
    take_turns = budget.get().take_turns
    for item in items:
        take_turns()
        yield item


def joined(separator: str, parts: Iterable[Any]) -> str:
    """The parts as one text, whose length is known before it is made."""
    kept = list(counted(parts))
    left = budget.get()
    check_length(sum(left.weight_of(part) + len(separator) for part in kept))
    text: str = made(separator.join(map(str, kept)))
    return text


def _parts(value: Any) -> Iterable[Any]:
    return (part for item in value.items() for part in item) if isinstance(value, dict) else value
