"""The engine process dies under a running server."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

from support.server_process import ServerProcess

BODY: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "seed": 3}


def kill_engine(server: ServerProcess) -> None:
    [pid] = server.engine_pids
    os.kill(pid, signal.SIGKILL)


def test_clients_see_a_pause_and_not_an_error(start_server: Any) -> None:
    """Killed in the midst of a stream, the engine comes back and the stream goes on, token for token."""
    server = start_server("--num-blocks", "100")
    whole = server.post("/v1/completions", BODY).body["choices"][0]
    text, frames = "", 0
    with server.open_stream("/v1/completions", BODY) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            frames += 1
            if frames == 2:
                kill_engine(server)
            chunk = json.loads(line.removeprefix(b"data: "))
            text += chunk["choices"][0]["text"]
    assert text == whole["text"]
    assert server.get("/health").status == 200
    assert server.post("/v1/completions", BODY).body["choices"][0] == whole


def test_an_engine_that_keeps_dying_makes_the_server_unhealthy(start_server: Any) -> None:
    server = start_server("--num-blocks", "100")
    begin = time.monotonic()
    while server.get("/health").status == 200:
        assert time.monotonic() - begin < 60
        for pid in server.engine_pids:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    assert server.get("/health").error["code"] == "engine_dead"
    reply = server.post("/v1/completions", BODY)
    assert reply.status == 500 and reply.error["code"] == "engine_dead"
    assert server.get("/ping").status == 200
    assert server.metric("octavo:engine_up") == 0
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0


def test_an_answer_with_a_grammar_goes_on_in_the_new_engine(start_server: Any) -> None:
    server = start_server("--num-blocks", "100")
    body = {
        "prompt": "Once",
        "max_tokens": 200,
        "seed": 4,
        "structured_outputs": {"regex": r"([A-Z][a-z]{2,9}\. ){25}"},
    }
    whole = server.post("/v1/completions", body).body["choices"][0]
    text, frames = "", 0
    with server.open_stream("/v1/completions", body) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            frames += 1
            if frames == 2:
                kill_engine(server)
            chunk = json.loads(line.removeprefix(b"data: "))
            text += chunk["choices"][0]["text"]
    assert text == whole["text"] and len(text) > 100
