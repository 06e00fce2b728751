"""The argument parser behind every command: short errors, `-` and `_` alike, and a guess at a mistyped flag."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

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


def join_dotted(argv: Sequence[str]) -> list[str]:
    """The arguments with `--name.key VALUE` gathered into one `--name JSON`, as vLLM takes what is a JSON object.

    `--name.a.b 1` nests; `--name.key+ VALUE` appends to a list. A value that is no JSON is a text.
    """
    out: list[str] = []
    objects: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        if word == "--":
            out += [word, *words]
            break
        flag, equals, value = word.partition("=")
        if not word.startswith("--") or "." not in flag:
            out.append(word)
            continue
        name, *path = flag.split(".")
        _put(objects.setdefault(name, {}), path, value if equals else next(words, ""))
    return [f"{name}={json.dumps(value)}" for name, value in objects.items()] + out


def _put(into: dict[str, Any], path: list[str], text: str) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    for key in path[:-1]:
        inner = into.setdefault(key.replace("-", "_"), {})
        into = inner if isinstance(inner, dict) else {}
    last = path[-1].replace("-", "_")
    if last.endswith("+"):
        there = into.setdefault(last[:-1], [])
        if isinstance(there, list):
            there.append(value)
    else:
        into[last] = value


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
        self.on_parsed: list[Callable[[argparse.Namespace], None]] = []
        """Called with what was parsed, before `parse` returns."""
        self._where = ""

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """Parse, or print one line and exit with status 2. `--help=WORD` shows what has to do with a word."""
        words = join_dotted(normalise(argv))
        for word in words[: words.index("--")] if "--" in words else words:
            if word.startswith("--help="):
                self._print_part_of_help(word.partition("=")[2])
        args = self._parse(words)
        for function in self.on_parsed:
            function(args)
        return args

    def sub_parse(self, words: Sequence[str], *, where: str) -> argparse.Namespace:
        """Parse words that stand somewhere else, which errors name. Positional arguments are not among them."""
        self._where = f"{where}: "
        try:
            return self._parse(words)
        finally:
            self._where = ""

    def _parse(self, words: Sequence[str]) -> argparse.Namespace:
        args, unknown = self.parse_known_args(words)
        if unknown:
            self.error(self._unknown(next((word for word in unknown if word.startswith("-")), unknown[0])))
        return args

    def _print_part_of_help(self, word: str) -> NoReturn:
        """The groups whose heading holds the word, else the flags whose name or help does; exit with status 0."""
        wanted = word.lower().replace("_", "-").removeprefix("--")
        groups = [group for group in self._action_groups if any(map(_is_shown, group._group_actions))]
        formatter = self._get_formatter()
        found = [(g, g._group_actions) for g in groups if wanted == "all" or wanted in (g.title or "").lower()]
        if not found:
            found = [(g, [a for a in g._group_actions if _speaks_of(a, wanted)]) for g in groups]
        if not any(actions for _, actions in found):
            headings = "; ".join(group.title or "" for group in groups)
            self.error(f"no group or flag has to do with {word[:40]!r}; groups are: {headings}")
        for group, actions in found:
            if actions:
                formatter.start_section(group.title)
                formatter.add_arguments(actions)
                formatter.end_section()
        print(formatter.format_help(), end="")
        raise SystemExit(0)

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
        print(f"{self.prog}: error: {self._where}{message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(2)


def _is_shown(action: argparse.Action) -> bool:
    return action.help is not argparse.SUPPRESS


def _speaks_of(action: argparse.Action, word: str) -> bool:
    return _is_shown(action) and any(word in text.lower() for text in (*action.option_strings, action.help or ""))
