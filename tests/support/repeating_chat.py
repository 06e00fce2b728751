"""A server whose model answers a chat with the words of its last message: forces any answer through the real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.repeating_tokenizer import write_tokenizer
from support.server_process import ServerProcess

TEMPLATE = "{{ bos_token }}{{ messages[-1].content }}"


def start_repeating_chat(
    start_server: Callable[..., ServerProcess], folder: Path, *flags: str, knows: str = "", control: str = ""
) -> ServerProcess:
    """`knows` stands in a comment of the template, where parsers are chosen by it. `control` is one more control token,
    which the model says for each `CONTROL` in the message."""
    template, tokenizer = folder / "repeating.jinja", folder / "repeating-tokenizer.json"
    said = TEMPLATE.replace(".content", f".content | replace('CONTROL', '{control}')") if control else TEMPLATE
    template.write_text(f"{said}{{# {knows} #}}")
    write_tokenizer(tokenizer, [" "], [control] if control else [])
    scripted = ("--executor", "support.repeating:RepeatingExecutor", "--tokenizer", str(tokenizer))
    return start_server(*scripted, "--chat-template", str(template), *flags)
