"""Tool calls as a list of Python calls: `[get_weather(city="Paris", days=2), ...]`, as Llama 3.2 and 4 write them."""

from __future__ import annotations

import json
import re

from octavo.engine.parsers.calls import CallScanner
from octavo.engine.parsers.json_text import Sink
from octavo.engine.parsers.scanner import END, Scanner, Steps

_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_WORDS = {"True": "true", "False": "false", "None": "null"}
_LITERAL = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|true|false|null")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_NUM_DIGITS = {"x": 2, "u": 4, "U": 8}


class PythonicParser(CallScanner):
    """The arguments become JSON as they come: `city='Paris'` is passed on as `"city": "Paris"`."""

    marks = ("<|python_tag|>", "<|python_start|>")
    openers = "["

    def read_calls(self, mark: str) -> Steps[None]:
        if mark != "[" and (yield from self.next_visible()) != "[":
            return
        while (yield from self._read_call()):
            char = yield from self.next_visible()
            if char == "]":
                self.use()
            if char != ",":
                break
        if self.call_begun and mark == "<|python_start|>":
            yield from self.skip("<|python_end|>")

    def _read_call(self) -> Steps[bool]:
        name = yield from read_name(self)
        if name not in self.tool_names or (yield from self.next()) != "(":
            return False
        sink = self.argue(self.begin(name))
        sink("{")
        first = True
        while True:
            char = yield from self.next_visible()
            if char == ")":
                sink("}")
                return True
            if not first:
                if char != ",":
                    return False
                if (yield from self.skip(")")):
                    sink("}")
                    return True
            else:
                self.give_back()
            key = yield from read_name(self)
            if not key or (yield from self.next_visible()) != "=":
                return False
            sink(("" if first else ", ") + json.dumps(key, ensure_ascii=False) + ": ")
            first = False
            if not (yield from pass_literal(self, sink)):
                return False


def read_name(scanner: Scanner) -> Steps[str]:
    """An identifier, dots allowed, after white space; empty where there is none."""
    char = yield from scanner.next_visible()
    name = ""
    while char.isalnum() or char in ("_", ".", "-"):
        name += char
        char = yield from scanner.next()
    scanner.give_back()
    return name


def pass_literal(scanner: Scanner, sink: Sink) -> Steps[bool]:
    """Pass on a Python literal as JSON. What is no literal, such as a variable's name, becomes a string.

    False where it breaks, at the character that does not fit.
    """
    open_brackets: list[str] = []
    comma = False  # held until it is certain that no closing bracket follows
    while True:
        char = yield from scanner.next_visible()
        if open_brackets and char == open_brackets[-1]:
            sink("]" if open_brackets.pop() == ")" else char)
            comma = False
        elif open_brackets and char == ",":
            comma = True
            continue
        elif open_brackets and char == ":":
            sink(": ")
            continue
        else:
            if comma and char != END:
                scanner.give_back()
                sink(", ")
                comma = False
                continue
            if char in _CLOSERS:
                sink("[" if char == "(" else char)
                open_brackets.append(_CLOSERS[char])
                continue
            if not (yield from _pass_atom(scanner, char, sink)):
                return False
        if not open_brackets:
            return True


def _pass_atom(scanner: Scanner, first: str, sink: Sink) -> Steps[bool]:
    """A string, number or word."""
    if first in ("'", '"'):
        return (yield from _pass_string(scanner, first, sink))
    word = ""
    char = first
    while char.isalnum() or char in ("_", ".", "-", "+"):
        word += char
        char = yield from scanner.next()
    scanner.give_back()
    if not word or char == END:
        return False
    word = _WORDS.get(word, word)
    sink(word if _LITERAL.fullmatch(word) else json.dumps(word, ensure_ascii=False))
    return True


def _pass_string(scanner: Scanner, quote: str, sink: Sink) -> Steps[bool]:
    sink('"')
    while True:
        char = yield from scanner.next()
        if char == END:
            return False
        if char == quote:
            sink('"')
            return True
        if char == "\\":
            char = yield from _read_escape(scanner)
            if char == END:
                return False
        sink(json.dumps(char, ensure_ascii=False)[1:-1])


def _read_escape(scanner: Scanner) -> Steps[str]:
    """What an escape stands for; an unknown one stands for itself, backslash included, as in Python."""
    char = yield from scanner.next()
    if char in _NUM_DIGITS:
        digits = ""
        for _ in range(_NUM_DIGITS[char]):
            digit = yield from scanner.next()
            if digit == END or digit not in "0123456789abcdefABCDEF":
                return END
            digits += digit
        code = int(digits, 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else END
    if char in ("'", '"', "\\", END):
        return char
    return _ESCAPES.get(char, "\\" + char)
