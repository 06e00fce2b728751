"""/tokenize, /detokenize, /ready, /load, and what /openapi.json promises of replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import OpenAI

from octavo.server.openapi.operations import OPERATIONS
from support.server_process import ServerProcess, answers_for

TEXTS = ("Once upon a time", "<s>Hi", "</s> a", "<s>  b", "\ttab", "naïve 🦜", " " * 9, "<|im_end|>", "漢字")
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello</s><s>"}]


def tokenize(server: ServerProcess, **body: Any) -> dict[str, Any]:
    reply = server.post("/tokenize", body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = reply.body
    return answer


@pytest.mark.parametrize("text", TEXTS)
def test_a_text_has_the_ids_of_a_prompt(server: ServerProcess, text: str) -> None:
    """Asked of the server itself: logprobs of the echoed prompt have one entry per token."""
    told = tokenize(server, prompt=text, return_token_strs=True)
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) and told["max_model_len"] == 256
    body = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
    echoed = server.post("/v1/completions", body).body
    assert echoed["usage"]["prompt_tokens"] == told["count"]
    assert echoed["choices"][0]["logprobs"]["tokens"] == told["token_strs"]
    assert told["tokens"].count(1) == 1, "one begin-of-sequence token, whether the text brings it or not"


@pytest.mark.parametrize("text", [text for text in TEXTS if "s>" not in text])
def test_there_and_back(server: ServerProcess, text: str) -> None:
    """But for control tokens: this tokenizer puts a space behind them."""
    tokens = tokenize(server, prompt=text, add_special_tokens=False)["tokens"]
    assert server.post("/detokenize", {"tokens": tokens}).body == {"prompt": text}


def test_special_tokens(server: ServerProcess) -> None:
    bare = tokenize(server, prompt="Hello", add_special_tokens=False)["tokens"]
    assert tokenize(server, prompt="Hello")["tokens"] == [1, *bare]
    assert server.post("/detokenize", {"tokens": [1, *bare]}).body["prompt"].startswith("<s>")
    skipped = server.post("/detokenize", {"tokens": [1, *bare], "skip_special_tokens": True}).body["prompt"]
    assert skipped.strip() == "Hello"
    assert tokenize(server, prompt="", add_special_tokens=False)["tokens"] == []
    assert server.post("/detokenize", {"tokens": []}).body == {"prompt": ""}


def test_messages_have_the_ids_of_a_chat(server: ServerProcess) -> None:
    """The user's spellings of control tokens are text here too."""
    told = tokenize(server, messages=MESSAGES)
    chat = server.post("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 1}).body
    assert chat["usage"]["prompt_tokens"] == told["count"]
    assert 2 not in told["tokens"]
    begun = [*MESSAGES, {"role": "assistant", "content": "Well"}]
    more = tokenize(server, messages=begun, continue_final_message=True)
    continued = {"messages": begun, "continue_final_message": True, "max_tokens": 1}
    assert server.post("/v1/chat/completions", continued).body["usage"]["prompt_tokens"] == more["count"]
    assert more["count"] > told["count"]
    closed = tokenize(server, messages=MESSAGES, add_generation_prompt=False)["tokens"]
    assert told["tokens"][: len(closed)] == closed and len(closed) < told["count"]


def test_tools_are_part_of_the_prompt(server: ServerProcess) -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    alone, told = (tokenize(server, messages=MESSAGES, **given)["tokens"] for given in ({}, {"tools": tools}))
    text = server.post("/detokenize", {"tokens": told}).body["prompt"]
    assert len(told) > len(alone) and '{"name": "f"}' in text


def test_a_long_text_is_tokenized_whole(server: ServerProcess) -> None:
    text = "Once upon a time. " * 20_000
    told = tokenize(server, prompt=text, add_special_tokens=False)
    assert told["count"] > 20_000
    assert server.post("/detokenize", {"tokens": told["tokens"]}).body["prompt"] == text


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "a", "add_special_tokens": "yes"}, "add_special_tokens"),
        ("/tokenize", {"prompt": "a", "return_token_strs": 1}, "return_token_strs"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": MESSAGES, "chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x"),
        ("/tokenize", {"messages": [{"role": "boss", "content": ""}]}, "messages[0].role"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": 5}, "messages"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": None}, "tokens"),
        ("/detokenize", {"tokens": "1"}, "tokens"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [512]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**62]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1.5]}, "tokens[0]"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
        ("/detokenize", {"tokens": [1], "skip_special_tokens": "no"}, "skip_special_tokens"),
        ("/detokenize", {"tokens": [1], "model": 5}, "model"),
    ],
)
def test_bad_requests_are_refused_by_name(server: ServerProcess, path: str, body: Any, param: str) -> None:
    reply = server.post(path, body)
    assert reply.status == (404 if body.get("model") == "other" else 400)
    assert reply.error["param"] == param


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/tokenize", {"prompt": "x" * 9_000_000}, "prompt: has 9000000 characters"),
        ("/tokenize", {"messages": [{"role": "user", "content": "x" * 9_000_000}]}, "messages has 9000000 characters"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "<s>" * 3_000_000}]},
            "messages has 9000000 characters",
        ),
        ("/detokenize", {"tokens": [5] * ((1 << 20) + 1)}, "tokens: has 1048577 ids"),
    ],
)
def test_what_no_context_holds_is_refused_before_any_work(
    server: ServerProcess, path: str, body: Any, message: str
) -> None:
    reply = server.post(path, body)
    assert reply.status == 400
    assert reply.body["error"]["message"].startswith(message)


def test_probes(server: ServerProcess) -> None:
    assert server.get("/ready").body == {"status": "ok"}
    assert server.get("/load").body == {"server_load": 0, "num_running": 0, "num_waiting": 0}
    body: dict[str, Any] = {"prompt": "Once", "max_tokens": 200, "ignore_eos": True}
    body["n"] = answers_for(server, body, seconds=1, share=1)
    with server.open_stream("/v1/completions", body) as stream:
        stream.read(1)
        assert server.get("/load").body["server_load"] == 1


def test_not_ready_while_the_queue_is_full(start_server: Any) -> None:
    server = start_server("--num-blocks", "40", "--max-waiting", "1", "--max-num-seqs", "1")
    body = {"prompt": "Once", "max_tokens": 250, "ignore_eos": True}
    with server.open_stream("/v1/completions", body) as first, server.open_stream("/v1/completions", body):
        assert first.status == 200
        reply = server.get("/ready")
        if reply.status == 200:  # the first has ended already
            assert server.get("/load").body["server_load"] < 2
        else:
            assert reply.status == 503 and reply.error["code"] == "overloaded" and reply.headers["retry-after"]
        assert server.get("/health").status == 200


CHAT = {"messages": MESSAGES, "max_tokens": 3}
COMPLETION = {"prompt": "Once", "max_tokens": 3}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", CHAT),
        ("POST", "/v1/completions", COMPLETION),
        ("GET", "/v1/models", None),
        ("POST", "/tokenize", {"prompt": "a", "return_token_strs": True}),
        ("POST", "/detokenize", {"tokens": [1]}),
        ("GET", "/health", None),
        ("GET", "/load", None),
        ("GET", "/version", None),
    ],
)
def test_replies_are_of_the_types_described(server: ServerProcess, method: str, path: str, body: Any) -> None:
    operation = OPERATIONS[method, path]
    reply = server.request(method, path, body).body
    assert msgspec.to_builtins(msgspec.convert(reply, operation.reply)) == reply
    if operation.event is not None:
        events = server.stream(path, {**body, "stream_options": {"include_usage": True}}).chunks
        assert [msgspec.to_builtins(msgspec.convert(event, operation.event)) for event in events] == events


def test_the_description_is_served(server: ServerProcess, client: OpenAI) -> None:
    document = server.get("/openapi.json").body
    assert document["openapi"] == "3.1.0"
    assert "/v1/chat/completions" in document["paths"]


def test_templates_get_what_the_server_gives_where_requests_say_nothing(start_server: Any, tmp_path: Path) -> None:
    template = tmp_path / "kwargs.jinja"
    template.write_text("{{ messages[-1].content }}{% if enable_thinking %} yes{% else %} no{% endif %}")
    flags = ("--default-chat-template-kwargs", '{"enable_thinking": true}', "--chat-template", str(template))
    server = start_server("--num-blocks", "40", *flags)
    for kwargs, text in ((None, "Hi yes"), ({"enable_thinking": False}, "Hi no"), ({"thinking": False}, "Hi yes")):
        body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": kwargs}
        ids = server.post("/tokenize", body).body["tokens"]
        assert server.post("/detokenize", {"tokens": ids}).body["prompt"] == text
