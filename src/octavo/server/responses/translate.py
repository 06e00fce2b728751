"""From a request of /v1/responses to the same request of a chat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from octavo.errors import RequestError
from octavo.server.metadata import check_metadata
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.responses.items import Conversation
from octavo.server.responses.protocol import ResponsesRequest, Tool
from octavo.server.translated import by_patterns

LOGPROBS = "message.output_text.logprobs"
INCLUDABLE = (LOGPROBS, "reasoning.encrypted_content")
"""Reasoning comes as it is, so that nothing needs to be encrypted; clients that keep it themselves ask for that."""

_SAME = (
    "model",
    "stream",
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "user",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "service_tier",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "structured_outputs",
    "logit_bias",
    "priority",
    "cache_salt",
    "chat_template_kwargs",
)
"""Fields that a chat has too."""

_REFUSED = ("conversation", "prompt", "max_tool_calls", "context_management")

_NAMES = by_patterns(
    {
        r"max_completion_tokens": "max_output_tokens",
        r"response_format\.json_schema(.*)": r"text.format\1",
        r"response_format(.*)": r"text.format\1",
        r"verbosity": "text.verbosity",
        r"reasoning_effort": "reasoning.effort",
        r"tools(\[\d+\])\.function\.(.*)": r"tools\1.\2",
        r"tool_choice\.function\.name": "tool_choice.name",
    }
)


def check_request(request: ResponsesRequest) -> None:
    """What only this API has.

    Raises:
        RequestError: Naming what cannot be.
    """
    for name in _REFUSED:
        if getattr(request, name) is not None:
            raise UnsupportedFieldError(name)
    if request.background:
        raise UnsupportedFieldError("background")
    if request.truncation not in (None, "disabled"):
        raise UnsupportedFieldError("truncation", "truncation: only disabled is supported")
    for i, name in enumerate(request.include or ()):
        if name not in INCLUDABLE:
            raise RequestError(f"include[{i}]", name, " or ".join(INCLUDABLE))
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options", message="stream_options is allowed only when stream is true")
    form = None if request.text is None else request.text.format
    if request.structured_outputs is not None and form is not None and form.type != "text":
        raise RequestError("structured_outputs", message="structured_outputs: must be left out with text.format")
    check_metadata(request.metadata)


def chat_body(request: ResponsesRequest, conversation: Conversation) -> dict[str, Any]:
    """The body of the chat that asks for the same.

    Raises:
        RequestError: Naming what has no counterpart.
    """
    body = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    body["messages"] = conversation.messages
    if request.max_output_tokens is not None:
        body["max_completion_tokens"] = request.max_output_tokens
    if request.top_logprobs is not None or LOGPROBS in (request.include or ()):
        body |= {"logprobs": True, "top_logprobs": request.top_logprobs or 0}
    if request.tools:
        body["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    if request.tool_choice is not None:
        body["tool_choice"] = _choice(request.tool_choice)
    if request.reasoning is not None and request.reasoning.effort is not None:
        body["reasoning_effort"] = request.reasoning.effort
        if request.reasoning.effort == "none":
            body["chat_template_kwargs"] = {"enable_thinking": False, **(request.chat_template_kwargs or {})}
    return body | _text(request)


def namer(conversation: Conversation) -> Callable[[str], str]:
    """What the fields of the chat are called here."""

    def name_of(field: str) -> str:
        match = re.fullmatch(r"messages(?:\[(\d+)\](.*))?", field)
        if match is None:
            return _NAMES(field)
        return "input" if match[1] is None else conversation.places[int(match[1])] + match[2]

    return name_of


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type != "function":
        message = f"{where}.type: {tool.type[:40]!r} tools are not supported; only functions"
        raise UnsupportedFieldError(f"{where}.type", message)
    given = {"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "function": {name: value for name, value in given.items() if value is not None}}


def _choice(choice: str | dict[str, Any]) -> Any:
    if isinstance(choice, str):
        return choice
    kind = choice.get("type")
    if kind == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    raise UnsupportedFieldError("tool_choice.type", f"tool_choice.type: {str(kind)[:40]!r} is not supported")


def _text(request: ResponsesRequest) -> dict[str, Any]:
    text = request.text
    if text is None:
        return {}
    body: dict[str, Any] = {} if text.verbosity is None else {"verbosity": text.verbosity}
    form = text.format
    if form is None or form.type == "text":
        return body
    asked: dict[str, Any] = {"type": form.type}
    if form.type == "json_schema":
        given = {"name": form.name, "description": form.description, "schema": form.schema, "strict": form.strict}
        asked["json_schema"] = {name: value for name, value in given.items() if value is not None}
    return {**body, "response_format": asked}
