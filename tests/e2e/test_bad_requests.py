"""Every field with every kind of bad value: a 4xx that names the field, quickly, and nothing else changes."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from support.server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once upon a time", "max_tokens": 6, "temperature": 0},
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 6, "temperature": 0},
}
HUGE = 10**30
NUMBER: list[Any] = [True, "1", [], {}, "nan", HUGE * 10**300, -1e308]
INTEGER: list[Any] = [True, "1", 1.5, [], {}, -(2**63) - 1, HUGE]
BOOLEAN: list[Any] = ["yes", 1, 0, [], {}]
TEXT: list[Any] = [5, [], {}, True]

COMMON: dict[str, list[Any]] = {
    "model": TEXT,
    "stream": BOOLEAN,
    "stream_options": [True, "x", [], {"include_usage": "yes"}, {"include_usage": True}],
    "n": [*INTEGER, 0, -1, 129, 10**9],
    "max_tokens": [*INTEGER, -1, 2**31, 2**63, 100_000],
    "min_tokens": [*INTEGER, -1, 7, 10**9],
    "temperature": [*NUMBER, -0.1, 1e308],
    "top_p": [*NUMBER, 0, -0.1, 1.1, 1e-300],
    "top_k": [*INTEGER, -2],
    "min_p": [*NUMBER, -0.1, 1.1],
    "presence_penalty": [*NUMBER, -2.1, 2.1],
    "frequency_penalty": [*NUMBER, -2.1, 2.1],
    "repetition_penalty": [*NUMBER, 0, -1, 101, 1e-300],
    "seed": [*INTEGER, 2**63, 10**20, "100"],
    "stop": [5, True, {}, [5], [None], [""], "", ["x"] * 65, "x" * 1025],
    "stop_token_ids": [5, "x", {}, ["x"], [1.5], [-1], [512], [2**62], [1] * 1025],
    "ignore_eos": BOOLEAN,
    "logit_bias": [
        5,
        "x",
        [],
        {"5": "x"},
        {"5": 101},
        {"abc": 1},
        {"-1": 1},
        {"512": 1},
        {"1e3": 1},
        {"5": True},
        {"05": 1, "5": 2},
    ],
    "include_stop_str_in_output": BOOLEAN,
    "skip_special_tokens": BOOLEAN,
    "prompt_logprobs": [*INTEGER, -1, 21, 10**9],
    "priority": [*INTEGER, 2**31],
    "user": TEXT,
    "metadata": [5, "x", []],
    "cache_salt": [*TEXT, "", "x" * 257, "a\x00b", "a\nb", "\x7f", "\x85"],
    "best_of": [*INTEGER, 0, 129],
    "beam_width": [*INTEGER, 0, 65],
    "length_penalty": [*NUMBER, 2.0],
    "early_stopping": ["soon", 1, [], {}, True, "never"],
    "response_format": [{"type": "json_schema"}, {"type": "xml"}, {}, "text", 5],
    "use_beam_search": ["yes", 1, 0, [], {}],
    "bad_words": [[""], "x", [5], ["x" * 1025], ["x" * 1024] * 65],
    "allowed_token_ids": [[], [-1], [1 << 31], [True], ["1"], 1],
    "guided_json": [{"type": "foo"}, 5, []],
    "structured_outputs": [{}, {"json": ""}, {"regex": "("}, {"regex": "a", "choice": ["a"]}, "a"],
    "truncate_prompt_tokens": [5],
    "kv_transfer_params": [{}],
}
OWN: dict[str, dict[str, list[Any]]] = {
    COMPLETIONS: {
        "prompt": [
            None,
            5,
            True,
            {},
            [],
            "",
            [""],
            ["a", ""],
            [[]],
            [[1], []],
            ["a", 1],
            [1.5],
            [True],
            [-1],
            [512],
            [2**62],
            [None],
            [[1, "a"]],
            ["a"] * 1025,
            [1] * 300,
            "word " * 400,
            "x" * 1000000,
        ],
        "logprobs": [*INTEGER, -1, 21, 10**9],
        "echo": BOOLEAN,
        "suffix": ["tail", 5],
    },
    CHAT: {
        "messages": [
            None,
            5,
            "x",
            {},
            [],
            [5],
            [{}],
            [{"role": "user"}],
            [{"role": "boss", "content": "x"}],
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}],
            [{"role": "user", "content": "word " * 400}],
            [{"role": 5, "content": "x"}],
        ],
        "logprobs": BOOLEAN,
        "top_logprobs": [*INTEGER, -1, 21, 5],
        "max_completion_tokens": [*INTEGER, -1, 0, 5, 2**31],
        "add_generation_prompt": BOOLEAN,
        "chat_template_kwargs": [5, "x", [], {"tokenize": True}, {"messages": []}, {"thinking": {}}],
        "tools": [[{"type": "function", "function": {"name": 7}}], [{"type": "x"}], [{}], [5], "f", 5],
        "tool_choice": ["required", {"type": "function"}],
        "functions": [[{"name": "f"}]],
        "audio": [{"voice": "x"}],
        "modalities": [["text", "audio"]],
        "chat_template": ["{{ 1 }}"],
        "echo": [True],
    },
}
TABLE = [(path, field, values) for path in (COMPLETIONS, CHAT) for field, values in {**COMMON, **OWN[path]}.items()]
LIMIT_S = 0.25
ALSO_NAMED = {"max_completion_tokens": {"max_tokens"}, "min_tokens": {"max_tokens"}}
"""Other fields that an error may name, where two disagree."""


@pytest.fixture(scope="module")
def good_answers(server: ServerProcess) -> dict[str, Any]:
    return {path: server.post(path, body).body["choices"] for path, body in GOOD.items()}


@pytest.mark.parametrize(("path", "field", "values"), TABLE, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_values_are_refused_by_name(
    server: ServerProcess, good_answers: dict[str, Any], path: str, field: str, values: list[Any]
) -> None:
    for value in values:
        reply = server.post(path, {**GOOD[path], field: value})
        shown = repr(value)[:60]
        assert 400 <= reply.status < 500, (field, shown, reply.status)
        error = reply.error
        named = (error["param"] or "").split("[")[0].split(".")[0]
        assert named in {field, *ALSO_NAMED.get(field, ())} or field in error["message"], (field, shown, error)
        assert len(error["message"]) < 400, (field, shown)
        took = min(reply.took_s, server.post(path, {**GOOD[path], field: value}).took_s)
        assert took < LIMIT_S, (field, shown, took)
    assert server.post(path, GOOD[path]).body["choices"] == good_answers[path]


def test_neighbours_of_bad_requests_are_not_disturbed(server: ServerProcess) -> None:
    """A stream that runs while hundreds of bad requests come in gives the same text as alone."""
    body = {"prompt": "Once upon a time", "max_tokens": 200, "temperature": 0, "ignore_eos": True}

    def text() -> str:
        return "".join(chunk["choices"][0]["text"] for chunk in server.stream(COMPLETIONS, body).chunks)

    alone = text()
    neighbours: list[str] = []
    threads = [threading.Thread(target=lambda: neighbours.append(text())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for path, field, values in TABLE:
        if field in ("prompt", "logit_bias", "stop_token_ids", "n", "seed", "messages"):
            for value in values:
                assert 400 <= server.post(path, {**GOOD[path], field: value}).status < 500
    for thread in threads:
        thread.join()
    assert neighbours == [alone] * 4


def test_unsupported_fields_say_so(server: ServerProcess) -> None:
    error = server.post(CHAT, {**GOOD[CHAT], "audio": {"voice": "x"}}).error
    assert error["param"] == "audio" and error["code"] == "unsupported_parameter"
    assert "not supported yet" in error["message"]


def test_unknown_fields_are_ignored(server: ServerProcess, good_answers: dict[str, Any]) -> None:
    reply = server.post(COMPLETIONS, {**GOOD[COMPLETIONS], "frobnicate": {"a": [1]}, "store": True})
    assert reply.body["choices"] == good_answers[COMPLETIONS]


def test_at_the_edges_good_values_work(server: ServerProcess) -> None:
    for fields in (
        {"temperature": -0.0},
        {"top_k": -1},
        {"top_k": 9_999_999},
        {"top_p": 1},
        {"stop": ["x"] * 64},
        {"logit_bias": {"511": -100, "0": 100}},
        {"seed": -1},
        {"seed": 2**63 - 1},
        {"logprobs": 20},
        {"n": 1, "best_of": 1},
        {"n": 2, "best_of": 3},
        {"cache_salt": "\u00e9 \U0001f512" * 85},
        {"max_tokens": 0, "echo": True},
    ):
        reply = server.post(COMPLETIONS, {**GOOD[COMPLETIONS], **fields})
        assert reply.status == 200, (fields, reply.raw)
