"""The real `anthropic` client against a real server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import msgspec
import pytest
from anthropic import Anthropic, AsyncAnthropic

from octavo.server.openapi.operations import OPERATIONS
from support.repeating_chat import start_repeating_chat
from support.server_process import ServerProcess

PATH = "/v1/messages"
GREEDY: Any = {"extra_body": {"temperature": 0}}
"""The client of today has no argument for it."""

USER: list[Any] = [{"role": "user", "content": "Tell me a story."}]
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather at a place.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: Any = [WEATHER, {"name": "get_time", "input_schema": {"type": "object"}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀", "x": [{"}": "]"}]}}\n</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
THOUGHT = f"<think>\nFirst 😀 think.\n</think>\n\n{TWO}"
THINKING: Any = {"type": "enabled", "budget_tokens": 100}


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def repeating(start_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A model that reasons and calls tools, by its template."""
    folder = tmp_path_factory.mktemp("repeating")
    return start_repeating_chat(start_server, folder, knows="tools <tool_call> </think>")


@pytest.fixture(scope="module")
def repeat(repeating: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=repeating.url, api_key="unused", max_retries=0) as client:
        yield client


def ask(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "max_tokens": 400, "messages": [{"role": "user", "content": text}], **fields}


def streamed(client: Anthropic, **fields: Any) -> Any:
    """The message that the client puts together from a stream."""
    with client.messages.stream(**fields) as stream:
        return stream.get_final_message()


def same(message: Any) -> dict[str, Any]:
    """All but what differs between two runs."""
    fields: dict[str, Any] = message.model_dump(exclude={"id", "usage"})
    for block in fields["content"]:
        block.pop("parsed_output", None)
        if block["type"] == "tool_use":
            assert block.pop("id")
    return fields


def test_a_message(claude: Anthropic, server: ServerProcess) -> None:
    message = claude.messages.create(model="tiny", max_tokens=12, messages=USER, **GREEDY)
    assert message.id.startswith("msg_") and message.type == "message" and message.role == "assistant"
    [block] = message.content
    assert block.type == "text" and block.text
    assert message.stop_reason == "max_tokens" and message.stop_sequence is None
    assert message.usage.output_tokens == 12
    chat = server.post("/v1/chat/completions", {"messages": USER, "max_tokens": 12, "temperature": 0}).body
    assert block.text == chat["choices"][0]["message"]["content"]
    cached = message.usage.cache_read_input_tokens
    assert cached is not None and message.usage.input_tokens + cached == chat["usage"]["prompt_tokens"]


def test_a_stream_equals_the_message(claude: Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 24, "messages": USER, **GREEDY}
    whole = claude.messages.create(**fields)
    assert same(streamed(claude, **fields)) == same(whole)
    events = list(claude.messages.create(**fields, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    assert text == whole.content[0].text  # type: ignore[union-attr]
    last = events[-2]
    assert last.type == "message_delta" and last.usage.output_tokens == whole.usage.output_tokens == 24


def test_the_async_client(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncAnthropic(base_url=server.url, api_key="unused", max_retries=0) as client:
            fields: dict[str, Any] = {"model": "tiny", "max_tokens": 9, "messages": USER, **GREEDY}
            whole, other = await asyncio.gather(client.messages.create(**fields), client.messages.create(**fields))
            assert same(whole) == same(other)
            async with client.messages.stream(**fields) as stream:
                text = "".join([piece async for piece in stream.text_stream])
            assert text == whole.content[0].text  # type: ignore[union-attr]

    asyncio.run(main())


def test_system_is_a_system_message(claude: Anthropic, server: ServerProcess) -> None:
    messages = [{"role": "system", "content": "Be kind.\nBe brief."}, *USER]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1}).body
    for system in (
        "Be kind.\nBe brief.",
        [{"type": "text", "text": "Be kind."}, {"type": "text", "text": "Be brief."}],
    ):
        counted = claude.messages.count_tokens(model="tiny", messages=USER, system=system)  # type: ignore[arg-type]
        assert counted.input_tokens == chat["usage"]["prompt_tokens"]


def test_stop_sequences(claude: Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "messages": USER, **GREEDY}
    text = claude.messages.create(**fields).content[0].text  # type: ignore[union-attr]
    stop = text[10:14]
    cut = claude.messages.create(**fields, stop_sequences=["never", stop])
    assert cut.content[0].text == text[: text.index(stop)]  # type: ignore[union-attr]
    assert (cut.stop_reason, cut.stop_sequence) == ("stop_sequence", stop)
    assert same(streamed(claude, **fields, stop_sequences=[stop])) == same(cut)


def test_an_answer_that_was_begun_is_continued(claude: Anthropic) -> None:
    fields: dict[str, Any] = {"model": "tiny", "max_tokens": 20, **GREEDY}
    whole = claude.messages.create(messages=USER, **fields).content[0].text  # type: ignore[union-attr]
    begun = [*USER, {"role": "assistant", "content": whole[:20].rstrip()}]
    rest = claude.messages.create(messages=begun, **fields).content[0].text  # type: ignore[union-attr]
    assert rest and not whole.startswith(rest)
    assert whole[:20].rstrip() + rest != rest


def test_a_limit_beyond_the_context_is_the_context(claude: Anthropic, repeat: Anthropic) -> None:
    """As Claude Code asks, whatever the model."""
    message = claude.messages.create(model="tiny", max_tokens=20_000, messages=USER, **GREEDY)
    total = message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) + message.usage.output_tokens
    assert total <= 256
    assert message.stop_reason == ("model_context_window_exceeded" if total == 256 else "end_turn")
    assert repeat.messages.create(**ask("short", max_tokens=20_000)).stop_reason == "end_turn"
    with pytest.raises(anthropic.BadRequestError, match="tokens"):
        claude.messages.create(model="tiny", max_tokens=5, messages=[{"role": "user", "content": "word " * 400}])


@pytest.mark.parametrize("thinking", [None, THINKING, {"type": "disabled"}, {"type": "adaptive"}])
@pytest.mark.parametrize(
    "text",
    [CALL, TWO, THOUGHT, f"{TWO}\nThat is it.", "No call.", "<think>a</think>b", "<think>a</think>b<think>c</think>d"],
)
def test_what_answers_hold(repeat: Anthropic, text: str, thinking: Any) -> None:
    """Text, reasoning and tool calls: the blocks of a stream are those of the whole answer, byte for byte."""
    fields = ask(text, tools=TOOLS, **({} if thinking is None else {"thinking": thinking}))
    whole = repeat.messages.create(**fields)
    assert same(streamed(repeat, **fields)) == same(whole)
    kinds = [block.type for block in whole.content]
    assert ("thinking" in kinds) == ("<think>" in text and thinking in (THINKING, {"type": "adaptive"}))
    assert kinds.count("tool_use") == text.count("<tool_call>")
    calls = [block for block in whole.content if block.type == "tool_use"]
    if calls:
        assert calls[0].name == "get_weather" and calls[0].input == {"city": "Köln 😀", "x": [{"}": "]"}]}
        assert len({call.id for call in calls}) == len(calls)
    assert whole.stop_reason == ("tool_use" if calls else "end_turn")


def test_arguments_stream_in_pieces(repeat: Anthropic) -> None:
    events = list(repeat.messages.create(**ask(TWO, tools=TOOLS), stream=True))
    parts: dict[int, str] = {}
    for event in events:
        if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
            parts[event.index] = parts.get(event.index, "") + event.delta.partial_json
    assert [json.loads(part) for part in parts.values()] == [{"city": "Köln 😀", "x": [{"}": "]"}]}, {}]
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == [event.index for event in events if event.type == "content_block_stop"] == [0, 1, 2]


def test_a_call_that_is_cut_off_says_so(repeat: Anthropic) -> None:
    message = repeat.messages.create(**ask(CALL, tools=TOOLS, max_tokens=len(CALL) - 40))
    assert message.stop_reason == "max_tokens"
    assert message.content[-1].type == "tool_use" and message.content[-1].input == {}


def test_one_call_at_a_time(repeat: Anthropic) -> None:
    choice: Any = {"type": "auto", "disable_parallel_tool_use": True}
    message = repeat.messages.create(**ask(TWO, tools=TOOLS, tool_choice=choice))
    assert [block.type for block in message.content].count("tool_use") == 1
    none = repeat.messages.create(**ask(TWO, tools=TOOLS, tool_choice={"type": "none"}))
    assert [block.type for block in none.content] == ["text"] and none.stop_reason == "end_turn"


CHOICE: Any = {
    "name": "pick",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"enum": ["Rome", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


def test_an_answer_by_schema(claude: Anthropic) -> None:
    form: Any = {"format": {"type": "json_schema", "schema": CHOICE["input_schema"]}}
    message = claude.messages.create(model="tiny", max_tokens=60, messages=USER, output_config=form, **GREEDY)
    assert json.loads(message.content[0].text)["city"] in ("Rome", "Oslo")  # type: ignore[union-attr]


def test_results_of_tools_go_back(repeat: Anthropic, repeating: ServerProcess) -> None:
    """The conversation is the chat that says the same."""
    messages: Any = [
        {"role": "user", "content": "Weather?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Rom"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "Sun."}]},
                {"type": "text", "text": "And"},
                {"type": "text", "text": "now?"},
            ],
        },
        {"role": "user", "content": "Please."},
    ]
    message = repeat.messages.create(model="tiny", max_tokens=100, messages=messages, tools=TOOLS)
    assert message.content[0].text == "And\nnow?\nPlease."  # type: ignore[union-attr]
    failed = [
        *messages[:2],
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "No.", "is_error": True}]},
    ]
    message = repeat.messages.create(model="tiny", max_tokens=100, messages=failed, tools=TOOLS)
    assert message.content[0].text == "Error: No."  # type: ignore[union-attr]


GOOD: dict[str, Any] = {"model": "tiny", "max_tokens": 5, "messages": USER}


def content(*blocks: Any, role: str = "user") -> list[Any]:
    return [{"role": role, "content": list(blocks)}, *([] if role == "user" else USER)]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": 0}, "max_tokens = 0"),
    ({"max_tokens": None}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 2**31}, "max_tokens"),
    ({"model": 5}, "model"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": content({"type": "text"})}, "text"),
    ({"messages": content({"type": "text", "text": 5})}, "text"),
    ({"messages": content({"type": "riddle"})}, "type"),
    ({"messages": content({"text": "x"})}, "type"),
    (
        {"messages": content({"type": "image", "source": {"type": "url", "url": "http://127.0.0.1/"}})},
        "messages[0].content[0].type: image",
    ),
    ({"messages": content({"type": "document", "source": {}})}, "messages[0].content[0].type: document"),
    ({"messages": content({"type": "tool_use", "id": "a", "name": "b", "input": {}})}, "messages[0].content[0].type"),
    (
        {"messages": content({"type": "tool_result", "tool_use_id": "a"}, role="assistant")},
        "messages[0].content[0].type",
    ),
    ({"messages": content({"type": "tool_result", "tool_use_id": ""})}, "tool_use_id"),
    (
        {"messages": content({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})},
        "messages[0].content[0].content[0].type",
    ),
    ({"messages": content({"type": "tool_use", "id": "a", "name": "b", "input": "x"}, role="assistant")}, "input"),
    (
        {
            "messages": [
                *USER,
                *content({"type": "tool_use", "id": "a", "name": "b", "input": {}}, role="assistant")[:1],
            ]
        },
        "messages: the last one",
    ),
    ({"system": 5}, "system"),
    ({"system": [{"type": "image"}]}, "system"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_k": -5}, "top_k"),
    ({"top_k": 1.5}, "top_k"),
    ({"stop_sequences": "x"}, "stop_sequences"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"stop_sequences": ["x"] * 65}, "stop_sequences: holds 65"),
    ({"stop_sequences": ["x" * 1025]}, "stop_sequences: a string"),
    ({"stream": "yes"}, "stream"),
    ({"metadata": {"user_id": 5}}, "metadata.user_id"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f f", "input_schema": {}}]}, "tools[0].name = 'f f'"),
    ({"tools": [{"name": "f", "input_schema": []}]}, "tools[0].input_schema"),
    ({"tools": [{"name": "f", "input_schema": {}}] * 2}, "tools[1].name"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format"),
    ({"mcp_servers": [{}]}, "mcp_servers"),
    ({"container": "x"}, "container"),
]


def error_of(reply: Any) -> dict[str, Any]:
    body = reply.body
    assert sorted(body) == ["error", "type"] and body["type"] == "error"
    assert sorted(body["error"]) == ["message", "type"]
    error: dict[str, Any] = body["error"]
    return error


@pytest.mark.parametrize(("change", "named"), BAD, ids=[named for _, named in BAD])
def test_bad_values_are_refused_by_name(server: ServerProcess, change: dict[str, Any], named: str) -> None:
    paths = [PATH]
    if not set(change) & {"max_tokens", "temperature", "top_p", "top_k", "stop_sequences", "stream", "metadata"}:
        paths += [] if change.get("thinking", {}).get("budget_tokens") == 5 else [f"{PATH}/count_tokens"]
    for path in paths:
        reply = server.post(path, {**GOOD, **change})
        error = error_of(reply)
        assert reply.status == 400 and error["type"] == "invalid_request_error", error
        assert named in error["message"], error
        assert len(error["message"]) < 400


def test_errors_are_the_clients_own_exceptions(server: ServerProcess, claude: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="claude", max_tokens=5, messages=USER)
    for reply, status, kind in (
        (server.get(PATH), 405, "invalid_request_error"),
        (server.post(f"{PATH}/nothing", {}), 404, "not_found_error"),
        (server.post(PATH, b"{"), 400, "invalid_request_error"),
        (server.post(PATH, b"x", {"Content-Type": "text/plain"}), 415, "invalid_request_error"),
    ):
        assert reply.status == status and error_of(reply)["type"] == kind


def test_keys_come_as_this_client_sends_them(start_server: Any) -> None:
    server = start_server("--api-key", "sk-right", "--num-blocks", "40")
    with Anthropic(base_url=server.url, api_key="sk-right", max_retries=0) as client:
        assert client.messages.count_tokens(model="tiny", messages=USER).input_tokens > 3
    with Anthropic(base_url=server.url, auth_token="sk-right", api_key=None, max_retries=0) as client:
        assert client.messages.create(model="tiny", max_tokens=2, messages=USER).content
    with (
        Anthropic(base_url=server.url, api_key="sk-wrong", max_retries=0) as client,
        pytest.raises(anthropic.AuthenticationError),
    ):
        client.messages.create(model="tiny", max_tokens=2, messages=USER)
    assert error_of(server.post(PATH, GOOD))["type"] == "authentication_error"


def test_a_client_that_leaves_ends_its_work(server: ServerProcess) -> None:
    body = {**GOOD, "max_tokens": 200}
    with server.open_stream(PATH, body) as reply:
        reply.read(20)
    server.wait_metric("octavo:kv_blocks", 0, 2.0, state="held")


def test_replies_are_of_the_types_described(repeating: ServerProcess) -> None:
    operation = OPERATIONS["POST", PATH]
    reply = repeating.post(PATH, ask(THOUGHT, tools=TOOLS, thinking=THINKING)).body
    assert msgspec.to_builtins(msgspec.convert(reply, operation.reply)) == reply
    with repeating.open_stream(PATH, ask(THOUGHT, tools=TOOLS, thinking=THINKING)) as stream:
        frames = stream.read().decode().strip().split("\n\n")
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert msgspec.to_builtins(msgspec.convert(event, operation.event)) == event
