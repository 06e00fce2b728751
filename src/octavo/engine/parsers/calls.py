"""Tool calls inside text: where they begin, and what happens when they turn out not to be any."""

from __future__ import annotations

from collections.abc import Callable

from octavo.engine.parsers.json_text import pass_value, read_string
from octavo.engine.parsers.scanner import END, Scanner, Steps

NAME_KEYS = frozenset({"name", "function"})
ARGUMENT_KEYS = frozenset({"arguments", "parameters"})


class CallScanner(Scanner):
    """Text up to the next mark of a call, then `read_calls`, and so on.

    White space directly before calls, and at the end after them, belongs to their syntax and is left out. What looked
    like a call and is none becomes text again, mark included; once a call has begun it stays one, and what comes after
    the place where it breaks is text.

    Args:
        tool_names: The tools there are.
        new_id: Makes the ids of calls.
    """

    marks: tuple[str, ...] = ()
    """Each announces calls wherever it stands. None is the beginning of another."""
    openers = ""
    """Characters that may begin a call without a mark."""

    def __init__(self, tool_names: frozenset[str], new_id: Callable[[], str]) -> None:
        self.tool_names = tool_names
        self._space: list[str] = []
        self.call_begun = False
        super().__init__(new_id)

    def run(self) -> Steps[None]:
        while True:
            mark = yield from self._pass_text()
            if mark == END:
                return
            self.call_begun = False
            yield from self.read_calls(mark)
            if not self.call_begun:
                self._text(mark)
            self.give_back_unused()

    def read_calls(self, mark: str) -> Steps[None]:
        """Read the calls that `mark` announces, with `begin`. What is not used when this ends is read again as text."""
        raise NotImplementedError  # not abstract: a parser that replaces `run` as a whole needs none

    def begin(self, name: str, call_id: str | None = None) -> int:
        """A call is certain."""
        self.call_begun = True
        self._space.clear()
        self.use()
        return self.start_call(name, call_id)

    def argue(self, index: int) -> Callable[[str], None]:
        """Takes the text of a call's arguments."""

        def sink(text: str) -> None:
            self.out.arguments(index, text)
            self.use()

        return sink

    def skip(self, mark: str) -> Steps[bool]:
        """Read over white space and `mark` if that is what comes; else nothing is read."""
        char = yield from self.next_visible()
        count = 1
        for expected in mark:
            if char != expected:
                self.give_back(count)
                return False
            if count < len(mark):
                char = yield from self.next()
                count += 1
        self.use()
        return True

    def _pass_text(self) -> Steps[str]:
        """Pass on text to where a call may begin; returns the mark, or END."""
        held = ""
        while True:
            char = yield from self.next()
            self.use()
            if char == END:
                self._text(held)
                if self.num_calls == 0:
                    self.out.text("".join(self._space))
                return END
            if not held and char in self.openers:
                return char
            held += char
            if held in self.marks:
                return held
            while held and not any(mark.startswith(held) for mark in self.marks):
                self._text(held[0])
                held = held[1:]

    def _text(self, text: str) -> None:
        for char in text:
            if char.isspace():
                self._space.append(char)
            else:
                self.out.text("".join(self._space) + char)
                self._space.clear()


class JSONCallScanner(CallScanner):
    """Calls written as JSON objects with a name and arguments, alone or in a list."""

    needs_known_name = False
    """Whether only names of tools there are make a call: where no mark tells calls from other JSON."""

    def read_list(self, first: str) -> Steps[bool]:
        """One object or a list of them, `first` being its first character. Whether it was complete."""
        if first == "{":
            return (yield from self.read_object())
        if first != "[":
            return False
        while True:
            char = yield from self.next_visible()
            if char == "{":
                if not (yield from self.read_object()):
                    return False
                char = yield from self.next_visible()
            if char == "]":
                if self.call_begun:
                    self.use()
                return self.call_begun
            if char != ",":
                return False

    def read_object(self) -> Steps[bool]:
        """The call after `{`. Whether it was complete."""
        return (yield from _ObjectCall(self).read())


class _ObjectCall:
    """One call as a JSON object. It begins once the name and the arguments' first character are known."""

    def __init__(self, scanner: JSONCallScanner) -> None:
        self._scanner = scanner
        self._name = ""
        self._index: int | None = None
        self._early: list[str] | None = None
        """Arguments that came before the name."""

    def read(self) -> Steps[bool]:
        if not (yield from self._read_members()) or not self._name:
            return False
        if self._index is None:
            if self._early is None and self._scanner.needs_known_name:
                return False
            self._begin()("{}" if self._early is None else "".join(self._early))
        self._scanner.use()
        return True

    def _read_members(self) -> Steps[bool]:
        """What follows `{`, to its `}`."""
        scanner = self._scanner
        while (char := (yield from scanner.next_visible())) != "}":
            if char != '"' or not (yield from self._read_member()):
                return False
            char = yield from scanner.next_visible()
            if char == "}":
                break
            if char != ",":
                return False
        return True

    def _begin(self) -> Callable[[str], None]:
        self._index = self._scanner.begin(self._name)
        return self._scanner.argue(self._index)

    def _read_member(self) -> Steps[bool]:
        scanner = self._scanner
        key: list[str] = []
        if not (yield from read_string(scanner, key.append)):
            return False
        if (yield from scanner.next_visible()) != ":":
            return False
        first = yield from scanner.next_visible()
        name = "".join(key)
        if name == "function" and first == "{" and not self._name:  # {"type": "function", "function": {...}}
            return (yield from self._read_members())
        if name in NAME_KEYS and first == '"' and not self._name:
            return (yield from self._read_name())
        if name in ARGUMENT_KEYS and self._index is None and self._early is None:
            return (yield from self._read_arguments(first))
        return (yield from pass_value(scanner, first, _nowhere))

    def _read_name(self) -> Steps[bool]:
        name: list[str] = []
        if not (yield from read_string(self._scanner, name.append)):
            return False
        self._name = "".join(name)
        known = self._name in self._scanner.tool_names
        return bool(self._name) and (known or not self._scanner.needs_known_name)

    def _read_arguments(self, first: str) -> Steps[bool]:
        """An object; or JSON inside a string, as some models write it; or null."""
        scanner = self._scanner
        if first == "n":
            return (yield from pass_value(scanner, first, _nowhere))
        if first == END or first not in '{"':
            return False
        if self._name:
            sink = self._begin()
        else:
            self._early = []
            sink = self._early.append
        if first == '"':
            return (yield from read_string(scanner, sink))
        return (yield from pass_value(scanner, first, sink))


def _nowhere(text: str) -> None:
    pass
