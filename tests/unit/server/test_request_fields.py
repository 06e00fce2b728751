"""Request fields: types, bounds, and refusal by name of what would change the answer."""

from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.errors import RequestError
from octavo.messages import SamplingParams
from octavo.server.anthropic.protocol import MessagesRequest
from octavo.server.openai.chat import chat_params
from octavo.server.openai.completions import completion_params, split_prompts
from octavo.server.openai.errors import reply_to
from octavo.server.openai.fields import REFUSED_CHAT, REFUSED_COMPLETION
from octavo.server.openai.messages import plain_messages
from octavo.server.openai.protocol import CompletionRequest, convert, parse_chat, parse_completion

HTTP = HTTPConfig()
USER = [{"role": "user", "content": "hi"}]


def call(arguments: Any = "{}", name: str = "f") -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}


def completion(**fields: Any) -> SamplingParams:
    return completion_params(parse_completion({"prompt": "x", **fields}, HTTP)[0])


def chat(**fields: Any) -> SamplingParams:
    return chat_params(parse_chat({"messages": USER, **fields}, HTTP)[0])


def test_defaults_are_openais() -> None:
    assert completion() == SamplingParams(max_tokens=16)
    assert chat() == SamplingParams(max_tokens=None)


def test_null_means_the_default() -> None:
    fields = dict.fromkeys(["n", "temperature", "top_p", "stop", "logit_bias", "seed", "logprobs", "stream", "user"])
    assert completion(**fields) == completion()
    assert chat(**fields, max_completion_tokens=None) == chat()


def test_every_sampling_field_reaches_the_sampler() -> None:
    given = {
        "n": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "presence_penalty": 0.3,
        "frequency_penalty": -0.2,
        "repetition_penalty": 1.2,
        "seed": 5,
        "stop_token_ids": [3, 4],
        "ignore_eos": True,
        "min_tokens": 2,
        "max_tokens": 9,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 1,
    }
    wanted = SamplingParams(**{**given, "stop": ("a", "b"), "logit_bias": {5: 2.0}})
    rest = {"stop": ["a", "b"], "logit_bias": {"5": 2}}
    assert completion(**given, **rest) == wanted
    assert chat(**given, **rest) == wanted


def test_integers_may_be_written_with_a_point() -> None:
    given = {"max_tokens": 2.0, "n": 2.0, "top_k": -1.0, "seed": 7e0, "stop_token_ids": [3.0, 4], "priority": -0.0}
    asked = parse_completion({"prompt": [[5.0, 6]], "temperature": 1.0, **given}, HTTP)[0]
    assert (asked.max_tokens, asked.n, asked.top_k, asked.seed, asked.priority) == (2, 2, -1, 7, 0)
    assert (asked.stop_token_ids, asked.prompt) == ([3, 4], [[5, 6]])
    exact = [asked.max_tokens, asked.n, asked.seed, *(asked.stop_token_ids or [])]
    assert all(type(value) is int for value in exact) and type(asked.temperature) is float
    for name, value in (("max_tokens", 2.5), ("seed", 1e400), ("n", 0.1), ("logit_bias", 2.0), ("stop", 2.0)):
        with pytest.raises(RequestError) as caught:
            completion(**{name: value})
        assert caught.value.param == name


def test_chat_limits_and_logprobs_are_spelled_in_two_ways() -> None:
    assert chat(max_completion_tokens=5).max_tokens == 5
    assert chat(max_tokens=5, max_completion_tokens=5).max_tokens == 5
    assert chat(logprobs=True).logprobs == 0
    assert chat(logprobs=True, top_logprobs=3).logprobs == 3
    assert chat(logprobs=False).logprobs is None
    assert completion(logprobs=0).logprobs == 0
    assert completion(logprobs=2, echo=True).prompt_logprobs == 2
    assert completion(echo=True).prompt_logprobs is None


@pytest.mark.parametrize("name", sorted(REFUSED_COMPLETION))
def test_completions_refuse_what_would_change_the_answer(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**{name: "something else"})
    assert caught.value.param == name
    assert reply_to(caught.value).code == "unsupported_parameter"
    for harmless in REFUSED_COMPLETION[name]:
        assert completion(**{name: harmless}) == completion()


@pytest.mark.parametrize("name", sorted(REFUSED_CHAT))
def test_chat_refuses_what_would_change_the_answer(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat(**{name: "something else"})
    assert caught.value.param == name
    assert reply_to(caught.value).code == "unsupported_parameter"
    for harmless in REFUSED_CHAT[name]:
        assert chat(**{name: harmless}) == chat()


def test_best_of_draws_more_than_it_returns_but_not_in_a_stream() -> None:
    for parse in (completion, chat):
        params = parse(best_of=3, n=2)
        assert (params.n, params.best_of) == (2, 3)
        assert parse(best_of=2, n=2, stream=True).best_of == 2
        for fields in (
            {"best_of": 1, "n": 2},
            {"best_of": 129},
            {"best_of": 0},
            {"best_of": 3, "n": 2, "stream": True},
        ):
            with pytest.raises(RequestError) as caught:
                parse(**fields)
            assert caught.value.param == "best_of"
        assert reply_to(caught.value).code == "unsupported_parameter"


def test_beams_are_asked_for_in_two_ways() -> None:
    for parse in (completion, chat):
        given = parse(beam_width=4, n=2, length_penalty=0.5, early_stopping="never")
        assert (given.beam_width, given.n, given.length_penalty, given.early_stopping) == (4, 2, 0.5, "never")
        old = parse(use_beam_search=True, n=3, early_stopping=True)
        assert (old.beam_width, old.n, old.early_stopping) == (3, 3, True)
        assert parse(use_beam_search=False, length_penalty=1, early_stopping=False) == parse()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 65}, "beam_width"),
        ({"beam_width": 2, "n": 3}, "n"),
        ({"beam_width": 2, "best_of": 2}, "best_of"),
        ({"beam_width": 2, "stop": ["x"]}, "stop"),
        ({"beam_width": 2, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"beam_width": 2, "echo": True, "logprobs": 1}, "echo"),
        ({"beam_width": 2, "use_beam_search": False}, "use_beam_search"),
        ({"beam_width": 2, "early_stopping": "soon"}, "early_stopping"),
        ({"beam_width": 2, "length_penalty": 1e9}, "length_penalty"),
        ({"length_penalty": 2.0}, "length_penalty"),
        ({"early_stopping": True}, "early_stopping"),
    ],
)
def test_what_does_not_go_with_beams_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        completion(**fields)
    assert caught.value.param == param


def test_unknown_fields_are_named_for_the_log() -> None:
    body = {"prompt": "x", "user": "u", "metadata": {"a": "b"}, "store": True, "frobnicate": 1}
    assert parse_completion(body, HTTP)[1] == ["frobnicate"]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (None, "prompt"),
        ([], "prompt"),
        (["a", 1], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        (["a"] * 1025, "prompt"),
    ],
)
def test_bad_prompt_lists_are_named(prompt: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        split_prompts(prompt, 1024)
    assert caught.value.param == param


def test_the_four_kinds_of_prompts() -> None:
    assert split_prompts("a", 9) == [("prompt", "a")]
    assert split_prompts([1, 2], 9) == [("prompt", [1, 2])]
    assert split_prompts(["a", "b"], 9) == [("prompt[0]", "a"), ("prompt[1]", "b")]
    assert split_prompts([[1], [2, 3]], 9) == [("prompt[0]", [1]), ("prompt[1]", [2, 3])]


def test_message_content_may_be_parts() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "developer", "content": "x"}, {"role": "user", "content": parts, "name": "ann"}]
    assert plain_messages(messages) == [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": "one\ntwo", "name": "ann"},
    ]


def test_calls_and_their_results_reach_the_template_as_it_wants_them() -> None:
    messages = [
        {"role": "assistant", "content": None, "reasoning": "Hm", "tool_calls": [call('{"a": [1]}'), call("", "g")]},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
    ]
    plain_calls = [call({"a": [1]}), call({}, "g")]
    assert plain_messages(messages) == [
        {"role": "assistant", "content": "", "reasoning_content": "Hm", "thinking": "Hm", "tool_calls": plain_calls},
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    ]


@pytest.mark.parametrize("fields", [{}, {"content": None}, {"content": []}, {"content": None, "tool_calls": []}])
def test_an_assistant_who_said_nothing_is_an_empty_answer(fields: dict[str, Any]) -> None:
    assert plain_messages([{"role": "assistant", **fields}]) == [{"role": "assistant", "content": ""}]


@pytest.mark.parametrize("cut", ['{"city": "Par', "{'a'", "{", "Paris"])
def test_arguments_that_are_no_json_stay_text(cut: str) -> None:
    plain = plain_messages([{"role": "assistant", "content": None, "tool_calls": [call(cut)]}])
    assert plain == [{"role": "assistant", "content": "", "tool_calls": [call(cut)]}]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        (None, "messages"),
        ([], "messages"),
        ([{}], "messages[0].role"),
        ([{"role": "root", "content": "x"}], "messages[0].role"),
        ([{"role": 7, "content": "x"}], "messages[0].role"),
        ([{"role": "function", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": None}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([*USER, {"role": "user", "content": [5]}], "messages[1].content[0]"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": None}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 5}], "messages[0].name"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{}]}], "messages[0].tool_calls[0]"),
        ([{"role": "system", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": None, "tool_calls": 7}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [call(name="")]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "tool_calls": [call("[1]")]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [call(7)]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [call("[" * 99999)]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [{**call(), "id": 7}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "user", "content": "x", "tool_calls": [call()]}], "messages[0].tool_calls"),
        ([{"role": "tool", "tool_call_id": 7, "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": None}], "messages[0].content"),
        ([{"role": "assistant", "content": "x", "reasoning": 7}], "messages[0].reasoning"),
        ([{"role": "user", "content": [{"type": "refusal", "refusal": 7}]}], "messages[0].content[0].refusal"),
    ],
)
def test_bad_messages_are_named(messages: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        plain_messages(messages)
    assert caught.value.param == param


def test_template_kwargs_have_an_allow_list() -> None:
    assert parse_chat({"messages": USER, "chat_template_kwargs": {"enable_thinking": False}}, HTTP)
    for name in ("tokenize", "messages", "chat_template", "tools", "add_generation_prompt", "return_dict", "x" * 999):
        with pytest.raises(RequestError, match="is not allowed"):
            parse_chat({"messages": USER, "chat_template_kwargs": {name: True}}, HTTP)
    for value in ([1], {"a": 1}, "x" * 10_000):
        with pytest.raises(RequestError) as caught:
            parse_chat({"messages": USER, "chat_template_kwargs": {"thinking": value}}, HTTP)
        assert caught.value.param == "chat_template_kwargs.thinking"


@pytest.mark.parametrize(
    ("kind", "body", "message"),
    [
        (MessagesRequest, {}, "model: is missing"),
        (MessagesRequest, {"model": "m", "messages": [{"role": "user"}]}, "messages[0].content: is missing"),
        (CompletionRequest, {"logit_bias": {"7": 1, "5": None}}, 'logit_bias["5"]: expected float, got null'),
        (CompletionRequest, {"logit_bias": {"5": []}}, 'logit_bias["5"]: expected float, got array'),
        (CompletionRequest, {"logit_bias": {"5": True}}, 'logit_bias["5"]: expected float, got bool'),
    ],
)
def test_a_wrong_entry_and_a_missing_field_are_named(kind: Any, body: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError) as caught:
        convert(body, kind)
    assert str(caught.value) == message and caught.value.param == message.partition(": ")[0]
