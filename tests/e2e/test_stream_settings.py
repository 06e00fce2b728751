"""What the operator of a server sets for all requests: sampling defaults, and how streams are sent."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic import Anthropic
from openai import OpenAI

from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess

PROMPT = "Once upon a time"
USER: Any = [{"role": "user", "content": PROMPT}]
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "repetition_penalty": 1}
START = Callable[..., ServerProcess]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, of makers who want it greedy, not repeating itself, and brief."""
    folder = tmp_path_factory.mktemp("model") / "tiny"
    shutil.copytree(TINY_MODEL, folder)
    path = folder / "generation_config.json"
    wanted = {"temperature": 0.0, "repetition_penalty": 4.0, "max_new_tokens": 12}
    path.write_text(json.dumps(json.loads(path.read_text()) | wanted))
    return folder


@pytest.fixture(scope="module")
def changed(start_server: START, model: Path) -> ServerProcess:
    """All four settings at once."""
    flags = ("--enable-force-include-usage", "--stream-interval", "7", "--sse-keep-alive-interval", "0.2")
    named = ("--served-model-name", "tiny", "--chat-template", str(TINY_TEMPLATE))
    return start_server(*flags, *named, model=model)


@pytest.fixture(scope="module")
def openai(changed: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{changed.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def text_of(server: ServerProcess, path: str = "/v1/completions", **fields: Any) -> str:
    prompt = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": USER}
    reply = server.post(path, {**prompt, **fields})
    assert reply.status == 200, reply.raw
    choice = reply.body["choices"][0]
    text: str = choice["text"] if path == "/v1/completions" else choice["message"]["content"]
    return text


def test_what_a_request_leaves_out_is_the_models(server: ServerProcess, changed: ServerProcess) -> None:
    wish: dict[str, Any] = {"temperature": 0, "repetition_penalty": 4.0}
    for path in ("/v1/completions", "/v1/chat/completions"):
        own = text_of(server, path, **wish, max_tokens=12)
        assert text_of(changed, path) == own
        assert text_of(changed, path, **GREEDY, max_tokens=30) == text_of(server, path, **GREEDY, max_tokens=30)
    assert text_of(changed) != text_of(server, temperature=0, max_tokens=12), "the penalty makes no difference"
    said = server.post("/v1/responses", {"input": PROMPT, "max_output_tokens": 12, **wish}).body
    unsaid = changed.post("/v1/responses", {"input": PROMPT}).body
    assert unsaid["temperature"] == 0 and unsaid["usage"]["output_tokens"] == 12
    assert unsaid["output"][0]["content"] == said["output"][0]["content"]
    with Anthropic(base_url=changed.url, api_key="unused") as client:
        message: Any = client.messages.create(model="tiny", max_tokens=12, messages=USER)
    assert message.content[0].text == text_of(server, "/v1/chat/completions", **wish, max_tokens=12)


def test_an_operators_limit_is_for_all(start_server: START) -> None:
    override = json.dumps({"max_new_tokens": 5, "temperature": 0})
    capped = start_server("--generation-config", "vllm", "--override-generation-config", override)
    body = {"prompt": PROMPT, "max_tokens": 50, "ignore_eos": True}
    reply = capped.post("/v1/completions", body).body
    assert reply["usage"]["completion_tokens"] == 5 and reply["choices"][0]["finish_reason"] == "length"
    with Anthropic(base_url=capped.url, api_key="unused") as client:
        message = client.messages.create(model="tiny", max_tokens=50, messages=USER)
    assert message.stop_reason == "max_tokens"


def test_a_bad_value_ends_the_start(start_server: START) -> None:
    server = start_server("--override-generation-config", '{"top_p": 3}', ready=False)
    assert server.wait_exit() != 0
    assert "override_generation_config.top_p = 3: must be above 0" in server.log.read_text()


def test_streams_end_with_usage_unasked(changed: ServerProcess, openai: OpenAI) -> None:
    for chunks in (
        changed.stream("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, **GREEDY}).chunks,
        changed.stream("/v1/chat/completions", {"messages": USER, "max_tokens": 4, **GREEDY}).chunks,
    ):
        assert [chunk["usage"] for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] == 4
    last = list(openai.chat.completions.create(model="tiny", messages=USER, stream=True, max_tokens=3))[-1]
    assert last.usage is not None and last.usage.completion_tokens == 3


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_few_events_hold_the_same_text(server: ServerProcess, changed: ServerProcess, path: str) -> None:
    body: dict[str, Any] = {"n": 2, "seed": 3, "max_tokens": 50, **GREEDY, "temperature": 1}
    body |= {"prompt": PROMPT} if path == "/v1/completions" else {"messages": USER}
    texts = []
    for one in (server, changed):
        pieces: dict[int, list[str]] = {0: [], 1: []}
        for chunk in one.stream(path, body).chunks:
            for choice in chunk["choices"]:
                text = choice["text"] if path == "/v1/completions" else choice["delta"].get("content")
                if text:
                    pieces[choice["index"]].append(text)
        texts.append({index: "".join(parts) for index, parts in pieces.items()})
        if one is changed:
            assert all(2 <= len(parts) <= 9 for parts in pieces.values()), pieces
    assert texts[0] == texts[1]


def test_the_other_apis_stream_as_few(server: ServerProcess, changed: ServerProcess) -> None:
    texts = []
    for one in (server, changed):
        with OpenAI(base_url=f"{one.url}/v1", api_key="unused") as client:
            wish: Any = {"max_output_tokens": 50, "temperature": 0, "extra_body": GREEDY}
            most = 0
            for _ in range(5):  # what comes while the reader is behind comes together
                events = list(client.responses.create(model="tiny", input=PROMPT, stream=True, **wish))
                said = [event.delta for event in events if event.type == "response.output_text.delta"]
                assert events[-1].type == "response.incomplete"
                most = max(most, len(said))
        assert most <= 9 if one is changed else most > 20
        texts.append("".join(said))
    assert texts[0] == texts[1]
    with Anthropic(base_url=changed.url, api_key="unused") as claude:
        ask: Any = {"model": "tiny", "messages": USER, "max_tokens": 50}
        parts = list(claude.messages.create(stream=True, **ask))
        whole: Any = claude.messages.create(**ask)
    deltas = [part.delta.text for part in parts if part.type == "content_block_delta"]
    assert "".join(deltas) == whole.content[0].text
    assert 2 <= len(deltas) <= 2 + whole.usage.output_tokens / 7


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_stream_that_must_wait_is_kept_alive(changed: ServerProcess, path: str) -> None:
    """The engine's process is stopped before the request comes, so nothing is known for a while."""
    body: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "temperature": 0}
    if path == "/v1/responses":
        body = {"model": "tiny", "max_output_tokens": 40, "temperature": 0, "input": PROMPT}
    else:
        body |= {"prompt": PROMPT} if path == "/v1/completions" else {"messages": USER}
    [engine] = changed.engine_pids
    begin = time.monotonic()
    stop(engine)
    try:
        with changed.open_stream(path, body) as reply:
            assert reply.status == 200
            assert [reply.readline() for _ in range(4)] == [b": keep-alive\n", b"\n"] * 2
            assert time.monotonic() - begin > 0.35
            go_on(engine)
            rest = reply.read().replace(b": keep-alive\n\n", b"")
    finally:
        go_on(engine)
    events = [block for block in rest.decode().split("\n\n") if block]
    assert all(event.startswith(("data: ", "event: ")) for event in events)
    assert events[-1] == "data: [DONE]" or "message_stop" in events[-1] or "response.incomplete" in events[-1]


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def go_on(pid: int) -> None:
    os.kill(pid, signal.SIGCONT)
