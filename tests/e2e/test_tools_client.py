"""Tool calls and reasoning through the real `openai` client, whatever the model is made to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.repeating_chat import start_repeating_chat
from support.server_process import ServerProcess

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS: Any = [WEATHER, TIME]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀", "x": [{"}": "]"}]}}\n</tool_call>'
ARGUMENTS = '{"city": "Köln 😀", "x": [{"}": "]"}]}'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
THOUGHT = f"<think>\nFirst 😀 think.\n</think>\n\n{TWO}"


@pytest.fixture(scope="module")
def repeating(start_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A model that reasons and calls tools, by its template."""
    folder = tmp_path_factory.mktemp("repeating")
    return start_repeating_chat(start_server, folder, knows="tools <tool_call> </think>")


@pytest.fixture(scope="module")
def chat(repeating: ServerProcess) -> Iterator[Callable[..., Any]]:
    with OpenAI(base_url=f"{repeating.url}/v1", api_key="unused", max_retries=0) as client:

        def create(text: str, **fields: Any) -> Any:
            messages: Any = [{"role": "user", "content": text}]
            return client.chat.completions.create(model="tiny", messages=messages, **fields)

        yield create


def allowed(mode: str, *tools: Any) -> Any:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


def joined(chunks: Iterator[Any]) -> tuple[dict[str, Any], str | None, Any]:
    """The message, finish reason and usage of a stream with one choice."""
    message: dict[str, Any] = {"content": "", "reasoning": "", "reasoning_content": "", "calls": []}
    reason, usage = None, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            assert reason is None, "a chunk came after the end"
            reason = choice.finish_reason
            delta = choice.delta.model_dump(exclude_none=True)
            for name in ("content", "reasoning", "reasoning_content"):
                message[name] += delta.get(name, "")
            for call in delta.get("tool_calls", []):
                if call["index"] == len(message["calls"]):
                    assert call["id"] and call["type"] == "function" and call["function"]["name"]
                    message["calls"].append({"name": call["function"]["name"], "arguments": ""})
                else:
                    assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                message["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, reason, usage


def plain(message: Any) -> dict[str, Any]:
    fields = message.model_dump()
    return {
        "content": fields["content"] or "",
        "reasoning": fields.get("reasoning") or "",
        "reasoning_content": fields.get("reasoning_content") or "",
        "calls": [call["function"] for call in fields["tool_calls"] or []],
    }


@pytest.mark.parametrize(
    "text", [CALL, TWO, THOUGHT, f"{TWO}\nThat is it.", "No call.", "<think>a</think>b", "<tool_call>{}</tool_call>"]
)
def test_a_stream_gives_the_whole_answer(chat: Callable[..., Any], text: str) -> None:
    """Byte for byte: text, reasoning, names and arguments; and finish reason and usage."""
    whole = chat(text, tools=TOOLS)
    message, reason, usage = joined(chat(text, tools=TOOLS, stream=True, stream_options={"include_usage": True}))
    assert message == plain(whole.choices[0].message)
    assert reason == whole.choices[0].finish_reason
    assert usage == whole.usage.model_copy(update={"prompt_tokens_details": usage.prompt_tokens_details})


def test_calls_reasoning_and_text_of_one_answer(chat: Callable[..., Any]) -> None:
    answer = chat(THOUGHT, tools=TOOLS)
    message = answer.choices[0].message
    assert message.content == "Let me see."
    assert message.reasoning == message.reasoning_content == "First 😀 think."
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [
        ("get_weather", ARGUMENTS),
        ("get_time", "{}"),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert answer.choices[0].finish_reason == "tool_calls"
    thinking = THOUGHT.partition("</think>")[0].removeprefix("<think>") + "</think>"
    # A token is a byte here; the one that completes `<think>` comes before reasoning is known of.
    assert answer.usage.completion_tokens_details.reasoning_tokens == len(thinking.encode())


def test_without_tools_a_call_is_text(chat: Callable[..., Any]) -> None:
    for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        [choice] = chat(THOUGHT, **fields).choices
        assert choice.message.content == TWO and choice.message.tool_calls is None
        assert choice.finish_reason == "stop"


def test_some_of_the_tools_may_be_allowed(chat: Callable[..., Any]) -> None:
    """The prompt has those alone; what the model calls is still told."""
    message = chat(TWO, tools=TOOLS, tool_choice=allowed("auto", TIME)).choices[0].message
    assert len(message.tool_calls) == 2


def test_reasoning_can_be_left_out(chat: Callable[..., Any]) -> None:
    hidden: Any = {"extra_body": {"include_reasoning": False}}
    message = chat(THOUGHT, tools=TOOLS, **hidden).choices[0].message
    assert message.content == "Let me see." and "reasoning" not in message.model_dump()
    streamed, reason, _ = joined(chat(THOUGHT, tools=TOOLS, stream=True, **hidden))
    assert streamed["reasoning"] == "" and streamed["content"] == "Let me see." and reason == "tool_calls"


def test_one_call_where_only_one_may_be(chat: Callable[..., Any]) -> None:
    whole = chat(TWO, tools=TOOLS, parallel_tool_calls=False).choices[0].message
    assert [call.function.name for call in whole.tool_calls] == ["get_weather"]
    streamed, _, _ = joined(chat(TWO, tools=TOOLS, parallel_tool_calls=False, stream=True))
    assert streamed["calls"] == plain(whole)["calls"]


def test_cut_by_length_is_said_so_wherever_it_is_cut(chat: Callable[..., Any]) -> None:
    size = len(CALL.encode())
    for limit in range(1, size + 1, 7):
        [choice] = chat(CALL, tools=TOOLS, max_tokens=limit).choices
        message, reason, _ = joined(chat(CALL, tools=TOOLS, max_tokens=limit, stream=True))
        assert choice.finish_reason == reason == "length"
        assert message == plain(choice.message)
        begun = message["calls"][0]["arguments"] if message["calls"] else ""
        assert ARGUMENTS.startswith(begun.replace("\ufffd", "")) or begun.startswith(ARGUMENTS[: len(begun) - 1])


def test_a_stop_string_inside_a_call_is_no_whole_call(chat: Callable[..., Any]) -> None:
    """What the stop string held back goes through the parser, and the call it cut is not reported as made."""
    for text, stop in ((CALL, '"x"'), (CALL, "\n</tool_call>zzz")):
        [choice] = chat(text, tools=TOOLS, stop=stop).choices
        message, reason, _ = joined(chat(text, tools=TOOLS, stop=stop, stream=True))
        assert message == plain(choice.message) and reason == choice.finish_reason
        assert reason == ("stop" if stop == '"x"' else "tool_calls")


def test_every_choice_of_n_has_its_own_calls(chat: Callable[..., Any]) -> None:
    whole = chat(TWO, tools=TOOLS, n=3)
    assert [len(choice.message.tool_calls) for choice in whole.choices] == [2, 2, 2]
    assert len({call.id for choice in whole.choices for call in choice.message.tool_calls}) == 6


def test_logprobs_of_a_parsed_answer_are_those_of_all_tokens(chat: Callable[..., Any]) -> None:
    whole = chat(THOUGHT, tools=TOOLS, logprobs=True).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in chat(THOUGHT, tools=TOOLS, logprobs=True, stream=True)
        for entry in (chunk.choices[0].logprobs.content if chunk.choices[0].logprobs else [])
    ]
    assert streamed == whole and len(whole) == len(THOUGHT.encode()) + 1


def test_the_clients_own_accumulator(repeating: ServerProcess) -> None:
    with OpenAI(base_url=f"{repeating.url}/v1", api_key="unused", max_retries=0) as client:
        messages: Any = [{"role": "user", "content": THOUGHT}]
        with client.chat.completions.stream(model="tiny", messages=messages, tools=TOOLS) as stream:
            events = list(stream)
            final = stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [json.loads(call.function.arguments) for call in calls] == [json.loads(ARGUMENTS), {}]
    assert sum(event.type == "tool_calls.function.arguments.done" for event in events) == 2


def test_the_async_client(repeating: ServerProcess) -> None:
    """Several streams at once, each with its own calls."""

    async def one(client: AsyncOpenAI, which: int) -> str:
        text = f'<tool_call>{{"name": "get_time", "arguments": {{"which": {which}}}}}</tool_call>'
        messages: Any = [{"role": "user", "content": text}]
        arguments = ""
        async for chunk in await client.chat.completions.create(
            model="tiny", messages=messages, tools=TOOLS, stream=True
        ):
            for call in chunk.choices[0].delta.tool_calls or []:
                arguments += call.function.arguments or "" if call.function else ""
        return arguments

    async def all_of_them() -> list[str]:
        async with AsyncOpenAI(base_url=f"{repeating.url}/v1", api_key="unused", max_retries=0) as client:
            return await asyncio.gather(*[one(client, which) for which in range(8)])

    assert asyncio.run(all_of_them()) == [json.dumps({"which": which}) for which in range(8)]


def test_a_conversation_with_calls_goes_on(chat: Callable[..., Any], repeating: ServerProcess) -> None:
    with OpenAI(base_url=f"{repeating.url}/v1", api_key="unused", max_retries=0) as client:
        first = chat(TWO, tools=TOOLS).choices[0].message
        messages: list[Any] = [{"role": "user", "content": "x"}, first]
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "21 C"} for call in first.tool_calls]
        answer = client.chat.completions.create(model="tiny", messages=messages, tools=TOOLS)
    assert answer.choices[0].message.content == "21 C"


def test_marks_that_are_control_tokens(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    """The parser sees them; without tools they are no text. Other control tokens are never seen."""
    server = start_repeating_chat(start_server, tmp_path, knows="tools [TOOL_CALLS]", control="[TOOL_CALLS]")
    messages = [{"role": "user", "content": 'Hi. CONTROL[{"name": "get_time", "arguments": {"a": "</s>"}}]'}]
    [choice] = server.post("/v1/chat/completions", {"messages": messages, "tools": TOOLS}).body["choices"]
    [call] = choice["message"]["tool_calls"]
    assert call["function"] == {"name": "get_time", "arguments": '{"a": "</s>"}'} and len(call["id"]) == 9
    assert choice["message"]["content"] == "Hi."
    [choice] = server.post("/v1/chat/completions", {"messages": messages}).body["choices"]
    assert choice["message"]["content"] == 'Hi. [{"name": "get_time", "arguments": {"a": "</s>"}}]'


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{}]}, "tools[0].function"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [TIME, TIME]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
            "tools[0].function.parameters",
        ),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": "yes"}}]}, "tools[0].function.strict"),
        ({"tools": TOOLS, "tool_choice": "any"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": 7}, "tools"),
        ({"tools": TOOLS, "tool_choice": allowed("any")}, "tool_choice.allowed_tools.mode"),
        ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice.allowed_tools.tools"),
        ({"tools": [TIME], "tool_choice": allowed("auto", WEATHER)}, "tool_choice.allowed_tools.tools[0]"),
    ],
)
def test_bad_tools_are_refused_by_name(chat: Callable[..., Any], fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat("x", extra_body=fields)
    assert caught.value.param == param


def test_the_choice_can_be_withheld_from_the_model(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server("--no-enable-auto-tool-choice", "--num-blocks", "64")
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, "max_tokens": 1}
    assert server.post("/v1/chat/completions", body).error["param"] == "tool_choice"
    assert server.post("/v1/chat/completions", {**body, "tool_choice": "none"}).status == 200


def test_what_an_answer_must_be_begins_after_its_thoughts(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    """With thinking on, the thoughts are free and are reasoning; with it off, the answer obeys from its beginning."""
    template = tmp_path / "thinking.jinja"
    closed = "{% if not enable_thinking %}\n</think>\n{% endif %}"
    template.write_text("{{ messages[-1].content }}<think>\n" + closed + "{# tools <tool_call> </think> #}")
    server = start_server("--num-blocks", "200", "--chat-template", str(template))
    schema = {"name": "s", "schema": {"enum": ["one", "two"]}}
    formats: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": schema}},
        {"tools": [TIME], "tool_choice": "required", "parallel_tool_calls": False},
    ]
    for fields in formats:
        for thinks in (True, False):
            body = {
                "messages": [{"role": "user", "content": "Once upon a time"}],
                "max_tokens": 60,
                "temperature": 0,
                "chat_template_kwargs": {"enable_thinking": thinks},
                **fields,
            }
            reply = server.post("/v1/chat/completions", body).body
            [choice] = reply["choices"]
            details = reply["usage"].get("completion_tokens_details", {})
            if thinks:
                assert choice["message"]["content"] is None and len(choice["message"]["reasoning"]) > 20
                assert choice["finish_reason"] == "length" and details == {"reasoning_tokens": 60}
            else:
                assert "reasoning" not in choice["message"] and not details.get("reasoning_tokens")
                if "tools" in fields:
                    [call] = choice["message"]["tool_calls"]
                    assert call["function"]["name"] == "get_time" and json.loads(call["function"]["arguments"]) == {}
                else:
                    assert json.loads(choice["message"]["content"]) in ("one", "two")
