"""A server whose model answers a chat with the words of its last message: forces any answer through the real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.repeating_tokenizer import write_tokenizer
from support.server_process import ServerProcess

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"


def start_repeating_chat(
    start_server: Callable[..., ServerProcess], folder: Path, *flags: str, knows: str = ""
) -> ServerProcess:
    """`knows` stands in a comment of the template, where parsers are chosen by it."""
    template, tokenizer = folder / "repeating.jinja", folder / "repeating-tokenizer.json"
    template.write_text(f"{TEMPLATE}{{# {knows} #}}")
    write_tokenizer(tokenizer, [" "])
    scripted = ("--executor", "support.repeating:RepeatingExecutor", "--tokenizer", str(tokenizer))
    return start_server(*scripted, "--chat-template", str(template), *flags)
