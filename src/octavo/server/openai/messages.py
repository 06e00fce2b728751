"""The messages of a chat: checked, and as plain as chat templates expect them."""

from __future__ import annotations

import json
from typing import Any

from octavo.errors import RequestError
from octavo.server.openai.errors import UnsupportedFieldError

ROLES = ("system", "developer", "user", "assistant", "tool")
"""A template that does not know a role may refuse it."""

MAX_NAME_CHARS = 256
MAX_MESSAGES = 4096
MAX_PARTS = 4096
MAX_CALLS = 1024
"""In one message."""

_TEXT_PARTS = ("text", "input_text", "output_text")


def plain_messages(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Messages with a known role, their content as one string, and the arguments of calls as objects where they
    are JSON.

    Raises:
        RequestError: Naming the message's field.
    """
    if not messages:
        raise RequestError("messages", message="messages: must hold at least one message")
    if len(messages) > MAX_MESSAGES:
        raise RequestError("messages", message=f"messages: {len(messages)} messages; must be at most {MAX_MESSAGES}")
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role == "function":
        raise UnsupportedFieldError(f"{where}.role", f"{where}.role: function messages are not supported; use tool")
    if role not in ROLES:
        raise RequestError(f"{where}.role", role, "one of " + ", ".join(ROLES))
    for name in ("function_call", "audio"):
        if message.get(name):
            raise UnsupportedFieldError(f"{where}.{name}")
    calls = message.get("tool_calls") or None
    if calls is not None and role != "assistant":
        raise RequestError(f"{where}.tool_calls", message=f"{where}.tool_calls: only assistant messages have them")
    content = message.get("content")
    is_silent = role == "assistant" and (content is None or content == [])  # it called tools, or ended at once
    plain: dict[str, Any] = {"role": role, "content": "" if is_silent else _plain_content(content, f"{where}.content")}
    if calls is not None:
        plain["tool_calls"] = _plain_calls(calls, f"{where}.tool_calls")
    for name in ("name", "tool_call_id"):
        if (value := message.get(name)) is not None:
            if not isinstance(value, str) or len(value) > MAX_NAME_CHARS:
                raise RequestError(f"{where}.{name}", value, f"a string of at most {MAX_NAME_CHARS} characters")
            plain[name] = value
    if role == "assistant":
        plain |= _plain_reasoning(message, where)
    return plain


def _plain_reasoning(message: dict[str, Any], where: str) -> dict[str, str]:
    """Earlier reasoning under each name that templates read."""
    for name in ("reasoning_content", "reasoning"):
        if (text := message.get(name)) is not None:
            if not isinstance(text, str):
                raise RequestError(f"{where}.{name}", text, "a string")
            return {"reasoning_content": text, "thinking": text}
    return {}


def _plain_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise RequestError(where, message=f"{where}: must be a list of at most {MAX_CALLS} calls")
    return [_plain_call(call, f"{where}[{j}]") for j, call in enumerate(calls)]


def _plain_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise RequestError(where, call, 'an object with the type "function" and a function')
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise RequestError(f"{where}.function.name", name, f"a string of 1 to {MAX_NAME_CHARS} characters")
    plain = {"type": "function", "function": {"name": name, "arguments": _plain_arguments(arguments, where)}}
    call_id = call.get("id")
    if call_id is not None and (not isinstance(call_id, str) or len(call_id) > MAX_NAME_CHARS):
        raise RequestError(f"{where}.id", call_id, f"a string of at most {MAX_NAME_CHARS} characters")
    return plain if call_id is None else {"id": call_id, **plain}


def _plain_arguments(arguments: Any, where: str) -> dict[str, Any] | str:
    """As an object, which is what templates write as JSON. Clients send them as a text of JSON, and the text stays
    where it is none: a call that `max_tokens` cut comes back like this in the next turn."""
    if arguments is None:
        return {}
    allowed = "a text that is a JSON object"
    value = arguments
    if isinstance(arguments, str):
        try:
            value = json.loads(arguments) if arguments.strip() else {}
        except RecursionError:
            raise RequestError(f"{where}.function.arguments", arguments, allowed) from None
        except ValueError:
            return arguments
    if not isinstance(value, dict):
        raise RequestError(f"{where}.function.arguments", arguments, allowed)
    return value


def _plain_content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(where, content, "a string or a list of parts")
    if len(content) > MAX_PARTS:
        raise RequestError(where, message=f"{where}: {len(content)} parts; must be at most {MAX_PARTS}")
    return "\n".join(_part_text(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RequestError(where, part, "an object with a type")
    kind = part.get("type")
    if kind == "refusal":
        field = "refusal"
    elif kind in _TEXT_PARTS:
        field = "text"
    elif isinstance(kind, str) and kind:
        raise UnsupportedFieldError(f"{where}.type", f"{where}.type: {kind[:40]!r} parts are not supported; only text")
    else:
        raise RequestError(f"{where}.type", kind, "text")
    text = part.get(field)
    if not isinstance(text, str):
        raise RequestError(f"{where}.{field}", text, "a string")
    return text
