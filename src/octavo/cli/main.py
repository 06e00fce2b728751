"""The `octavo` command. A command's module is imported only when that command runs."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from types import ModuleType

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.serve", "serve a model over an OpenAI-compatible HTTP API"),
    "chat": ("octavo.cli.chat", "talk to a model in the terminal"),
    "generate": ("octavo.cli.generate", "complete a prompt, or a file of prompts"),
    "run-batch": ("octavo.cli.run_batch", "answer the requests in the lines of a file"),
    "kv": ("octavo.cli.kv", "watch where the KV memory of a running server is"),
    "figures": ("octavo.cli.figures", "make the paper's figures here, beside its numbers"),
    "bench": ("octavo.cli.bench", "measure: serve, offline, latency, step, kernels, fit, quality"),
    "simulate": ("octavo.cli.simulate", "serve a workload on a simulated system: the paper's, on its machines"),
    "plan": ("octavo.cli.plan", "say whether a model fits, what it sustains, with which settings and at what cost"),
    "inspect": ("octavo.cli.inspect", "say what a checkpoint holds, what is unusual in it and the memory it needs"),
    "doctor": ("octavo.cli.doctor", "say what this machine offers and what Octavo would use"),
    "pull": ("octavo.cli.pull", "fetch a model into the cache"),
    "list": ("octavo.cli.list_models", "models that can be fetched and models that are here"),
    "rm": ("octavo.cli.remove", "remove a model from the cache"),
}
"""Name -> (module, one line of help). A module has `add_arguments(parser)` and `run(args) -> exit status`."""

_HELP = ("-h", "--help", "help")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0; 1 for a failure; 2 for usage, configuration or model errors."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["--version"], ["-V"]):
        from octavo import __version__

        print(f"octavo {__version__}")
        return 0
    return dispatch("octavo", "LLM serving on paged KV memory.", COMMANDS, words)


def dispatch(prog: str, about: str, commands: dict[str, tuple[str, str]], words: list[str]) -> int:
    """Run the command that the first word names."""
    if not words or words[0] in _HELP:
        print(overview(prog, about, commands))
        return 0 if words else 2
    name, rest = words[0], words[1:]
    if name not in commands:
        import difflib

        near = difflib.get_close_matches(name, commands, n=1)
        guess = f"; did you mean {near[0]}?" if near else ""
        print(f"{prog}: error: no such command: {name}{guess} (see {prog} --help)", file=sys.stderr)
        return 2
    module = importlib.import_module(commands[name][0])
    if hasattr(module, "COMMANDS"):
        return dispatch(f"{prog} {name}", commands[name][1], module.COMMANDS, rest)
    return _run(f"{prog} {name}", commands[name][1], module, rest)


def overview(prog: str, about: str, commands: dict[str, tuple[str, str]]) -> str:
    """The text of `--help` where a command is still to be chosen."""
    width = max(len(name) for name in commands) + 2
    lines = [f"usage: {prog} COMMAND ...", "", about[:1].upper() + about[1:], "", "commands:"]
    lines += [f"  {name:<{width}}{text}" for name, (_, text) in commands.items()]
    lines += ["", f"`{prog} COMMAND --help` lists a command's flags."]
    if prog == "octavo":
        lines += ["`octavo --version` prints the version. `--debug` after a command shows tracebacks of errors."]
    return "\n".join(lines)


def _run(prog: str, about: str, module: ModuleType, words: list[str]) -> int:
    from octavo.cli.parser import Parser

    parser = Parser(prog, about[:1].upper() + about[1:] + ".")
    module.add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    try:
        args = parser.parse(words)
    except Exception as error:  # of what the words refer to, a config file say
        return _report(prog, error)
    try:
        status = int(module.run(args))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except Exception as error:
        if args.debug:
            raise
        return _report(prog, error)


def _report(prog: str, error: Exception) -> int:
    """Say in one line what went wrong; the exit status tells the user's mistakes (2) from failures (1)."""
    from octavo.errors import ConfigError, ModelError, OctavoError, RequestError

    if isinstance(error, OctavoError | OSError):
        print(f"{prog}: error: {error}", file=sys.stderr)
    else:
        print(f"{prog}: internal error: {type(error).__name__}: {error} (--debug shows where)", file=sys.stderr)
    return 2 if isinstance(error, ConfigError | ModelError | RequestError) else 1


def _forget_stdout() -> None:
    """The reader of our output has gone; keep the interpreter from complaining about it at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
