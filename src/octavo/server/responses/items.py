"""Items of a conversation as the messages of a chat."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from octavo.errors import RequestError
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.protocol import convert
from octavo.server.responses.protocol import CallItem, CallOutputItem, MessageItem, ThoughtItem

MAX_ITEMS = 4096

S = TypeVar("S", bound=msgspec.Struct)


def as_items(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A request's input as items.

    Raises:
        RequestError: If there are none, or too many.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not given:
        raise RequestError("input", message="input: must be a text or hold at least one item")
    if len(given) > MAX_ITEMS:
        raise RequestError("input", message=f"input: {len(given)} items; must be at most {MAX_ITEMS}")
    return given


_ID_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}


def told_items(items: list[dict[str, Any]], response_id: str) -> list[dict[str, Any]]:
    """Items as they are told to clients: each with a type, an id, and texts as parts. Those of one response always have
    the same ids."""
    return [_told(item, f"{response_id.removeprefix('resp_')}_{i}") for i, item in enumerate(items)]


def _told(item: dict[str, Any], number: str) -> dict[str, Any]:
    kind = item.get("type") or "message"
    told = {"type": kind, "id": f"{_ID_PREFIXES.get(kind, 'item')}_{number}", "status": "completed", **item}
    if kind == "message" and isinstance(item.get("content"), str):
        part = {"type": "output_text", "annotations": []} if item["role"] == "assistant" else {"type": "input_text"}
        told["content"] = [{**part, "text": item["content"]}]
    return told


class Conversation:
    """Messages, made item by item. What the assistant thinks, says and calls in a row is one message.

    Attributes:
        messages: In the form of a chat.
        places: The item that each message begins with, as clients know it.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.places: list[str] = []

    def add(self, item: dict[str, Any], where: str) -> None:
        """The next item.

        Raises:
            RequestError: Naming its field.
        """
        kind = item.get("type") or "message"
        match kind:
            case "message":
                self._say(_read(item, MessageItem, where), where)
            case "function_call":
                call = _read(item, CallItem, where)
                function = {"name": call.name, "arguments": call.arguments}
                message = self._assistant(where)
                message.setdefault("tool_calls", []).append(
                    {"id": call.call_id, "type": "function", "function": function}
                )
            case "function_call_output":
                output = _read(item, CallOutputItem, where)
                self.put({"role": "tool", "tool_call_id": output.call_id, "content": output.output or ""}, where)
            case "reasoning":
                thought = _read(item, ThoughtItem, where)
                parts = thought.content or thought.summary or []
                message = self._assistant(where)
                text = "\n".join(part.text for part in parts)
                message["reasoning_content"] = message.get("reasoning_content", "") + text
            case str():
                raise UnsupportedFieldError(f"{where}.type", f"{where}.type: {kind[:40]!r} items are not supported")
            case _:
                raise RequestError(f"{where}.type", kind, "a string")

    def put(self, message: dict[str, Any], where: str) -> None:
        """A message of its own."""
        self.messages.append(message)
        self.places.append(where)

    def _say(self, item: MessageItem, where: str) -> None:
        if item.role != "assistant":
            self.put({"role": item.role, "content": item.content}, where)
            return
        message = self._assistant(where)
        if message["content"]:  # it has spoken already: two messages in a row
            message = {"role": "assistant", "content": ""}
            self.put(message, where)
        message["content"] = item.content

    def _assistant(self, where: str) -> dict[str, Any]:
        """The assistant's message that is being made."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.put({"role": "assistant", "content": ""}, where)
        return self.messages[-1]


def _read(item: dict[str, Any], kind: type[S], where: str) -> S:
    try:
        return convert(item, kind)
    except RequestError as error:
        param = where if error.param is None else f"{where}.{error.param}"
        message = str(error)
        said = f"{where}.{message}" if error.param is not None else f"{where}: {message}"
        raise RequestError(param, message=said) from None
