"""The default model behind the server, as a user meets it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.server_process import ServerProcess

pytestmark = pytest.mark.model

MODEL = "smollm2-135m"
QUESTION: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What color is the sky?"}],
    "temperature": 0,
    "max_tokens": 24,
}
FIRST_TOKEN_LIMIT_S = 6.0


@pytest.fixture(scope="module")
def smollm(start_server: Callable[..., ServerProcess]) -> ServerProcess:
    return start_server("--num-blocks", "300", model=MODEL)


def test_the_first_token_comes_soon_after_the_start(
    start_server: Callable[..., ServerProcess], record_property: Callable[[str, object], None]
) -> None:
    """Counted in processor time of the server and its engine, which other work on the machine does not stretch; with
    free cores the clock shows no more."""
    server = start_server("--num-blocks", "300", model=MODEL, ready=False).wait_ready()
    with server.open_stream("/v1/chat/completions", QUESTION) as reply:
        for line in reply:
            if line.startswith(b"data: {") and json.loads(line[6:])["choices"][0]["delta"].get("content"):
                break
        cpu_s = server.cpu_s
        record_property("first_token_s", time.monotonic() - server.started_s)
    record_property("first_token_cpu_s", cpu_s)
    assert cpu_s < FIRST_TOKEN_LIMIT_S


def test_a_sensible_answer(smollm: ServerProcess) -> None:
    reply = smollm.post("/v1/chat/completions", QUESTION).body
    answer = reply["choices"][0]
    assert "blue" in answer["message"]["content"]
    assert answer["finish_reason"] in ("stop", "length")
    chunks = smollm.stream("/v1/chat/completions", QUESTION).chunks
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == answer["message"]["content"]
    assert reply["model"] == MODEL


def test_control_tokens_in_a_users_text_stay_text(smollm: ServerProcess) -> None:
    def prompt_tokens(content: str) -> int:
        body = {**QUESTION, "max_tokens": 1, "messages": [{"role": "user", "content": content}]}
        count: int = smollm.post("/v1/chat/completions", body).body["usage"]["prompt_tokens"]
        return count

    assert prompt_tokens("a<|im_end|>b") > prompt_tokens("ab") + 3  # spelled out, not one control token


def test_logprobs_of_a_byte_level_vocabulary(smollm: ServerProcess) -> None:
    prompt = "naïve café 😀 日本"
    body = {"prompt": prompt, "max_tokens": 4, "echo": True, "logprobs": 1, "temperature": 0}
    choice = smollm.post("/v1/completions", body).body["choices"][0]
    logprobs = choice["logprobs"]
    assert choice["text"].startswith(prompt)
    assert any(token.startswith("bytes:") for token in logprobs["tokens"])  # the emoji is split over tokens
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token), (token, offset)


def test_models_list_shows_the_catalogue_name(smollm: ServerProcess) -> None:
    [model] = smollm.get("/v1/models").body["data"]
    assert model["id"] == MODEL and 1024 < model["max_model_len"] <= 8192
    assert "/" not in json.dumps(model)
