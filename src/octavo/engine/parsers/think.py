"""Reasoning between two marks before the answer: DeepSeek-R1, Qwen3 and those that write like them."""

from __future__ import annotations

from typing import Literal

from octavo.engine.parsers.scanner import END, Scanner, Steps

THINK = ("<think>", "</think>")

Begins = Literal["inside", "outside", "unsure"]


class ThinkParser(Scanner):
    """Everything up to the closing mark is reasoning, and what follows is text.

    Line ends directly inside and after the marks belong to their syntax and are left out.

    Args:
        begins: "inside" when the prompt has opened the reasoning; "outside" when it starts only where the answer begins
            with the opening mark; "unsure" when the mark may be missing, so that reasoning is assumed.
        marks: The opening and the closing mark.
    """

    def __init__(self, begins: Begins, marks: tuple[str, str] = THINK) -> None:
        self._opening, self._closing = marks
        self._begins = begins
        self.in_reasoning = begins != "outside"
        super().__init__(str)

    def run(self) -> Steps[None]:
        if (yield from self._skip_opening()) or self._begins != "outside":
            self.use()
            self.in_reasoning = True
            yield from self._pass_reasoning()
            self.in_reasoning = False
            yield from self._skip_line_ends()
        self.give_back_unused()

    def _skip_opening(self) -> Steps[bool]:
        """Read over the opening mark if the answer begins with it; else nothing is read."""
        char = yield from self.next_visible()
        for count, expected in enumerate(self._opening, 1):
            if char != expected:
                self.give_back_unused()
                return False
            if count < len(self._opening):
                char = yield from self.next()
        return True

    def _pass_reasoning(self) -> Steps[None]:
        """Pass on reasoning and read over the closing mark."""
        yield from self._skip_line_ends()
        self.give_back_unused()
        held = ""
        line_ends = ""
        while True:
            char = yield from self.next()
            self.use()
            if char == END:
                self.out.reasoning(line_ends + held)
                return
            held += char
            if held == self._closing:
                return
            while held and not self._closing.startswith(held):
                if held[0] == "\n":
                    line_ends += held[0]
                else:
                    self.out.reasoning(line_ends + held[0])
                    line_ends = ""
                held = held[1:]

    def _skip_line_ends(self) -> Steps[None]:
        while (yield from self.next()) == "\n":
            self.use()
