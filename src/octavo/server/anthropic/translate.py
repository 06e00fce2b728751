"""From a request of /v1/messages to the same request of a chat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from octavo.errors import RequestError
from octavo.server.anthropic.protocol import (
    ContentBlock,
    CountRequest,
    Message,
    MessagesRequest,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    Tool,
    ToolResultBlock,
    ToolUseBlock,
)
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.translated import by_patterns

field_name = by_patterns(
    {
        r"max_completion_tokens": "max_tokens",
        r"stop(\[.*)?": r"stop_sequences\1",
        r"response_format(.*)": "output_config.format",
        r"reasoning_effort": "output_config.effort",
        r"chat_template_kwargs\.thinking_budget": "thinking.budget_tokens",
        r"tools(\[\d+\])\.function\.parameters(.*)": r"tools\1.input_schema\2",
        r"tools(\[\d+\])\.function\.(.*)": r"tools\1.\2",
        r"tool_choice\.function\.name": "tool_choice.name",
        r"messages(\[.*)": "messages",
    }
)
"""What the fields of a chat are called here. Messages are told of as one: a chat has others of them."""

_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_body(request: CountRequest) -> dict[str, Any]:
    """The body of the chat that asks for the same.

    Raises:
        RequestError: Naming what has no counterpart.
    """
    for name in ("container", "mcp_servers"):
        if getattr(request, name):
            raise UnsupportedFieldError(name)
    body: dict[str, Any] = {"model": request.model, "messages": _messages(request)}
    if request.messages and request.messages[-1].role == "assistant":
        body["continue_final_message"] = True
    if request.tools:
        body["tools"] = [_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    body |= _choice(request)
    thinks = request.thinking is not None and request.thinking.type != "disabled"
    body["chat_template_kwargs"] = {"enable_thinking": thinks}
    if thinks and request.thinking is not None and request.thinking.budget_tokens is not None:
        body["chat_template_kwargs"]["thinking_budget"] = request.thinking.budget_tokens
    body["chat_template_kwargs"] |= request.chat_template_kwargs or {}
    body |= _output(request)
    if isinstance(request, MessagesRequest):
        body |= _sampling(request)
    return body


def _sampling(request: MessagesRequest) -> dict[str, Any]:
    given = {
        "max_completion_tokens": request.max_tokens,
        "stop": request.stop_sequences,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stream": request.stream,
        "cache_salt": request.cache_salt,
        "user": None if request.metadata is None else request.metadata.user_id,
    }
    return {name: value for name, value in given.items() if value is not None}


def _output(request: CountRequest) -> dict[str, Any]:
    config = request.output_config
    if config is None:
        return {}
    body: dict[str, Any] = {}
    if config.effort is not None:
        body["reasoning_effort"] = config.effort
    if config.format is not None:
        schema = {"name": "output", "schema": config.format.schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body


def _choice(request: CountRequest) -> dict[str, Any]:
    choice = request.tool_choice
    if choice is None:
        return {}
    body: dict[str, Any] = {}
    if choice.type == "tool":
        if choice.name is None:
            raise RequestError("tool_choice.name", message="tool_choice.name: must be given with the type tool")
        body["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif request.tools or choice.type == "any":
        body["tool_choice"] = _TOOL_CHOICES[choice.type]
    if choice.disable_parallel_tool_use:
        body["parallel_tool_calls"] = False
    return body


def _tool(tool: Tool, where: str) -> dict[str, Any]:
    if tool.type not in (None, "custom"):
        message = f"{where}.type: {tool.type[:40]!r} tools are not supported; only custom ones"
        raise UnsupportedFieldError(f"{where}.type", message)
    if tool.input_schema is None:
        raise RequestError(f"{where}.input_schema", message=f"{where}.input_schema: must be given")
    function: dict[str, Any] = {"name": tool.name, "parameters": tool.input_schema}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _messages(request: CountRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    system = request.system
    if system:
        text = system if isinstance(system, str) else "\n".join(block.text for block in system)
        messages.append({"role": "system", "content": text})
    for role, blocks in _turns(request.messages):
        if role == "assistant":
            messages.append(_assistant(blocks))
        elif role == "system":
            messages.append({"role": "system", "content": _text_of([block for _, block in blocks])})
        else:
            messages += _user(blocks)
    if messages and messages[-1].get("tool_calls"):
        raise RequestError("messages", message="messages: the last one calls tools; their results must follow")
    return messages


Placed = list[tuple[str, ContentBlock]]
"""Blocks, each with the field that it is."""


def _turns(messages: list[Message]) -> Iterator[tuple[str, Placed]]:
    """Messages with neighbours of one role joined, as the API has it; many templates take nothing else."""
    role, blocks = "", Placed()
    for i, message in enumerate(messages):
        if message.role != role:
            if role:
                yield role, blocks
            role, blocks = message.role, []
        where = f"messages[{i}].content"
        content = message.content
        if isinstance(content, str):
            blocks.append((where, TextBlock(text=content)))
        else:
            blocks += [(f"{where}[{j}]", block) for j, block in enumerate(content)]
    if role:
        yield role, blocks


def _user(blocks: Placed) -> list[dict[str, Any]]:
    """Results of tools, and what the user says, in their order."""
    messages: list[dict[str, Any]] = []
    texts: list[str] = []

    def flush() -> None:
        if texts:
            messages.append({"role": "user", "content": "\n".join(texts)})
            texts.clear()

    for where, block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ToolResultBlock():
                flush()
                messages.append({"role": "tool", "tool_call_id": block.tool_use_id, "content": _result(block, where)})
            case _:
                raise _not_here(block, where, "user")
    flush()
    return messages or [{"role": "user", "content": ""}]


def _result(block: ToolResultBlock, where: str) -> str:
    if block.content is None or isinstance(block.content, str):
        text = block.content or ""
    else:
        for j, part in enumerate(block.content):
            if not isinstance(part, TextBlock):
                raise _not_here(part, f"{where}.content[{j}]", "user")
        text = _text_of(block.content)
    return f"Error: {text}" if block.is_error else text


def _assistant(blocks: Placed) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ThinkingBlock():
                thoughts.append(block.thinking)
            case ToolUseBlock():
                function = {"name": block.name, "arguments": block.input}
                calls.append({"id": block.id, "type": "function", "function": function})
            case RedactedThinkingBlock():
                pass  # nobody here can read it
            case _:
                raise _not_here(block, where, "assistant")
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _text_of(blocks: Any) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))


def _not_here(block: Any, where: str, role: str) -> RequestError:
    kind = str(block.__struct_config__.tag)
    if kind in ("image", "document", "search_result"):
        return UnsupportedFieldError(f"{where}.type", f"{where}.type: {kind} blocks are not supported; only text")
    return RequestError(f"{where}.type", kind, f"a block that {role} messages may have")
