"""What /v1/responses and /v1/messages ask of the chat below them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import RequestError
from octavo.server.anthropic.protocol import CountRequest, MessagesRequest
from octavo.server.anthropic.routes import CountTokens, Messages
from octavo.server.anthropic.translate import chat_body as body_of_messages
from octavo.server.anthropic.translate import field_name
from octavo.server.openai.chat import chat_params
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.fields import (
    IGNORED_MESSAGES,
    REFUSED_COUNT,
    REFUSED_MESSAGES,
    REFUSED_RESPONSES,
    REFUSED_TOKENIZE,
    Refused,
)
from octavo.server.openai.protocol import convert
from octavo.server.responses.items import Conversation
from octavo.server.responses.protocol import ResponsesRequest
from octavo.server.responses.routes import Responses
from octavo.server.responses.store import ResponseStore
from octavo.server.responses.translate import chat_body as body_of_responses
from octavo.server.responses.translate import namer
from octavo.server.tokens import Tokenize
from octavo.server.translated import renamed

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}


def conversation(*items: dict[str, Any]) -> Conversation:
    made = Conversation()
    for i, item in enumerate(items):
        made.add(item, f"input[{i}]")
    return made


def test_what_the_assistant_does_in_a_row_is_one_message() -> None:
    made = conversation(
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes."}]},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'},
        {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "1"},
        {"role": "assistant", "content": "A."},
        {"role": "assistant", "content": "B."},
    )
    second = {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert made.messages == [
        {"role": "user", "content": "Hi"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": [{"type": "output_text", "text": "Yes."}],
            "tool_calls": [CALL, second],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "assistant", "content": "A."},
        {"role": "assistant", "content": "B."},
    ]
    assert made.places == ["input[0]", "input[1]", "input[5]", "input[6]", "input[7]"]


def test_the_fields_of_a_response_are_those_of_a_chat() -> None:
    request = convert(
        {
            "model": "m",
            "input": "Hi",
            "max_output_tokens": 5,
            "temperature": 0.5,
            "stream": True,
            "seed": 3,
            "stop": ["x"],
            "top_logprobs": 2,
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}],
            "tool_choice": {"type": "function", "name": "f"},
            "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
            "reasoning": {"effort": "none"},
        },
        ResponsesRequest,
    )
    said = conversation({"role": "user", "content": "Hi"})
    assert body_of_responses(request, said) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "stream": True,
        "seed": 3,
        "stop": ["x"],
        "logprobs": True,
        "top_logprobs": 2,
        "tools": [
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": {}, "strict": True}}
        ],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "reasoning_effort": "none",
        "chat_template_kwargs": {"enable_thinking": False},
    }


def test_the_fields_of_a_message_are_those_of_a_chat() -> None:
    request = convert(
        {
            "model": "m",
            "max_tokens": 50,
            "system": [{"type": "text", "text": "Be"}, {"type": "text", "text": "kind."}],
            "messages": [
                {"role": "user", "content": "Hi"},
                {"role": "user", "content": [{"type": "text", "text": "there"}]},
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "Hm."},
                        {"type": "redacted_thinking", "data": "x"},
                        {"type": "text", "text": "Yes."},
                        {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
                    ],
                },
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "Before"},
                        {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                        {"type": "tool_result", "tool_use_id": "c1"},
                        {"type": "text", "text": "After"},
                    ],
                },
                {"role": "assistant", "content": "Begun"},
            ],
            "stop_sequences": ["x"],
            "thinking": {"type": "enabled", "budget_tokens": 20},
            "tools": [{"name": "f", "input_schema": {}, "strict": True}],
            "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
            "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
            "metadata": {"user_id": "u"},
        },
        MessagesRequest,
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
    assert body_of_messages(request) == {
        "model": "m",
        "max_completion_tokens": 50,
        "messages": [
            {"role": "system", "content": "Be\nkind."},
            {"role": "user", "content": "Hi\nthere"},
            {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm.", "tool_calls": [call]},
            {"role": "user", "content": "Before"},
            {"role": "tool", "tool_call_id": "c1", "content": "1"},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
            {"role": "user", "content": "After"},
            {"role": "assistant", "content": "Begun"},
        ],
        "continue_final_message": True,
        "stop": ["x"],
        "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": 20},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}, "strict": True}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "output", "schema": {"type": "object"}, "strict": True},
        },
        "user": "u",
    }


def test_counting_needs_no_limit_and_thinks_only_when_asked() -> None:
    request = convert({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}, CountRequest)
    assert body_of_messages(request) == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "chat_template_kwargs": {"enable_thinking": False},
    }


@pytest.mark.parametrize(
    ("field", "anthropic", "openai"),
    [
        ("max_completion_tokens", "max_tokens", "max_output_tokens"),
        ("tools[3].function.name", "tools[3].name", "tools[3].name"),
        ("tools[0].function.parameters", "tools[0].input_schema", "tools[0].parameters"),
        ("stop", "stop_sequences", "stop"),
        ("response_format.json_schema.schema", "output_config.format", "text.format.schema"),
        ("messages[1].content", "messages", "input[1].content"),
        ("messages", "messages", "input"),
        ("temperature", "temperature", "temperature"),
    ],
)
def test_errors_name_the_fields_that_clients_know(field: str, anthropic: str, openai: str) -> None:
    said = conversation({"role": "user", "content": "a"}, {"role": "user", "content": "b"})
    for name_of, name in ((field_name, anthropic), (namer(said), openai)):
        for error in (RequestError(field, 5, "other"), UnsupportedFieldError(field)):
            with pytest.raises(type(error)) as caught, renamed(name_of):
                raise error
            assert caught.value.param == name
            assert str(caught.value) in (f"{name} = 5: must be other", f"{name} is not supported yet")


CONTEXT: Any = SimpleNamespace(http=HTTPConfig())
READERS: dict[str, tuple[Callable[[dict[str, Any]], tuple[Any, list[str]]], dict[str, Any], Refused]] = {
    "responses": (Responses(CONTEXT, ResponseStore(1 << 20)).parse, {"input": "Hi"}, REFUSED_RESPONSES),
    "messages": (
        Messages(CONTEXT).parse,
        {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]},
        REFUSED_MESSAGES,
    ),
    "count_tokens": (
        CountTokens(CONTEXT).parse,
        {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        REFUSED_COUNT,
    ),
    "tokenize": (Tokenize(CONTEXT).parse, {"prompt": "Hi"}, REFUSED_TOKENIZE),
}


@pytest.mark.parametrize(("api", "name"), [(api, name) for api, (_, _, refused) in READERS.items() for name in refused])
def test_what_would_change_an_answer_is_refused_by_every_api(api: str, name: str) -> None:
    read, body, refused = READERS[api]
    with pytest.raises(UnsupportedFieldError) as caught:
        read({**body, name: "something else"})
    assert caught.value.param == name
    for harmless in refused[name]:
        assert read({**body, name: harmless})[1] == []


@pytest.mark.parametrize("api", READERS)
def test_what_no_api_knows_is_reported(api: str) -> None:
    read, body, _ = READERS[api]
    assert read({**body, "no_such_field": 1})[1] == ["no_such_field"]


@pytest.mark.parametrize("name", sorted(name for name in IGNORED_MESSAGES if "." not in name))
def test_labels_of_messages_are_neither_unknown_nor_refused(name: str) -> None:
    for api in ("messages", "count_tokens"):
        read, body, _ = READERS[api]
        assert read({**body, name: None})[1] == []


def test_responses_may_be_held_to_a_grammar() -> None:
    read, body, _ = READERS["responses"]
    asked, unknown = read({**body, "structured_outputs": {"regex": "a+"}, "skip_special_tokens": False})
    assert unknown == []
    params = chat_params(asked.chat)
    assert params.structured_outputs is not None and params.structured_outputs.regex == "a+"
    assert not params.skip_special_tokens
    with pytest.raises(RequestError) as caught:
        read({**body, "structured_outputs": {"regex": "a+"}, "text": {"format": {"type": "json_object"}}})
    assert caught.value.param == "structured_outputs"


def test_messages_have_a_salt_and_words_for_the_template() -> None:
    read, body, _ = READERS["messages"]
    (_, chat), unknown = read({**body, "cache_salt": "s", "chat_template_kwargs": {"enable_thinking": True}})
    assert (unknown, chat.cache_salt, chat.chat_template_kwargs) == ([], "s", {"enable_thinking": True})
    assert read(body)[0][1].chat_template_kwargs == {"enable_thinking": False}
