"""Calls that must be valid, because generation is held to the tools: the default model, which is no good at tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from jsonschema import Draft202012Validator
from openai import OpenAI
from pydantic import BaseModel, Field

from support.server_process import ServerProcess

pytestmark = pytest.mark.model

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "unit": {"enum": ["C", "F"]}, "days": {"type": "integer"}},
    "required": ["city", "unit"],
    "additionalProperties": False,
    "$defs": {"name": {"type": "string", "maxLength": 20}},
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
TIME: Any = {"type": "function", "function": {"name": "get_time"}}
SCHEMAS: dict[str, Any] = {"get_weather": CITY, "get_time": {"type": "object", "maxProperties": 0}}
USER: Any = [{"role": "user", "content": "What is the weather in Paris, and what time is it there?"}]


@pytest.fixture(scope="module")
def default_model(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server("--num-blocks", "400", model="smollm2-135m")


@pytest.fixture(scope="module")
def client(default_model: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{default_model.url}/v1", api_key="unused", max_retries=0, timeout=120) as client:
        yield client


def answers(client: OpenAI, **fields: Any) -> list[tuple[list[tuple[str, str]], str]]:
    """Calls and finish reason, whole and streamed."""
    options: dict[str, Any] = {"model": "smollm2-135m", "messages": USER, "temperature": 0, "max_tokens": 200, **fields}
    [choice] = client.chat.completions.create(**options).choices
    whole = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    streamed: list[list[str]] = []
    reason = ""
    for chunk in client.chat.completions.create(**options, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            if call.id:
                streamed.append([call.function.name, ""])
            streamed[call.index][1] += call.function.arguments
        reason = chunk.choices[0].finish_reason or reason
    return [(whole, choice.finish_reason), ([(name, text) for name, text in streamed], reason)]


def check(calls: list[tuple[str, str]]) -> None:
    for name, arguments in calls:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(arguments))


def test_required_calls_are_valid(client: OpenAI) -> None:
    for parallel in (False, True):
        for seed in range(3):
            fields = {"temperature": 1, "seed": seed, "max_tokens": 300}
            (calls, reason), streamed = answers(
                client, tools=[WEATHER, TIME], tool_choice="required", parallel_tool_calls=parallel, **fields
            )
            assert streamed == (calls, reason) and calls
            if reason == "length":
                calls = calls[:-1]
            else:
                assert reason == "tool_calls"
            check(calls)
            assert parallel or len(calls) <= 1


def test_a_named_call_is_valid(client: OpenAI) -> None:
    for name in SCHEMAS:
        choice: Any = {"type": "function", "function": {"name": name}}
        (calls, reason), streamed = answers(client, tools=[WEATHER, TIME], tool_choice=choice)
        assert streamed == (calls, reason)
        assert [call for call, _ in calls] == [name] and reason == "stop"
        check(calls)


def test_a_required_call_cut_anywhere_says_length(client: OpenAI) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    [(full, reason), _] = answers(client, **fields)
    assert reason == "tool_calls"
    for limit in (1, 2, 5, 9, 14, 20):
        (calls, reason), streamed = answers(client, max_tokens=limit, **fields)
        assert (calls, reason) == streamed and reason == "length"
        assert all(full[0][1].startswith(arguments) for _, arguments in calls)


def led_to_call() -> list[Any]:
    """Examples that get even this model to call, with arguments that the schema forbids."""
    messages: Any = []
    for city in ("Rome", "Oslo", "Lima"):
        function = {"name": "get_weather", "arguments": json.dumps({"place": city})}
        messages += [
            {"role": "user", "content": f"The weather in {city}?"},
            {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
            {"role": "tool", "tool_call_id": "c", "content": "sunny"},
            {"role": "assistant", "content": "Sunny."},
        ]
    return [*messages, {"role": "user", "content": "The weather in Paris?"}]


def test_strict_tools_hold_the_calls_that_the_model_chooses_to_make(client: OpenAI) -> None:
    messages = led_to_call()
    free = answers(client, messages=messages, tools=[WEATHER])
    assert free[0][0] and "unit" not in json.loads(free[0][0][0][1]), "the examples no longer lead the model"
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    (calls, reason), streamed = answers(client, messages=messages, tools=[strict])
    assert calls and reason == "tool_calls" and streamed == (calls, reason)
    check(calls)


def test_beside_a_format_for_the_answer_the_model_may_still_call(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    format: Any = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": True}}
    options: Any = {"response_format": format, "tools": [WEATHER], "parallel_tool_calls": False}
    (calls, reason), streamed = answers(client, messages=led_to_call(), **options)
    assert len(calls) == 1 and reason == "tool_calls" and streamed == (calls, reason)
    check(calls)
    plain = client.chat.completions.create(
        model="smollm2-135m", messages=USER, temperature=0, logit_bias={"44": -100}, **options
    ).choices[0]  # 44 is "<": no call can begin
    assert plain.finish_reason == "stop" and plain.message.tool_calls is None
    Draft202012Validator(schema).validate(json.loads(plain.message.content or ""))


def test_the_clients_own_parsing(client: OpenAI) -> None:
    """`parse` with a type for the answer, and with strict tools made from types."""

    class Place(BaseModel):
        city: str = Field(max_length=20)
        days: int

    answer = client.chat.completions.parse(
        model="smollm2-135m", messages=USER, response_format=Place, temperature=0, max_tokens=100
    )
    assert isinstance(answer.choices[0].message.parsed, Place)
    tool: Any = openai.pydantic_function_tool(Place, name="look_up")
    called = client.chat.completions.parse(
        model="smollm2-135m",
        messages=USER,
        tools=[tool],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    calls = called.choices[0].message.tool_calls
    assert calls and all(isinstance(call.function.parsed_arguments, Place) for call in calls)


def test_a_schema_that_is_none_is_refused(client: OpenAI) -> None:
    named = {"type": "function", "function": {"name": "f"}}
    inside = {"type": "object", "properties": {"a": {"type": "foo"}}}
    for parameters, choice, param in (
        (inside, "required", "tools"),
        (inside, named, "tools[0].function.parameters"),
        ({"type": "array"}, "required", "tools[0].function.parameters.type"),
        ({"type": "string"}, named, "tools[0].function.parameters.type"),
    ):
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": parameters}}
        with pytest.raises(openai.BadRequestError) as caught:
            answers(client, tools=[tool], tool_choice=choice)
        assert caught.value.param == param
    with pytest.raises(openai.BadRequestError) as caught:
        answers(client, tools=[WEATHER], tool_choice="required", extra_body={"guided_regex": "a"})
    assert caught.value.param == "guided_regex"
