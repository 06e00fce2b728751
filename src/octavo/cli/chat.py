"""`octavo chat`: a conversation in the terminal, or through a pipe (one line is one turn)."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, is_set, set_flag
from octavo.cli.sampling_flags import add_sampling_flags, sampling_fields

if TYPE_CHECKING:
    from octavo.cli.answers import Message, Source


DEFAULTS = {"max_tokens": 1024, "temperature": 0.2, "top_p": 0.9}

_HELP = "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    parser.add_argument("--url", metavar="URL", help="talk to a running server instead; MODEL is then its name there")
    parser.add_argument("--api-key", metavar="KEY", help="for --url (also OCTAVO_API_KEY)")
    parser.add_argument("--system", metavar="TEXT", help="system message in front of the conversation")
    add_sampling_flags(parser, DEFAULTS)
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    sampling = sampling_fields(args, DEFAULTS)
    with asyncio.Runner() as runner:
        source = runner.run(_open(args))
        try:
            return Conversation(source, sampling, args.system, runner).run(_turns(source.name))
        finally:
            runner.run(source.close())


async def _open(args: argparse.Namespace) -> Source:
    from octavo.cli import answers

    if args.url:
        key = args.api_key or os.environ.get("OCTAVO_API_KEY", "").split(",")[0] or None
        return await answers.remote(args.url, key, args.model)
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "thread")  # one process, so that Ctrl-C reaches only the answer
    config = engine_config(args, model=args.model)
    print(f"octavo: loading {config.model.model} ...", file=sys.stderr, flush=True)
    return await answers.local(config)


class Conversation:
    """The messages so far, and the loop over turns."""

    def __init__(self, source: Source, sampling: dict[str, Any], system: str | None, runner: asyncio.Runner) -> None:
        self.source, self.sampling, self.runner = source, sampling, runner
        self._opening: list[Message] = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._opening)

    def run(self, turns: Iterator[str]) -> int:
        """Answer turn after turn. 1 when the last turn of a pipe failed."""
        failed = False
        for text in turns:
            word = text.strip()
            if word in ("/exit", "/quit"):
                break
            if word == "/reset":
                self.messages = list(self._opening)
                print("(forgotten)")
            elif word in ("/help", "/?"):
                print(_HELP)
            elif word:
                failed = not self._turn(text)
        return 1 if failed and not sys.stdin.isatty() else 0

    def _turn(self, text: str) -> bool:
        from octavo.errors import OctavoError

        self.messages.append({"role": "user", "content": text})
        pieces: list[str] = []
        try:
            self.runner.run(self._print_answer(pieces))
        except KeyboardInterrupt:
            print(" (stopped)", end="")
        except (OctavoError, OSError) as error:
            self.messages.pop()
            print(f"error: {error}; the message is left out", file=sys.stderr)
            return False
        print(flush=True)
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        return True

    async def _print_answer(self, pieces: list[str]) -> None:
        async with contextlib.aclosing(self.source.chat(self.messages, self.sampling)) as answer:
            async for piece in answer:
                pieces.append(piece)
                print(piece, end="", flush=True)


def _turns(name: str) -> Iterator[str]:
    """What the user says: lines with a prompt in front in a terminal, the lines of a pipe otherwise."""
    if not sys.stdin.isatty():
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    from rich.console import Console

    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  # arrow keys and earlier turns in input()
    console = Console(highlight=False)
    console.print(f"[bold]{name}[/bold]  [dim]{_HELP}[/dim]")
    while True:
        try:
            yield console.input("[bold cyan]> [/bold cyan]")
        except KeyboardInterrupt:
            print("\n(/exit leaves)")
        except EOFError:
            print()
            return
