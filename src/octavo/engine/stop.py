"""Stop strings over a stream of text."""

from __future__ import annotations

from collections.abc import Sequence


class _Matcher:
    """How much of one stop string the end of the text spells (Knuth, Morris and Pratt 1977)."""

    __slots__ = ("_fallback", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fallback = [0] * len(pattern)
        """For each prefix, the length of its longest proper border."""
        border = 0
        for i in range(1, len(pattern)):
            while border and pattern[i] != pattern[border]:
                border = self._fallback[border - 1]
            border += pattern[i] == pattern[border]
            self._fallback[i] = border

    def push(self, char: str) -> bool:
        """Whether the string is complete with this character."""
        while self.matched and self.pattern[self.matched] != char:
            self.matched = self._fallback[self.matched - 1]
        self.matched += self.pattern[self.matched] == char
        return self.matched == len(self.pattern)


class StopStrings:
    """Finds the first stop string in text that comes in pieces, and holds back nothing but a possible beginning.

    The first match is the one that is complete first; of several complete at the same character, the longest. So the
    answer does not depend on how the text was cut into pieces.

    Args:
        strings: Non-empty stop strings.
        include: Whether the text keeps the stop string.
    """

    def __init__(self, strings: Sequence[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(string) for string in strings]
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string found. Push nothing more once it is set."""

    def push(self, text: str) -> str:
        """Add a piece; returns the text that is certain by now."""
        if not self._matchers:
            return text
        for i, char in enumerate(text):
            complete = [matcher.pattern for matcher in self._matchers if matcher.push(char)]
            if complete:
                self.matched = max(complete, key=len)
                whole = self._held + text[: i + 1]
                self._held = ""
                return whole if self._include else whole[: -len(self.matched)]
        whole = self._held + text
        certain = len(whole) - max(matcher.matched for matcher in self._matchers)
        self._held = whole[certain:]
        return whole[:certain]

    def finish(self) -> str:
        """The text held back when the answer ends without a match."""
        held, self._held = self._held, ""
        return held
