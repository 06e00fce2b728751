"""Tools for models whose chat template does not know them: the prompt teaches the format of Hermes and Qwen."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_LESSON = """\
You can call functions. For each call write a JSON object with the function's name and its arguments between these tags:
<tool_call>
{"name": "function name", "arguments": {"argument name": "value"}}
</tool_call>
These are the functions:
<tools>
%s
</tools>"""


def teach_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, *, with_system: bool = True
) -> list[dict[str, Any]]:
    """Messages of the roles system, user and assistant alone, with the tools in the first, and calls and their results
    as text.

    Args:
        with_system: Whether there may be a system message where there is none yet.
    """
    taught = [_as_text(message) for message in messages]
    if tools:
        lesson = _LESSON % "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
        first = taught[0]
        if first["role"] == "system":
            taught[0] = {**first, "content": f"{first.get('content') or ''}\n\n{lesson}".lstrip()}
        elif first["role"] == "user" and not with_system:
            taught[0] = {**first, "content": f"{lesson}\n\n{first.get('content') or ''}"}
        else:
            taught.insert(0, {"role": "system", "content": lesson})
    return _join_results(taught)


def _as_text(message: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
    if message.get("role") == "tool":
        return {"role": "tool", "content": f"<tool_response>\n{message.get('content') or ''}\n</tool_response>"}
    calls = message.get("tool_calls")
    if calls:
        functions = [{name: call["function"][name] for name in ("name", "arguments")} for call in calls]
        texts = [f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>" for function in functions]
        plain["content"] = "\n".join(filter(None, [plain.get("content"), *texts]))
    return plain


def _join_results(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The results of several calls in one message of the user, since many templates want roles to alternate."""
    joined: list[dict[str, Any]] = []
    after_result = False
    for message in messages:
        is_result = message["role"] == "tool"
        if is_result and after_result:
            joined[-1]["content"] += "\n" + message["content"]
        else:
            joined.append({**message, "role": "user"} if is_result else message)
        after_result = is_result
    return joined
