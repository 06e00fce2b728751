"""A runner over HTTP, for `octavo serve`."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Any

from cases.runner import Choice, Outcome
from support.server_process import Events, ServerProcess

ADMIN_KEY = "adm"
ADMIN = {"Authorization": f"Bearer {ADMIN_KEY}"}

PATHS = {False: "/v1/completions", True: "/v1/chat/completions"}


class HTTPRunner:
    """See `runner.Runner`. `vocabulary` are a scripted engine's tokens in the order of their ids."""

    def __init__(self, server: ServerProcess, vocabulary: list[str] | None = None) -> None:
        self.server = server
        self._ids = {token: i for i, token in enumerate(vocabulary or [])}

    @property
    def max_model_len(self) -> int:
        length: int = self.server.get("/v1/models").body["data"][0]["max_model_len"]
        return length

    def complete(
        self, fields: dict[str, Any], *, stream: bool = False, chat: bool = False, client_id: str | None = None
    ) -> Outcome:
        headers = {} if client_id is None else {"X-Request-Id": client_id}
        if stream:
            options = {"stream_options": {"include_usage": True}}
            return _from_events(self.server.stream(PATHS[chat], {**fields, **options}, headers))
        reply = self.server.post(PATHS[chat], fields, headers)
        return _from_body(reply.status, reply.body, reply.took_s)

    def send_raw(self, body: str, *, chat: bool = False) -> Outcome:
        reply = self.server.post(PATHS[chat], body.encode())
        return _from_body(reply.status, reply.body, reply.took_s)

    def leave(self, fields: dict[str, Any], *, stream: bool, after_s: float) -> None:
        body = json.dumps({**fields, "stream": stream}).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        with socket.create_connection(("127.0.0.1", self.server.port)) as sock:
            sock.sendall(head.encode() + b"\r\n\r\n" + body)
            time.sleep(after_s)

    def read_some(self, fields: dict[str, Any], num_chunks: int) -> None:
        with self.server.open_stream("/v1/completions", fields) as reply:
            for _ in range(2 * num_chunks):  # a frame is a line and an empty line
                if not reply.readline():
                    break

    def token_ids(self, tokens: list[str]) -> list[int]:
        return [self._ids[token] for token in tokens]

    def num_held_blocks(self) -> int:
        return int(self.server.metric("octavo:kv_blocks", state="held"))

    def num_computed_tokens(self) -> int:
        return int(self.server.metric("octavo:prompt_tokens_total"))

    def num_running(self) -> int:
        return int(self.server.metric("octavo:num_requests_running"))

    def num_waiting(self) -> int:
        return int(self.server.metric("octavo:num_requests_waiting"))

    def kv_stats(self) -> dict[str, Any]:
        stats: dict[str, Any] = self.server.get("/v1/kv/stats", ADMIN).body
        return stats

    def audit(self) -> list[str]:
        broken: list[str] = self.server.get("/v1/kv/audit", ADMIN).body["broken"]
        return broken

    def counter(self, name: str) -> float:
        return self.server.metric(f"octavo:{name}_total")

    def prompt_logprobs(self, fields: dict[str, Any]) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = self.server.post(PATHS[False], fields).body["choices"][0]["prompt_logprobs"]
        return entries

    def decode(self, token_ids: list[int]) -> str:
        # Echoed behind a letter, so that no space at the start of a text is taken away.
        fields = {"prompt": [68, *token_ids], "echo": True, "max_tokens": 0}
        text: str = self.server.post(PATHS[False], fields).body["choices"][0]["text"]
        return text.removeprefix("A")

    def alive(self) -> bool:
        return self.server.process.poll() is None and self.server.get("/health").status == 200

    def terminate(self) -> None:
        self.server.signal(signal.SIGTERM)

    def wait_exit(self) -> int:
        return self.server.wait_exit()


def _from_body(status: int, body: Any, took_s: float = 0.0) -> Outcome:
    if status != 200:
        return Outcome(status, error=body["error"], took_s=took_s)
    choices = [
        Choice(
            choice["text"] if "text" in choice else choice["message"]["content"],
            choice["finish_reason"],
            choice["stop_reason"],
            choice["logprobs"],
            num_ends=1,
        )
        for choice in body["choices"]
    ]
    return Outcome(status, choices, body["usage"], num_usages=1, took_s=took_s, id=body["id"])


def _from_events(events: Events) -> Outcome:
    if events.status != 200:
        return _from_body(events.status, json.loads(events.raw))
    outcome = Outcome(200)
    by_index: dict[int, Choice] = {}
    for chunk in events.chunks:
        if "error" in chunk:
            outcome.error = chunk["error"]
            continue
        outcome.id = chunk["id"]
        if chunk.get("usage") is not None:
            assert chunk["choices"] == []
            outcome.usage = chunk["usage"]
            outcome.num_usages += 1
        for piece in chunk["choices"]:
            _join(by_index.setdefault(piece["index"], Choice()), piece)
    outcome.choices = [by_index[index] for index in sorted(by_index)]
    return outcome


def _join(choice: Choice, piece: dict[str, Any]) -> None:
    assert choice.finish_reason is None, "a piece came after the end"
    choice.text += piece["text"] if "text" in piece else piece["delta"].get("content") or ""
    if piece["finish_reason"] is not None:
        choice.finish_reason, choice.stop_reason = piece["finish_reason"], piece["stop_reason"]
        choice.num_ends += 1
    if piece["logprobs"] is not None:
        if choice.logprobs is None:
            choice.logprobs = {name: [] for name in piece["logprobs"]}
        for name, values in piece["logprobs"].items():
            choice.logprobs[name] += values
