"""Chat templates: from messages to the text of a prompt."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from octavo.engine.chat_sandbox import Budget, ChatEnvironment, TemplateRaisedError, budget, check_length
from octavo.errors import ModelFileError, RequestError

MAX_TEMPLATE_CHARS = 1 << 20

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token", "self", "loop"})


class ChatTemplate:
    """A compiled template.

    Args:
        source: Jinja text, written for Hugging Face's `apply_chat_template`.
        variables: What the template may read besides the messages: `bos_token`, `eos_token`.
        file: Where it came from, for messages.

    Raises:
        ModelFileError: If it is too long, nested too deep, not valid, or reads Python's internals.
    """

    def __init__(self, source: str, variables: Mapping[str, str | None], *, file: str = "chat template") -> None:
        if len(source) > MAX_TEMPLATE_CHARS:
            raise ModelFileError(file, "chat template", f"is longer than {MAX_TEMPLATE_CHARS} characters")
        self._variables = {name: value or "" for name, value in variables.items()}
        try:
            self._template = ChatEnvironment().from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise ModelFileError(file, "chat template", _describe(error)) from None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        guard: Callable[[str], str] = str,
        **kwargs: Any,
    ) -> str:
        """The prompt's text.

        Args:
            messages: Dicts with a `role` and mostly a `content`: a string, or parts of type "text".
            add_generation_prompt: Whether to end with the start of the assistant's turn.
            tools: JSON schemas of functions, for templates that know tools.
            guard: Applied to every string that a user wrote.
            kwargs: More variables for the template, such as `enable_thinking`.

        Raises:
            RequestError: If the messages are not as above, or the template refuses them or fails on them.
        """
        for name in kwargs:
            if name in _RESERVED or name.startswith("_"):
                raise RequestError(
                    f"chat_template_kwargs.{name}"[:80], message=f"{name[:40]!r} cannot be set by a request"
                )
        variables = {
            **self._variables,
            **_guarded(kwargs, guard),
            "messages": _guarded(normalise_messages(messages), guard),
            "tools": _guarded(list(tools), guard) if tools is not None else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._render(variables)
        except TemplateRaisedError as error:
            raise RequestError("messages", message=f"the model's chat template refuses this: {error}"[:500]) from None
        except Exception as error:  # whatever a stranger's template does with these messages
            raise RequestError("messages", message=f"the chat template failed: {_describe(error)}") from None

    def _render(self, variables: dict[str, Any]) -> str:
        token = budget.set(Budget())
        try:
            pieces: list[str] = []
            size = 0
            for piece in self._template.generate(variables):
                size += len(piece)
                check_length(size)
                pieces.append(piece)
            return "".join(pieces)
        finally:
            budget.reset(token)


def normalise_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates expect them: text parts joined, one per line.

    Raises:
        RequestError: Naming the message and part at fault.
    """
    if isinstance(messages, str | Mapping) or not messages:
        raise RequestError("messages", messages, "a list of at least one message")
    result = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, Mapping):
            raise RequestError(where, message, "an object with a role and a content")
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where}.role", message.get("role"), "a string")
        content = message.get("content")
        if isinstance(content, list):
            content = _join_parts(content, f"{where}.content")
        elif content is not None and not isinstance(content, str):
            raise RequestError(f"{where}.content", content, "a string or a list of parts")
        result.append({**message, "content": content} if "content" in message else dict(message))
    return result


def _join_parts(parts: list[Any], where: str) -> str:
    texts = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, Mapping) and part.get("type") == "text" and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            raise RequestError(f"{where}[{i}]", part, 'a part of type "text" with a text')
    return "\n".join(texts)


def _guarded(value: Any, guard: Callable[[str], str]) -> Any:
    """`value` with the guard applied to each string in it, keys aside."""
    if isinstance(value, str):
        return guard(value)
    if isinstance(value, Mapping):
        return {key: _guarded(item, guard) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_guarded(item, guard) for item in value]
    return value


def _describe(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deep"
    if isinstance(error, SecurityError):
        return f"it does what templates may not: {error}"[:300]
    return (str(error) or type(error).__name__)[:300]
