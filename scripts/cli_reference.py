"""Print docs/cli.md, made from the commands' own parsers: `make docs`."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Iterator

from octavo.cli import main as cli
from octavo.cli.flags import ENGINE_GROUPS, flags_of
from octavo.cli.parser import Parser
from octavo.cli.vllm_flags import OLD_FLAGS, OldFlag
from octavo.config import HTTPConfig

HEAD = """\
# The command line

Made from the flags themselves by `make docs`; a test fails when it is out of date.

* `-` and `_` in flag names are the same. Flags are never abbreviated.
* Integers may carry a suffix: `4k` is 4000, `4K` is 4096; likewise `m`/`M`, `g`/`G`, `t`/`T`.
* A switch `--x` has a twin `--no-x`.
* Flags with a variable take their default from it; the flag wins. Lists in variables are separated by commas.
* `octavo serve --config FILE` reads flags from a YAML file, keyed by their long names. A flag wins over its variable,
  the variable over the file.
* A flag that takes a JSON object can be given in parts: `--speculative-config.method ngram`.
* `--help=WORD` shows the group of flags, or the flags, that have to do with a word; `--help=all` shows every one.
* Exit status: 0; 1 when something failed; 2 when the command, a setting or the model is not right; 130 after Ctrl-C.
* `--debug` after a command shows the traceback of an error.

`OCTAVO_HOME` is the folder of the model cache (default: `octavo` in the user's cache folder). `HF_HOME`, `HF_TOKEN` and
`HF_HUB_OFFLINE` mean for hub models what they mean elsewhere.
"""


def commands() -> Iterator[tuple[str, str, str]]:
    """(words, module, one line) of every command."""
    for name, (module, about) in cli.COMMANDS.items():
        nested = getattr(importlib.import_module(module), "COMMANDS", None)
        if nested is None:
            yield name, module, about
        else:
            yield from ((f"{name} {inner}", where, text) for inner, (where, text) in nested.items())


def section(words: str, module: str, about: str) -> str:
    parser = Parser(f"octavo {words}", about)
    importlib.import_module(module).add_arguments(parser)
    positionals = [a for a in parser._actions if not a.option_strings]
    ends = {"?": "]", "*": " ...]"}
    usage = " ".join(f"[{a.metavar}{ends[a.nargs]}" if a.nargs in ends else str(a.metavar) for a in positionals)
    lines = [
        f"## octavo {words}",
        "",
        about[:1].upper() + about[1:] + ".",
        "",
        f"    octavo {words} [flags] {usage}".rstrip(),
    ]
    lines += ["", *(f"* `{a.metavar}`: {a.help}" for a in positionals), ""]
    for group in parser._action_groups:
        shown = [a for a in group._group_actions if a.help != argparse.SUPPRESS]
        actions = [a for a in shown if a.option_strings and a.dest != "help"]
        if actions:
            lines += [*table(group.title or "Flags", actions), ""]
    return "\n".join(lines)


def old_flags() -> str:
    lines = [
        "### Flags of vLLM's",
        "",
        "`octavo serve` takes these too, so that scripts go on working, and says in one line what becomes of each. A",
        "value that would change answers or capacity is refused by name.",
        "",
        "| flag | accepted | |",
        "|---|---|---|",
    ]
    lines += [
        f"| `--{flag.name}`{f', `{flag.short}`' if flag.short else ''} | {accepted(flag)} | {flag.why} |"
        for flag in OLD_FLAGS
    ]
    return "\n".join([*lines, ""])


def accepted(flag: OldFlag) -> str:
    if flag.only is None:
        return "any value" if not flag.is_switch else "yes"
    if flag.is_switch:
        return "yes" if flag.only == ("true",) else f"only `--no-{flag.name}`"
    return ", ".join(f"`{value}`" for value in flag.only) or "no"


def table(title: str, actions: list[argparse.Action]) -> list[str]:
    variables = {flag.dest: flag.variable for group in (*ENGINE_GROUPS, HTTPConfig) for flag in flags_of(group)}
    with_variables = any(a.dest in variables for a in actions)
    title = "Flags" if title == "options" else title
    lines = [f"| {title} | | variable |" if with_variables else f"| {title} | |"]
    lines.append("|---|---|---|" if with_variables else "|---|---|")
    for action in actions:
        text = (action.help or "").replace("%%", "%").replace("|", "\\|")
        row = f"| {names(action)} | {text} |"
        variable = variables.get(action.dest)
        lines.append(row + (f" {f'`{variable}`' if variable else ''} |" if with_variables else ""))
    return lines


def names(action: argparse.Action) -> str:
    shown = [name for name in action.option_strings if not name.startswith("--no-")]
    value = "" if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction) else f" {value_of(action)}"
    return ", ".join(f"`{name}{value}`" for name in shown)


def value_of(action: argparse.Action) -> str:
    if action.metavar is not None:
        return str(action.metavar)
    return "{" + ",".join(action.choices) + "}" if action.choices else action.dest.upper()


def main() -> None:
    parts = [HEAD]
    for words, module, about in commands():
        parts.append(section(words, module, about))
        if words == "serve":
            parts.append(old_flags())
    print("\n".join(parts).rstrip())


if __name__ == "__main__":
    main()
