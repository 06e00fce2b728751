"""Calls that must be made, through /v1/messages and /v1/responses: the default model, which is no good at tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import pydantic
import pytest
from anthropic import Anthropic
from openai import OpenAI

from support.server_process import ServerProcess

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
STORY = "Which city do you like?"


class Pick(pydantic.BaseModel):
    city: Literal["Rome", "Oslo"]


@pytest.fixture(scope="module")
def default_model(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server("--num-blocks", "200", model=MODEL)


@pytest.mark.parametrize(
    "choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "Pick"}]
)
def test_messages(default_model: ServerProcess, choice: Any) -> None:
    tool: Any = {"name": "Pick", "input_schema": Pick.model_json_schema()}
    fields: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 150,
        "messages": [{"role": "user", "content": STORY}],
        "tools": [tool],
        "tool_choice": choice,
        "extra_body": {"temperature": 0},
    }
    with Anthropic(base_url=default_model.url, api_key="unused", max_retries=0) as client:
        message = client.messages.create(**fields)
        with client.messages.stream(**fields) as stream:
            streamed = stream.get_final_message()
    [call] = message.content
    assert call.type == "tool_use" and call.name == "Pick" and Pick.model_validate(call.input)
    assert message.stop_reason == streamed.stop_reason == "tool_use"
    [twin] = streamed.content
    assert twin.type == "tool_use" and twin.input == call.input


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "Pick"}])
def test_responses(default_model: ServerProcess, choice: Any) -> None:
    tool: Any = {"type": "function", "name": "Pick", "parameters": Pick.model_json_schema(), "strict": True}
    fields: dict[str, Any] = {
        "model": MODEL,
        "input": STORY,
        "tools": [tool],
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_output_tokens": 150,
        "temperature": 0,
    }
    with OpenAI(base_url=f"{default_model.url}/v1", api_key="unused", max_retries=0) as client:
        whole = client.responses.create(**fields)
        *_, last = client.responses.create(**fields, stream=True)
    [call] = whole.output
    assert call.type == "function_call" and call.name == "Pick" and call.status == "completed"
    assert Pick.model_validate_json(call.arguments)
    [twin] = last.response.output
    assert twin.arguments == call.arguments and last.type == "response.completed"
