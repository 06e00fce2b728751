"""`tools`, `tool_choice` and `parallel_tool_calls` of a chat, checked."""

from __future__ import annotations

import re
from typing import Any

from octavo.errors import RequestError
from octavo.server.context import ServerContext
from octavo.server.openai.protocol import ChatRequest
from octavo.server.tool_use import ToolUse

MAX_TOOLS = 1024
MAX_DESCRIPTION_CHARS = 1 << 16

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_CHOICES = 'none, auto, required, {"type": "function", "function": {"name": ...}}, or allowed_tools'


def tool_use(context: ServerContext, request: ChatRequest) -> ToolUse | None:
    """The tools that a request brings; None where it brings none, or wants none used.

    Raises:
        RequestError: Naming the field.
    """
    if not request.tools:
        if request.tool_choice not in (None, "none", "auto"):
            raise RequestError("tool_choice", request.tool_choice, "none or auto, or left out, without tools")
        return None
    if len(request.tools) > MAX_TOOLS:
        raise RequestError("tools", message=f"tools: {len(request.tools)} tools; at most {MAX_TOOLS} are allowed")
    tools = [_checked_tool(tool, f"tools[{i}]") for i, tool in enumerate(request.tools)]
    seen: set[str] = set()
    for i, tool in enumerate(tools):
        name = tool["function"]["name"]
        if name in seen:
            raise RequestError(f"tools[{i}].function.name", name, "a name that no other tool has")
        seen.add(name)
    parallel = request.parallel_tool_calls is not False
    return chosen(context, ToolUse(tools=tools, parallel=parallel), request.tool_choice)


def chosen(context: ServerContext, use: ToolUse, choice: Any) -> ToolUse | None:
    """`use` with the choice of the request, in the form of chat completions."""
    if isinstance(choice, dict) and choice.get("type") == "allowed_tools":
        use, choice = _allowed(use, choice.get("allowed_tools", choice))
    if choice == "none":
        return None
    if choice is None or choice == "auto":
        check_auto(context)
        return use
    if choice == "required":
        return ToolUse(tools=use.tools, choice="required", parallel=use.parallel)
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    if not isinstance(function, dict):
        raise RequestError("tool_choice", choice, _CHOICES)
    name = function.get("name")
    if name not in use.names:
        raise RequestError("tool_choice.function.name", name, "the name of one of the tools")
    return ToolUse(tools=use.tools, choice="named", name=name, parallel=False)


def _allowed(use: ToolUse, allowed: Any) -> tuple[ToolUse, str]:
    """Some of the tools, and whether one of them must be called."""
    where = "tool_choice.allowed_tools"
    mode, tools = (allowed.get("mode"), allowed.get("tools")) if isinstance(allowed, dict) else (None, None)
    if mode not in ("auto", "required"):
        raise RequestError(f"{where}.mode", mode, "auto or required")
    if not isinstance(tools, list) or not tools:
        raise RequestError(f"{where}.tools", tools, "a list of at least one tool")
    names = []
    for i, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        names.append(function.get("name") if isinstance(function, dict) else None)
        if names[-1] not in use.names:
            raise RequestError(f"{where}.tools[{i}]", tool, "one of the tools")
    left = [tool for tool in use.tools if tool["function"]["name"] in names]
    return ToolUse(tools=left, parallel=use.parallel), mode


def check_auto(context: ServerContext) -> None:
    """Raises RequestError where the choice may not, or cannot, be left to the model."""
    if not context.http.enable_auto_tool_choice:
        why = 'tool_choice: this server was started with --no-enable-auto-tool-choice: "auto" is refused'
        raise RequestError("tool_choice", message=why)
    if context.answer_format.form.tool_parser is None:
        why = (
            'tool_choice: "auto" needs a parser for what this model writes, which its chat template does not tell: '
            "start the server with --tool-call-parser"
        )
        raise RequestError("tool_choice", message=why)


def _checked_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type", "function") != "function":
        raise RequestError(f"{where}.type", tool["type"], "function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise RequestError(f"{where}.function", function, "an object with a name")
    name = function.get("name")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise RequestError(f"{where}.function.name", name, "1 to 128 letters, digits and characters of _ - . : /")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise RequestError(f"{where}.function.parameters", parameters, "a JSON schema")
    if (strict := function.get("strict")) is not None and not isinstance(strict, bool):
        raise RequestError(f"{where}.function.strict", strict, "true, false or null")
    description = function.get("description")
    if description is not None and (not isinstance(description, str) or len(description) > MAX_DESCRIPTION_CHARS):
        allowed = f"a string of at most {MAX_DESCRIPTION_CHARS} characters"
        raise RequestError(f"{where}.function.description", description, allowed)
    return {"type": "function", "function": function}
