"""JSON read one character at a time, without recursion: the text of a value is passed on as it comes."""

from __future__ import annotations

import re
from collections.abc import Callable

from octavo.engine.parsers.scanner import END, Scanner, Steps

_CLOSERS = {"{": "}", "[": "]"}
_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SCALAR = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null")

Sink = Callable[[str], object]


def read_string(scanner: Scanner, sink: Sink) -> Steps[bool]:
    """The characters of a string after its opening quote, decoded. False where it is no valid string."""
    while True:
        char = yield from scanner.next()
        if char == '"':
            return True
        if char == END or char < " ":
            return False
        if char == "\\":
            char = yield from _read_escape(scanner)
            if char == END:
                return False
        sink(char)


def _read_escape(scanner: Scanner) -> Steps[str]:
    """The character that stands behind a backslash; END where it is none."""
    char = yield from scanner.next()
    if char != "u":
        return _ESCAPES.get(char, END)
    unit = yield from _read_unit(scanner)
    if unit is None or 0xDC00 <= unit < 0xE000:
        return END
    if not 0xD800 <= unit < 0xDC00:
        return chr(unit)
    for expected in "\\u":
        if (yield from scanner.next()) != expected:
            return END
    low = yield from _read_unit(scanner)
    if low is None or not 0xDC00 <= low < 0xE000:
        return END
    return chr(0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00))


def _read_unit(scanner: Scanner) -> Steps[int | None]:
    digits = ""
    for _ in range(4):
        char = yield from scanner.next()
        if char not in "0123456789abcdefABCDEF" or char == END:
            return None
        digits += char
    return int(digits, 16)


def pass_value(scanner: Scanner, first: str, sink: Sink) -> Steps[bool]:
    """Pass on the text of the value that begins with `first`, character by character, as it is written.

    Brackets and strings are followed, and numbers and words checked at the top; what stands between brackets is not
    judged further. False where the value breaks, at the character that does not fit, which is not passed on.
    """
    if first == '"':
        sink(first)
        return (yield from _pass_string(scanner, sink))
    if first not in _CLOSERS or first == END:
        return (yield from _pass_scalar(scanner, first, sink))
    sink(first)
    open_brackets = [_CLOSERS[first]]
    while open_brackets:
        char = yield from scanner.next()
        if char == END or (char in "]}" and char != open_brackets[-1]):
            return False
        sink(char)
        if char == '"':
            if not (yield from _pass_string(scanner, sink)):
                return False
        elif char in "]}":
            open_brackets.pop()
        elif char in "{[":
            open_brackets.append(_CLOSERS[char])
    return True


def _pass_string(scanner: Scanner, sink: Sink) -> Steps[bool]:
    while True:
        char = yield from scanner.next()
        if char == END:
            return False
        sink(char)
        if char == '"':
            return True
        if char == "\\":
            char = yield from scanner.next()
            if char == END:
                return False
            sink(char)


def _pass_scalar(scanner: Scanner, first: str, sink: Sink) -> Steps[bool]:
    text = first
    while True:
        char = yield from scanner.next()
        if char == END or char in ",]}" or char.isspace():
            break
        text += char
    if _SCALAR.fullmatch(text) is None:
        return False
    scanner.give_back()
    sink(text)
    return True
