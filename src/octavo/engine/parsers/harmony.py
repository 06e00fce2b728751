"""gpt-oss: an answer is a series of messages, each on a channel and to a recipient.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>commentary to=functions.f
    <|constrain|>json<|message|>{...}<|call|>

The channel `analysis` is reasoning, a message to a function is a call, and everything else is for the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from octavo.engine.parsers.scanner import END, Scanner, Steps

MARKS = ("<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|call|>", "<|return|>")
_BODY_ENDS = ("<|start|>", "<|channel|>", "<|end|>", "<|call|>", "<|return|>")
_HEADER_STARTS = ("<|start|>", "<|channel|>", "to=")
_RECIPIENT = re.compile(r"to=functions\.([^\s<]+)")
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")

Body = Callable[[str], None]


class HarmonyParser(Scanner):
    """Reasoning, text and calls, all three.

    Messages of one kind are put on lines of their own. Text that no header precedes is for the user.

    Args:
        new_id: Makes the ids of calls.
        with_calls: Whether messages to functions are calls; else they are text.
    """

    def __init__(self, new_id: Callable[[], str], *, with_calls: bool = True) -> None:
        self._with_calls = with_calls
        self._spoken: set[Body] = set()
        """Kinds of which there was a message."""
        super().__init__(new_id)

    def run(self) -> Steps[None]:
        while (header := (yield from self._read_header())) is not None:
            recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
            if recipient is not None and self._with_calls:
                mark = yield from self._read_arguments(self.start_call(recipient[1]))
            elif channel is not None and channel[1] == "analysis":
                self.in_reasoning = True
                mark = yield from self._read_message(self.out.reasoning)
                self.in_reasoning = False
            else:
                mark = yield from self._read_message(self.out.text)
            if mark == END:
                return

    def _read_header(self) -> Steps[str | None]:
        """What stands before a message's body; empty where there is none. None when the answer ends before a body."""
        header = ""
        while not header.endswith("<|message|>"):
            char = yield from self.next()
            if char == END:
                self.out.text(header)
                return None
            begun = (header + char).lstrip()
            if not any(begun.startswith(start) or start.startswith(begun) for start in _HEADER_STARTS):
                self.give_back_unused()
                return ""
            header += char
        self.use()
        return header

    def _read_arguments(self, index: int) -> Steps[str]:
        empty = True

        def sink(text: str) -> None:
            nonlocal empty
            empty = False
            self.out.arguments(index, text)

        mark = yield from self._read_body(sink)
        if empty and mark != END:
            self.out.arguments(index, "{}")
        return mark

    def _read_message(self, body: Body) -> Steps[str]:
        separate = body in self._spoken
        self._spoken.add(body)

        def sink(text: str) -> None:
            nonlocal separate
            body("\n" + text if separate else text)
            separate = False

        return (yield from self._read_body(sink))

    def _read_body(self, sink: Body) -> Steps[str]:
        """Pass on the body; the mark that ends it, or END."""
        held = ""
        while True:
            char = yield from self.next()
            if char == END:
                if held:
                    sink(held)
                return END
            held += char
            if held in _BODY_ENDS:
                if held in ("<|start|>", "<|channel|>"):  # they begin the next header
                    self.give_back(len(held))
                self.use()
                return held
            while held and not any(mark.startswith(held) for mark in _BODY_ENDS):
                sink(held[0])
                held = held[1:]
            if not held:
                self.use()
