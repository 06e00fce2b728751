"""Limits of connections, time and tenants on a real server; TLS, a Unix domain socket, other origins."""

from __future__ import annotations

import json
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from support.server_process import TINY_TEMPLATE, ServerProcess

BODY = {"prompt": "Once upon a time", "max_tokens": 2}
LONG: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 230, "ignore_eos": True, "temperature": 0}
ORIGIN = "https://pages.example"


def key(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.fixture(scope="module")
def strict(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> ServerProcess:
    """Short times, few connections, two tenants; its flags come from a file."""
    folder = tmp_path_factory.mktemp("strict")
    (folder / "keys").write_text("alice sk-alice\nbob sk-bob max_requests=1\n")
    (folder / "serve.yaml").write_text(
        f"api-key-file: {folder / 'keys'}\nadmin-api-key: adm\nread-timeout: 0.5\nwrite_timeout: 0.5\n"
        f"max-connections: 40\nmax_header_bytes: 4K\nallowed-origins: ['{ORIGIN}']\nnum-blocks: 600\n"
        "max-list: 5\nmax-stop: 3\nmax-prompt-tokens: 60\nenforce-eager: true\nmax-n: 1024\n"
    )
    server: ServerProcess = start_server("--config", str(folder / "serve.yaml"))
    return server


def read_all(sock: socket.socket) -> bytes:
    received = b""
    while piece := sock.recv(1 << 16):
        received += piece
    return received


@pytest.mark.parametrize("begun", [b"", b"GET /hea", b"\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nX: y"])
def test_a_request_that_does_not_arrive_is_given_up(strict: ServerProcess, begun: bytes) -> None:
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as sock:
        sock.sendall(begun)
        begin = time.monotonic()
        answer = read_all(sock)
    assert 0.4 < time.monotonic() - begin < 5
    assert answer.startswith(b"HTTP/1.1 408 ") and b'"code":"request_timeout"' in answer


def test_a_body_has_longer(strict: ServerProcess) -> None:
    body = json.dumps(BODY).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-alice\r\nContent-Length: %d\r\n\r\n"
    with socket.create_connection(("127.0.0.1", strict.port), timeout=10) as sock:
        sock.sendall(head % len(body) + body[:5])
        time.sleep(1.0)
        sock.sendall(body[5:])
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 200 ")


def test_a_reader_that_stalls_is_dropped_and_its_work_ends(strict: ServerProcess) -> None:
    body = json.dumps({**LONG, "n": 60, "stream": True, "logprobs": 20}).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer sk-alice\r\nContent-Length: %d\r\n\r\n"
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", strict.port))
        sock.sendall(head % len(body) + body)
        assert sock.recv(100).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + 10
        while load(strict) > 0 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert load(strict) == 0, "the stream waits for its reader for ever"
        assert b"[DONE]" not in read_all(sock), "it was sent whole: the test stalled nothing"
    assert strict.get("/v1/kv/stats", key("adm")).body["num_held_blocks"] == 0


def load(server: ServerProcess) -> int:
    """Requests under way."""
    under_way: int = server.get("/load", key("sk-alice")).body["server_load"]
    return under_way


def test_there_are_only_so_many_connections(strict: ServerProcess) -> None:
    idle = [socket.create_connection(("127.0.0.1", strict.port)) for _ in range(40)]
    try:
        answer = strict.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1" in answer and b"--max-connections" in answer
    finally:
        for sock in idle:
            sock.close()
    deadline = time.monotonic() + 5
    while strict.raw(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")[9:12] != b"200":
        assert time.monotonic() < deadline, "connections that ended still count"


def test_requests_sent_ahead_are_bounded(strict: ServerProcess) -> None:
    answer = strict.raw(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3000, timeout_s=3)
    assert answer.count(b"HTTP/1.1 ") <= 130
    assert strict.get("/health").status == 200


def test_limits_name_their_flags(strict: ServerProcess) -> None:
    for fields, flag in (
        ({"stop": ["a"] * 4}, "--max-stop"),
        ({"stop_token_ids": [1] * 6}, "--max-list"),
        ({"logit_bias": {str(i): 1 for i in range(6)}}, "--max-list"),
        ({"prompt": ["Once upon a time, there was a little girl"] * 20}, "--max-prompt-tokens"),
        ({"prompt": [1] * 61}, "--max-prompt-tokens"),
        ({"n": 1025}, "--max-n"),
        ({"logprobs": 21}, "--max-logprobs"),
    ):
        reply = strict.post("/v1/completions", {**BODY, **fields}, key("sk-alice"))
        assert reply.status == 400 and flag in reply.error["message"], (fields, reply.raw)
    long_header = strict.get("/health", {"X": "a" * 5000})
    assert long_header.status == 431 and "--max-header-bytes" in long_header.error["message"]


def test_each_tenant_has_an_account_and_a_limit(strict: ServerProcess) -> None:
    assert strict.post("/v1/completions", {**BODY, "prompt": "Once " * 40}, key("sk-alice")).status == 200
    own = strict.get("/v1/kv/stats", key("sk-bob")).body["accounts"]
    assert [account["tenant"] for account in own] in ([], ["bob"])
    assert {a["tenant"] for a in strict.get("/v1/kv/stats", key("adm")).body["accounts"]} >= {"alice"}
    with strict.open_stream("/v1/completions", {**LONG, "n": 60}, key("sk-bob")) as reply:
        assert reply.status == 200
        refused = strict.post("/v1/completions", BODY, key("sk-bob"))
        assert refused.status == 429 and refused.error["code"] == "too_many_requests"
        assert refused.headers["retry-after"] == "1"
        assert strict.get("/v1/models", key("sk-bob")).status == 200
        assert strict.post("/v1/completions", BODY, key("sk-alice")).status == 200


def test_x_api_key_opens_too(strict: ServerProcess) -> None:
    assert strict.get("/v1/models", {"x-api-key": "sk-bob"}).status == 200
    assert strict.get("/v1/models", {"x-api-key": "sk-bo"}).status == 401
    assert strict.get("/v1/models", {"x-api-key": "sk-bob", "Authorization": "Bearer no"}).status == 401


def test_other_origins_are_let_in_by_name(strict: ServerProcess, server: ServerProcess) -> None:
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = strict.request("OPTIONS", "/v1/completions", None, {"Origin": ORIGIN, **asks})
    assert preflight.status == 200 and preflight.headers["access-control-allow-origin"] == ORIGIN
    stranger = strict.request("OPTIONS", "/v1/completions", None, {"Origin": "https://other.example", **asks})
    assert stranger.status == 400 and "access-control-allow-origin" not in stranger.headers
    for headers in ({"Origin": ORIGIN}, {"Origin": ORIGIN, **key("sk-alice")}):
        reply = strict.get("/v1/models", headers)
        assert reply.headers["access-control-allow-origin"] == ORIGIN, "a page must be able to read a 401, too"
    for headers in ({"Origin": ORIGIN}, {"Origin": ORIGIN, **asks}):
        reply = server.request("OPTIONS", "/v1/models", None, headers)
        assert reply.status == 405 and not [name for name in reply.headers if name.startswith("access-control")]


def test_deadlines_and_queued_tokens(start_server: Any) -> None:
    server: ServerProcess = start_server(
        *("--request-timeout", "1", "--num-blocks", "400", "--max-num-seqs", "1", "--max-queued-tokens", "100")
    )
    late = server.post("/v1/completions", {**LONG, "n": 100})
    assert late.status == 504 and late.error["code"] == "deadline_exceeded" and late.took_s < 10
    events = server.stream("/v1/completions", {**LONG, "n": 100})
    assert events.frames[-1] == "[DONE]" and json.loads(events.frames[-2])["error"]["code"] == "deadline_exceeded"
    replies: list[Any] = []
    asked = {**LONG, "prompt": "Once upon a time there was " * 8, "max_tokens": 100}
    threads = [threading.Thread(target=lambda: replies.append(server.post("/v1/completions", asked))) for _ in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [reply for reply in replies if reply.status == 503]
    assert refused and all("--max-queued-tokens" in reply.error["message"] for reply in refused)
    server.wait_metric("octavo:kv_blocks", 0, 2.0, state="held")
    assert server.post("/v1/completions", BODY).status == 200


def test_https_and_a_socket_file(start_server: Any, tmp_path: Path) -> None:
    key_file, certificate, path = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "octavo.sock"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    made += ["-keyout", str(key_file), "-out", str(certificate), "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run(made, check=True, capture_output=True)
    flags = ("--ssl-keyfile", str(key_file), "--ssl-certfile", str(certificate), "--num-blocks", "40")
    flags += ("--chat-template", str(TINY_TEMPLATE))
    server: ServerProcess = start_server(*flags, "--uds", str(path), ready=False)
    trust = ssl.create_default_context(cafile=str(certificate))
    request = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    body = json.dumps({**BODY, "stream": True}).encode()
    deadline = time.monotonic() + 60
    while "is ready" not in server.log.read_text():
        assert time.monotonic() < deadline and server.process.poll() is None, server.log.read_text()
        time.sleep(0.05)
    with socket.socket(socket.AF_UNIX) as plain:
        plain.connect(str(path))
        with trust.wrap_socket(plain, server_hostname="localhost") as sock:
            sock.sendall(request % len(body) + body)
            answer = read_all(sock)
    assert answer.startswith(b"HTTP/1.1 200 OK") and b"data: [DONE]" in answer
    shown = server.log.read_text()
    line = re.search(r"^curl .*$", shown, re.MULTILINE)
    assert line and f"is ready on {path}." in shown
    if shutil.which("curl"):
        pasted = subprocess.run(["sh", "-c", line[0]], capture_output=True, text=True, timeout=60, check=True).stdout
        assert "data: [DONE]" in pasted
    server.stop()
    assert not path.exists()
