"""What a model's tokenizer and chat template can do."""

from __future__ import annotations

from typing import Any

from octavo.engine.chat_template import ChatTemplate
from octavo.engine.parsers.choose import knows_tools, reasoning_parser_of, tool_parser_of
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ModelError
from octavo.weights.checkpoint import Checkpoint

Facts = dict[str, Any]
Templates = tuple[str | None, str | None, dict[str, str | None]]

_THINKING = ("enable_thinking", "reasoning_effort", "thinking")
"""Switches of templates that turn reasoning on or off."""


def tokenizer_facts(checkpoint: Checkpoint, eos_token_ids: list[int]) -> tuple[Facts, Templates]:
    """The tokenizer, or why there is none; and the templates: the usual one, the one for tools, what they may read."""
    try:
        files = checkpoint.tokenizer_files()
    except ModelError as error:
        return {"kind": None, "why": str(error)}, (None, None, {})
    templates = files.chat_template, files.tool_template
    try:
        tokenizer = Tokenizer.load(files)
    except ModelError as error:
        return {"kind": None, "why": str(error)}, (*templates, {})
    adds = tokenizer.encode("")
    ends = dict.fromkeys((*eos_token_ids, *(() if tokenizer.eos_id is None else (tokenizer.eos_id,))))
    facts: Facts = {
        "kind": tokenizer.kind,
        "tokens": tokenizer.vocab_size,
        "control_tokens": len(tokenizer.special_ids),
        "bos_token": tokenizer.bos_token,
        "ends_an_answer": [_spelled(tokenizer, token_id) for token_id in ends],
        "put_around_a_text": [_spelled(tokenizer, token_id) for token_id in adds],
    }
    return facts, (*templates, {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token})


def _spelled(tokenizer: Tokenizer, token_id: int) -> str:
    return f"{tokenizer.token_bytes(token_id).decode('utf-8', 'replace')} ({token_id})"


def chat_facts(templates: Templates) -> Facts:
    """What can be asked in a chat."""
    source, tool_source, variables = templates
    if source is None and tool_source is None:
        return {"template": None, "why": "a base model: it completes text, and takes no chats without --chat-template"}
    with_tools = tool_source or source or ""
    found: Facts = {"template": "one for chats, one for tools" if tool_source and source else "one"}
    try:
        template = ChatTemplate(source or with_tools, variables)
        found["characters"] = len(template.source)
        found["takes_system"] = template.takes_system
    except ModelError as error:
        return {"template": None, "why": str(error)}
    parser = tool_parser_of(with_tools)
    found["tools"] = "in the template" if knows_tools(with_tools) else "taught by Octavo in the prompt"
    found["tool_call_parser"] = parser
    found["reasoning_parser"] = reasoning_parser_of(with_tools)
    found["thinking_switch"] = next((name for name in _THINKING if name in with_tools), None)
    return found
