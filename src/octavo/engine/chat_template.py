"""Chat templates: from messages to the text of a prompt."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError

from octavo.engine.chat_budget import Budget, OutOfPatienceError, budget, check_length
from octavo.engine.chat_sandbox import ChatEnvironment, TemplateRaisedError
from octavo.engine.parsers.choose import knows_tools
from octavo.engine.tool_prompt import teach_tools
from octavo.errors import ModelFileError, RequestError

MAX_TEMPLATE_CHARS = 1 << 18
"""Those in use take up to some 50,000."""

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
        self.source = source
        self.knows_tools = knows_tools(source)
        self._knows_developers = "developer" in source
        token = budget.set(Budget())
        try:
            self._template = ChatEnvironment().from_string(source)
        except (jinja2.TemplateError, SyntaxError, RecursionError, MemoryError, ValueError) as error:
            raise ModelFileError(file, "chat template", _describe(error)) from None
        finally:
            budget.reset(token)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        guard: Callable[[str], str] = str,
        **kwargs: Any,
    ) -> str:
        """The prompt's text.

        A template that does not know tools gets messages that explain them, and calls and results as text; one that
        does not know developers gets their messages as the system's.

        Args:
            messages: Dicts with a `role` and mostly a `content`: a string, or parts of type "text".
            add_generation_prompt: Whether to end with the start of the assistant's turn.
            continue_final_message: Whether to end inside the last message, where its content ends.
            tools: Functions, in the form of the OpenAI API.
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
        plain = self._fit(normalise_messages(messages), tools)
        end_sign = _sign_end(plain) if continue_final_message else None
        variables = {
            **self._variables,
            **_guarded(kwargs, guard),
            "messages": _guarded(plain, guard),
            "tools": _guarded(list(tools), guard) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            text = self._render(variables)
        except OutOfPatienceError:
            raise
        except TemplateRaisedError as error:
            raise RequestError("messages", message=f"the model's chat template refuses this: {error}"[:500]) from None
        except Exception as error:  # whatever a stranger's template does with these messages
            raise RequestError("messages", message=f"the chat template failed: {_describe(error)}") from None
        return text if end_sign is None else _cut_at(text, end_sign)

    def _fit(self, messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
        """The messages in roles that the template knows."""
        if not self._knows_developers:
            messages = [{**m, "role": "system"} if m["role"] == "developer" else m for m in messages]
        if not self.knows_tools and (tools or any(m.get("tool_calls") for m in messages)):
            messages = teach_tools(messages, tools, with_system=self.takes_system)
        return messages

    @cached_property
    def takes_system(self) -> bool:
        """Whether the template takes a system message."""
        messages = [{"role": "system", "content": "a"}, {"role": "user", "content": "b"}]
        try:
            self._render({**self._variables, "messages": messages, "tools": None, "add_generation_prompt": True})
        except OutOfPatienceError:
            raise
        except Exception:  # whatever it does with them
            return False
        return True

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


def _sign_end(messages: list[dict[str, Any]]) -> str:
    """Put a sign that no user can know behind the last message's content; the sign."""
    last = messages[-1]
    content = last.get("content")
    if last["role"] != "assistant" or not isinstance(content, str):
        raise RequestError(
            "continue_final_message", message="continue_final_message: the last message must be an assistant's text"
        )
    sign = f"\ue0f4{secrets.token_hex(8)}\ue0f5"
    messages[-1] = {**last, "content": content + sign}
    return sign


def _cut_at(text: str, sign: str) -> str:
    end = text.rfind(sign)
    if end < 0:
        why = "continue_final_message: the model's chat template leaves the last message out"
        raise RequestError("continue_final_message", message=why)
    return text[:end]


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
