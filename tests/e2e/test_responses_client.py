"""/v1/responses through the real `openai` client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any, Literal

import msgspec
import openai
import pydantic
import pytest
from openai import AsyncOpenAI, OpenAI

from octavo.server.openapi.operations import OPERATIONS
from support.repeating_chat import start_repeating_chat
from support.server_process import ServerProcess

PATH = "/v1/responses"
GREEDY: dict[str, Any] = {"model": "tiny", "temperature": 0}
STORY = "Tell me a story."
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather at a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}
TOOLS: Any = [WEATHER, {"type": "function", "name": "get_time", "parameters": None, "strict": None}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln 😀", "x": [{"}": "]"}]}}\n</tool_call>'
TWO = f'Let me see.\n{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
THOUGHT = f"<think>\nFirst 😀 think.\n</think>\n\n{TWO}"


@pytest.fixture(scope="module")
def repeating(start_server: Callable[..., ServerProcess], tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """A model that reasons and calls tools, by its template."""
    folder = tmp_path_factory.mktemp("repeating")
    return start_repeating_chat(start_server, folder, knows="tools <tool_call> </think>")


@pytest.fixture(scope="module")
def repeat(repeating: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{repeating.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def same(response: Any) -> dict[str, Any]:
    """All but ids and what the cache and the clock say."""
    fields: dict[str, Any] = response.model_dump(exclude={"id", "created_at", "completed_at"}, exclude_none=True)
    fields["usage"].pop("input_tokens_details")
    for item in fields["output"]:
        item.pop("id")
        item.pop("call_id", None)
        for part in item.get("content", []):
            for name in ("parsed", "annotations"):
                part.pop(name, None)
        item.pop("parsed_arguments", None)
    return fields


def streamed(client: OpenAI, **fields: Any) -> tuple[Any, list[Any]]:
    """The response of a stream's last event, and its events."""
    events = list(client.responses.create(**fields, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response, events


def test_a_response(client: OpenAI, server: ServerProcess) -> None:
    response = client.responses.create(input=STORY, max_output_tokens=12, metadata={"a": "b"}, **GREEDY)
    assert response.id.startswith("resp_") and response.object == "response"
    assert response.status == "incomplete" and response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    [item] = response.output
    assert item.type == "message" and item.role == "assistant" and item.status == "incomplete"
    assert response.usage is not None and response.usage.output_tokens == 12
    assert response.usage.total_tokens == response.usage.input_tokens + 12
    assert response.metadata == {"a": "b"} and response.store is True  # type: ignore[attr-defined]
    messages = [{"role": "user", "content": STORY}]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12, "temperature": 0}).body
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.usage.input_tokens == chat["usage"]["prompt_tokens"]


def test_a_stream_equals_the_response(client: OpenAI) -> None:
    fields: dict[str, Any] = {"input": STORY, "max_output_tokens": 24, **GREEDY}
    whole = client.responses.create(**fields)
    last, events = streamed(client, **fields)
    assert same(last) == same(whole)
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text
    with client.responses.stream(**fields) as stream:
        assert "".join(e.delta for e in stream if e.type == "response.output_text.delta") == whole.output_text


def test_the_async_client(server: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            whole = await client.responses.create(input=STORY, max_output_tokens=9, **GREEDY)
            stream = await client.responses.create(input=STORY, max_output_tokens=9, stream=True, **GREEDY)
            text = "".join([e.delta async for e in stream if e.type == "response.output_text.delta"])
            assert text == whole.output_text != ""
            assert (await client.responses.retrieve(whole.id)).output_text == text

    asyncio.run(main())


def test_input_items_and_instructions_are_the_messages_of_a_chat(client: OpenAI, server: ServerProcess) -> None:
    messages: Any = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Hello\nyou"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "And?"},
    ]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0}).body
    items: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}, {"type": "input_text", "text": "you"}]},
        {
            "type": "message",
            "role": "assistant",
            "id": "msg_1",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Hi.", "annotations": []}],
        },
        {"type": "message", "role": "user", "content": "And?"},
    ]
    response = client.responses.create(input=items, instructions="Be kind.", max_output_tokens=8, **GREEDY)
    assert response.output_text == chat["choices"][0]["message"]["content"]
    assert response.usage is not None and response.usage.input_tokens == chat["usage"]["prompt_tokens"]


def test_a_conversation_goes_on(client: OpenAI, server: ServerProcess) -> None:
    first = client.responses.create(input="Hello", instructions="Be kind.", max_output_tokens=5, **GREEDY)
    second = client.responses.create(input="More", previous_response_id=first.id, max_output_tokens=5, **GREEDY)
    third, _ = streamed(client, input="Yet more", previous_response_id=second.id, max_output_tokens=5, **GREEDY)
    assert second.previous_response_id == first.id and third.previous_response_id == second.id
    messages = [
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": second.output_text},
        {"role": "user", "content": "Yet more"},
    ]
    chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 5, "temperature": 0}).body
    assert third.output_text == chat["choices"][0]["message"]["content"]
    assert third.usage.input_tokens == chat["usage"]["prompt_tokens"], "instructions are not carried over"
    assert client.responses.retrieve(third.id).output_text == third.output_text
    client.responses.delete(second.id)
    for gone in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            gone(second.id)
    with pytest.raises(openai.NotFoundError) as caught:
        client.responses.create(input="x", previous_response_id=second.id, **GREEDY)
    assert caught.value.param == "previous_response_id"
    assert client.responses.create(input="x", previous_response_id=third.id, max_output_tokens=1, **GREEDY).output


def test_what_a_response_went_on_from(client: OpenAI, server: ServerProcess) -> None:
    first = client.responses.create(input="Hello", max_output_tokens=4, **GREEDY)
    more: Any = [{"role": "user", "content": [{"type": "input_text", "text": "More"}]}]
    second = client.responses.create(input=more, previous_response_id=first.id, max_output_tokens=4, **GREEDY)
    listed = list(client.responses.input_items.list(second.id, order="asc", limit=2))  # in two pages
    assert [(item.type, item.role) for item in listed] == [  # type: ignore[union-attr]
        ("message", "user"),
        ("message", "assistant"),
        ("message", "user"),
    ]
    texts = [item.content[0].text for item in listed]  # type: ignore[union-attr]
    assert texts == ["Hello", first.output_text, "More"]
    assert len({item.id for item in listed}) == 3 and listed[1].id == first.output[0].id
    newest = client.responses.input_items.list(second.id, limit=1)
    assert [item.id for item in newest.data] == [listed[2].id] and newest.has_more
    path = f"/v1/responses/{second.id}/input_items"
    for query, param in (("limit=0", "limit"), ("order=x", "order"), ("after=x", "after")):
        reply = server.get(f"{path}?{query}")
        assert reply.status == 400 and reply.error["param"] == param
    assert server.get("/v1/responses/resp_x/input_items").status == 404


def test_input_is_counted_as_it_would_be_used(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "input": "Hello", "instructions": "Be brief"}
    counted = client.responses.input_tokens.count(**fields)
    used = client.responses.create(**fields, max_output_tokens=1)
    assert used.usage is not None and counted.input_tokens == used.usage.input_tokens
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.input_tokens.count(model="tiny", input=[])
    assert caught.value.param == "input"


def test_what_is_not_to_be_kept_is_not(client: OpenAI) -> None:
    response = client.responses.create(input=STORY, max_output_tokens=2, store=False, **GREEDY)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(response.id)


def test_what_is_kept_is_bounded_and_each_tenants_own(start_server: Any, tmp_path: Any) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice sk-aaaaaaaaaaaaaaaa\nbob sk-bbbbbbbbbbbbbbbb\n")
    server = start_server("--api-key-file", str(keys), "--num-blocks", "40", "--max-stored-bytes", "10000")
    url = f"{server.url}/v1"
    with (
        OpenAI(base_url=url, api_key="sk-aaaaaaaaaaaaaaaa") as alice,
        OpenAI(base_url=url, api_key="sk-bbbbbbbbbbbbbbbb") as bob,
    ):
        ids = [alice.responses.create(input=STORY, max_output_tokens=2, **GREEDY).id for _ in range(12)]
        for refused in (bob.responses.retrieve, bob.responses.delete):
            with pytest.raises(openai.NotFoundError):
                refused(ids[-1])
        with pytest.raises(openai.NotFoundError):
            bob.responses.create(input="x", previous_response_id=ids[-1], **GREEDY)
        kept = 0
        for response_id in ids:
            try:
                alice.responses.retrieve(response_id)
                kept += 1
            except openai.NotFoundError:
                assert kept == 0, "the oldest go first"
        assert 2 <= kept < 12


@pytest.mark.parametrize(
    "text",
    [
        CALL,
        TWO,
        THOUGHT,
        f"{TWO}\nThat is it.",
        "No call.",
        "<think>a</think>b",
        "<think>a",
        "<tool_call>{}</tool_call>",
    ],
)
def test_what_answers_hold(repeat: OpenAI, text: str) -> None:
    """Text, reasoning and calls: the items of a stream are those of the whole answer, byte for byte."""
    fields: dict[str, Any] = {"model": "tiny", "input": text, "tools": TOOLS}
    whole = repeat.responses.create(**fields)
    last, events = streamed(repeat, **fields)
    assert same(last) == same(whole)
    kinds = [item.type for item in whole.output]
    assert ("reasoning" in kinds) == ("<think>" in text)
    assert kinds.count("function_call") == text.count('"name"')
    if "function_call" in kinds:
        call = whole.output[kinds.index("function_call")]
        assert call.name == "get_weather" and json.loads(call.arguments) == {"city": "Köln 😀", "x": [{"}": "]"}]}  # type: ignore[union-attr]
    if "reasoning" in kinds:
        assert whole.usage is not None and whole.usage.output_tokens_details.reasoning_tokens > 0
    deltas: dict[int, str] = {}
    for event in events:
        if event.type.endswith(".delta"):
            deltas[event.output_index] = deltas.get(event.output_index, "") + event.delta
        if event.type.endswith("_text.done"):
            assert event.text == deltas.get(event.output_index, "")
        if event.type == "response.function_call_arguments.done":
            assert event.arguments == deltas[event.output_index]
    added = [event.item.id for event in events if event.type == "response.output_item.added"]
    assert added == [event.item.id for event in events if event.type == "response.output_item.done"]
    assert added == [item.id for item in last.output]


def test_a_call_that_was_cut_goes_back(repeat: OpenAI) -> None:
    history: Any = [
        {"role": "user", "content": "x"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": '{"city": "Par'},
        {"type": "function_call_output", "call_id": "a", "output": "4 °C"},
    ]
    assert repeat.responses.create(model="tiny", input=history, tools=TOOLS).output_text == "4 °C"


def test_results_of_calls_go_back(repeat: OpenAI) -> None:
    first = repeat.responses.create(model="tiny", input=THOUGHT, tools=TOOLS)
    calls = [item for item in first.output if item.type == "function_call"]
    assert len(calls) == 2
    outputs: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"{i} °C"} for i, call in enumerate(calls)
    ]
    second = repeat.responses.create(model="tiny", input=outputs, previous_response_id=first.id, tools=TOOLS)
    assert second.output_text == "1 °C", "the last message is the second result"
    by_hand: Any = [
        {"role": "user", "content": "x"},
        *[item.model_dump(exclude_none=True) for item in first.output],
        *outputs,
    ]
    assert repeat.responses.create(model="tiny", input=by_hand, tools=TOOLS).output_text == "1 °C"


def test_an_answer_that_is_cut_off_is_incomplete(repeat: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "tiny", "input": CALL, "tools": TOOLS, "max_output_tokens": len(CALL) - 40}
    whole = repeat.responses.create(**fields)
    assert whole.status == "incomplete" and whole.output[-1].status == "incomplete"  # type: ignore[union-attr]
    last, _ = streamed(repeat, **fields)
    assert same(last) == same(whole)


def test_logprobs(client: OpenAI) -> None:
    fields: dict[str, Any] = {
        "input": STORY,
        "max_output_tokens": 6,
        "top_logprobs": 2,
        "include": ["message.output_text.logprobs"],
        **GREEDY,
    }
    whole = client.responses.create(**fields)
    logprobs = whole.output[0].content[0].logprobs  # type: ignore[union-attr]
    assert logprobs is not None and len(logprobs) == 6
    assert all(len(entry.top_logprobs) == 2 and entry.top_logprobs[0].token == entry.token for entry in logprobs)
    last, events = streamed(client, **fields)
    assert last.output[0].content[0].logprobs == logprobs
    in_deltas = [
        entry.token for event in events if event.type == "response.output_text.delta" for entry in event.logprobs
    ]
    assert in_deltas == [entry.token for entry in logprobs][: len(in_deltas)] and in_deltas


class Pick(pydantic.BaseModel):
    city: Literal["Rome", "Oslo"]


def test_parse(client: OpenAI) -> None:
    """The client's own structured answers."""
    response = client.responses.parse(input=STORY, text_format=Pick, max_output_tokens=60, **GREEDY)
    assert response.status == "completed" and isinstance(response.output_parsed, Pick)
    assert response.text is not None and response.text.format is not None
    assert response.text.format.type == "json_schema"
    with client.responses.stream(input=STORY, text_format=Pick, max_output_tokens=60, **GREEDY) as stream:
        assert stream.get_final_response().output_parsed == response.output_parsed
    free = client.responses.create(
        input=STORY, text={"format": {"type": "json_object"}}, max_output_tokens=60, **GREEDY
    )
    assert free.output_text.startswith("{")


GOOD: dict[str, Any] = {"model": "tiny", "input": "Hello", "max_output_tokens": 3}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "x"}, fields]}


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"input": None}, "input"),
    ({"input": 5}, "input"),
    ({"input": []}, "input"),
    ({"input": "word " * 400}, "input"),
    ({"input": [5]}, "input[0]"),
    (item(role="boss", content="x"), "input[1].role"),
    (item(role="user"), "input[1].content"),
    (item(role="user", content=5), "input[1].content"),
    (
        item(role="user", content=[{"type": "input_image", "image_url": "http://127.0.0.1/"}]),
        "input[1].content[0].type",
    ),
    (item(role="user", content=[{"type": "input_text"}]), "input[1].content[0].text"),
    (item(role="user", content=[]), "input[1].content"),
    (item(type="item_reference", id="x"), "input[1].type"),
    (item(type=5), "input[1].type"),
    (item(type="function_call", call_id="a", name="f"), "input[1].arguments"),
    (item(type="function_call", call_id="a", name="f", arguments="[1]"), "input[1].tool_calls[0].function.arguments"),
    (item(type="function_call", call_id="a", name="", arguments="{}"), "input[1].tool_calls[0].function.name"),
    (item(type="function_call_output", call_id=5, output="x"), "input[1].call_id"),
    (item(type="reasoning", content="x"), "input[1].content"),
    ({"instructions": 5}, "instructions"),
    ({"previous_response_id": 5}, "previous_response_id"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_output_tokens": 2**31}, "max_output_tokens"),
    ({"temperature": -1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 2}, "top_p"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"top_logprobs": True}, "top_logprobs"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"include": "x"}, "include"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
    ({"store": 1}, "store"),
    ({"metadata": {"a": 5}}, 'metadata["a"]'),
    ({"metadata": {"a" * 65: "b"}}, "metadata." + "a" * 64),
    ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "f f"}]}, "tools[0].name"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "function", "name": "f", "parameters": 5}]}, "tools[0].parameters"),
    ({"tools": {}}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": "maybe"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 5}}}, "text.format.schema"),
    ({"text": {"verbosity": "high"}}, "text.verbosity"),
    ({"text": 5}, "text"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"truncation": "auto"}, "truncation"),
    ({"background": True}, "background"),
    ({"conversation": "c"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"max_tool_calls": 5}, "max_tool_calls"),
    ({"seed": "x"}, "seed"),
    ({"min_tokens": 9}, "min_tokens"),
    ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
    ({"cache_salt": ""}, "cache_salt"),
]


@pytest.mark.parametrize(("change", "param"), BAD, ids=[f"{list(change)}-{param}" for change, param in BAD])
def test_bad_values_are_refused_by_name(server: ServerProcess, change: dict[str, Any], param: str | None) -> None:
    reply = server.post(PATH, {**GOOD, **change})
    assert reply.status == 400, reply.body
    assert reply.error["param"] == param, reply.error
    assert param is None or param.partition("[")[0].partition(".")[0] in reply.error["message"]
    assert len(reply.error["message"]) < 400


def test_a_client_that_leaves_ends_its_work_and_nothing_is_kept(server: ServerProcess) -> None:
    with server.open_stream(PATH, {**GOOD, "max_output_tokens": 200, "ignore_eos": True}) as reply:
        first = reply.readline() + reply.readline()
    server.wait_metric("octavo:kv_blocks", 0, 2.0, state="held")
    response_id = json.loads(first.partition(b"data: ")[2])["response"]["id"]
    assert server.get(f"{PATH}/{response_id}").status == 404


def test_replies_are_of_the_types_described(repeating: ServerProcess) -> None:
    operation = OPERATIONS["POST", PATH]
    body = {"input": THOUGHT, "tools": TOOLS}
    reply = repeating.post(PATH, body).body
    assert msgspec.to_builtins(msgspec.convert(reply, operation.reply)) == reply
    with repeating.open_stream(PATH, body) as stream:
        frames = stream.read().decode().strip().split("\n\n")
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert msgspec.to_builtins(msgspec.convert(event, operation.event)) == event
