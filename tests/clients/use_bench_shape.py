"""The requests of `vllm bench serve`, field for field, and what its client reads from the answers."""

from __future__ import annotations

import json
import os
import time
import urllib.request

URL, MODEL = os.environ["OCTAVO_URL"], os.environ["OCTAVO_MODEL"]
TOKENS = 96
"""So many that not all are there before the first is read: what nobody has read yet comes in one piece."""
COMPLETION = {
    "model": MODEL,
    "prompt": "Once upon a time",
    "repetition_penalty": 1.0,
    "temperature": 0.0,
    "max_tokens": TOKENS,
    "logprobs": None,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "Name a river."}]}],
    "temperature": 0.0,
    "max_completion_tokens": TOKENS,
    "stream": True,
    "stream_options": {"include_usage": True},
    "ignore_eos": True,
}


def measure(path: str, body: dict) -> tuple[str, int, int]:
    """The text, the tokens that usage counts, and the gaps between pieces."""
    headers = {"Content-Type": "application/json", "Authorization": "Bearer sk-any", "x-request-id": "bench-0"}
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), headers)
    text, tokens, times = "", None, []
    with urllib.request.urlopen(request) as reply:
        assert reply.status == 200 and reply.headers["x-request-id"] == "bench-0"
        for line in reply:
            line = line.decode().strip()
            if not line or line.startswith(":"):
                continue
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                break
            chunk = json.loads(data)
            if choices := chunk.get("choices"):
                piece = choices[0].get("text") or (choices[0].get("delta") or {}).get("content") or ""
                times.append(time.perf_counter())
                text += piece
            if usage := chunk.get("usage"):
                tokens = usage.get("completion_tokens")
    assert tokens is not None, "the output length would have to be guessed"
    return text, tokens, len(times) - 1


for path, body in (("/v1/completions", COMPLETION), ("/v1/chat/completions", CHAT)):
    text, tokens, gaps = measure(path, body)
    assert tokens == TOKENS and text and gaps > 0, (path, text, tokens, gaps)
models = json.load(urllib.request.urlopen(URL + "/v1/models"))
assert models["data"][0]["id"] == MODEL and models["data"][0]["max_model_len"] > 0
assert "vllm:num_requests_running" in urllib.request.urlopen(URL + "/metrics").read().decode()
