"""The argument parser behind every command: short errors, `-` and `_` alike, and a guess at a mistyped flag."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def integer(text: str) -> int:
    """An integer, or one with a suffix: `4k` is 4000, `4K` is 4096; likewise m/M, g/G, t/T; `1.5G` where exact.

    Raises:
        ValueError: When the text is something else.
    """
    factor = (_DECIMAL | _BINARY).get(text[-1:])
    if factor is None:
        return int(text)
    value = float(text[:-1]) * factor
    if value != int(value):  # also refuses inf and nan, with OverflowError and ValueError of their own
        raise ValueError(f"{text} is not a whole number")
    return int(value)


def normalise(argv: Sequence[str]) -> list[str]:
    """The arguments with `_` in flag names turned into `-`; values and everything after `--` stay as they are."""
    out: list[str] = []
    for i, word in enumerate(argv):
        if word == "--":
            return [*out, *argv[i:]]
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            word = name.replace("_", "-") + equals + value
        out.append(word)
    return out


class HelpFormatter(argparse.HelpFormatter):
    """Two columns, with room for the longer flag names."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=34, width=min(100, _terminal_width()))

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"


def _terminal_width() -> int:
    import shutil

    return shutil.get_terminal_size().columns


class Parser(argparse.ArgumentParser):
    """argparse with exact flag names and one-line errors."""

    def __init__(self, prog: str, description: str) -> None:
        super().__init__(prog=prog, description=description, allow_abbrev=False, formatter_class=HelpFormatter)

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, or print one line and exit with status 2."""
        args, unknown = self.parse_known_args(normalise(argv))
        if unknown:
            self.error(self._unknown(next((word for word in unknown if word.startswith("-")), unknown[0])))
        return args

    def format_help(self) -> str:
        """argparse's help under a usage line that names only the positional arguments."""
        names = [(str(a.metavar or a.dest), a.nargs in ("?", "*")) for a in self._actions if not a.option_strings]
        self.usage = " ".join([self.prog, "[flags]", *(f"[{name}]" if optional else name for name, optional in names)])
        return super().format_help()

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            return f"unexpected argument {word!r}"
        import difflib

        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=0.5)
        return f"no such flag: {name}" + (f"; did you mean {near[0]}?" if near else "")

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: error: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)
