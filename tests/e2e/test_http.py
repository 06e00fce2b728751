"""The HTTP surface below the API: routes, keys, bodies, raw sockets."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from octavo.config import HTTPConfig
from octavo.server.anthropic.errors import is_anthropic
from octavo.server.auth import OPEN_PATHS
from octavo.server.page_files import PAGE_FILES
from support.app import served_routes
from support.server_process import ServerProcess, answers_for

KEY = "sk-first-0123456789"
BODY = {"prompt": "Once upon a time", "max_tokens": 2}
ENVELOPE = re.compile(
    rb'\{"error":\{"message":"[^"]+","type":"[a-z_]+","param":(null|"[^"]*"),"code":(null|"[a-z_]+")\}\}'
)


@pytest.fixture(scope="module")
def keyed(start_server: Any) -> ServerProcess:
    """A server with two keys and a small body limit."""
    flags = ("--api-key", KEY, "--api-key", "sk-second", "--max-body-bytes", "20000", "--num-blocks", "40")
    return start_server(*flags)


def auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_every_route_but_the_probes_needs_a_key(keyed: ServerProcess) -> None:
    assert {"/health", "/ready", "/ping"} == OPEN_PATHS
    paths = [route.path.replace("{model_id:path}", "tiny") for route in served_routes()]
    assert {"/v1/completions", "/v1/chat/completions", "/v1/models", "/metrics", "/version"} <= set(paths)
    assert {"/v1/messages", "/v1/files/{file_id}/content", "/v1/batches"} <= set(paths)
    for path in [*paths, "/nothing", "/", "/docs", "/v1"]:
        for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
            for headers in (
                {},
                auth("wrong"),
                auth(KEY[:-1]),
                {"Authorization": KEY},
                {"Authorization": f"Basic {KEY}"},
            ):
                reply = keyed.request(method, path, None, headers)
                if path in OPEN_PATHS or path in PAGE_FILES:
                    assert reply.status in (200, 405), (method, path)
                else:
                    assert reply.status == 401, (method, path, headers)
                    assert reply.headers["www-authenticate"] == "Bearer"
                    if method != "HEAD":
                        assert reply.body["error"]["type"] == "authentication_error"
                        assert is_anthropic(path) or reply.error["code"] == "invalid_api_key"
    for key in (KEY, "sk-second"):
        assert keyed.get("/v1/models", auth(key)).status == 200
        assert keyed.post("/v1/completions", BODY, auth(key)).status == 200


@pytest.mark.parametrize(
    "target",
    [
        "/health/../v1/models",
        "//v1/models",
        "/v1//models",
        "/v1/%6dodels",
        "/health%2f..%2fv1/models",
        "/health?/../v1/models",
        "/v1/models?x=/health",
        "/v1/models/../../health",
        "/%68ealth/",
        "/health;/v1/models",
        "http://x/v1/models",
    ],
)
@pytest.mark.parametrize("host", ["x", "x/health?", "x/#", "/health"])
def test_odd_spellings_open_nothing(keyed: ServerProcess, target: str, host: str) -> None:
    answer = keyed.raw(f"GET {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    assert b'"object":"list"' not in answer and b"owned_by" not in answer
    status = int(answer.split(b" ", 2)[1])
    # A query does not change the path, so the probe itself may answer.
    assert status in (400, 401) or (target.startswith("/health?") and status == 200)


def test_no_such_path_and_no_such_method(server: ServerProcess) -> None:
    assert server.get("/v1/nothing").status == 404
    assert server.get("/v1/nothing").error["code"] == "not_found"
    reply = server.get("/v1/completions")
    assert reply.status == 405 and reply.error["code"] == "method_not_allowed"
    assert reply.headers["allow"] == "POST"
    assert server.post("/v1/models", {}).status == 405
    assert server.get("/v1/models/").status == 404


def test_small_routes(server: ServerProcess) -> None:
    from octavo import __version__

    assert server.get("/health").body == {"status": "ok"}
    assert server.get("/ping").status == server.post("/ping", {}).status == 200
    assert server.get("/version").body == {"version": __version__}
    assert server.get("/metrics").headers["content-type"].startswith("text/plain")
    assert server.metric("vllm:num_requests_running") == 0


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": 1e999}',
        b'{"prompt": "a", "prompt": "b"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b"\xff\xfe{}",
        b'{"prompt": "a"}{}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_malformed_json(server: ServerProcess, path: str, body: bytes) -> None:
    reply = server.post(path, body)
    assert reply.status == 400
    assert ENVELOPE.fullmatch(reply.raw) or reply.error["message"]
    assert b"Traceback" not in reply.raw and not re.search(rb"0x[0-9a-f]{6,}", reply.raw)


def test_wrong_content_types(server: ServerProcess) -> None:
    good = json.dumps(BODY).encode()
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = server.post("/v1/completions", good, {"Content-Type": kind})
        assert reply.status == 415 and reply.error["code"] == "unsupported_media_type"
    assert server.post("/v1/completions", good, {"Content-Type": "application/json; charset=utf-8"}).status == 200


def test_large_bodies_are_refused(keyed: ServerProcess) -> None:
    reply = keyed.post("/v1/completions", {"prompt": "x" * 30_000}, auth(KEY))
    assert reply.status == 413 and reply.error["code"] == "request_too_large"
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    )
    declared = keyed.raw(head.encode() + b"Content-Length: 99999999999\r\nConnection: close\r\n\r\n{")
    assert declared.startswith(b"HTTP/1.1 413") and b"request_too_large" in declared
    chunk = b"2710\r\n" + b"x" * 10_000 + b"\r\n"
    chunked = keyed.raw(head.encode() + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk * 3)
    assert chunked.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n", 400),
        (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", 400),
        (
            b"POST /ping HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST /ping HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 400_000 + b"\r\n\r\n", 431),
        (b"GET /" + b"a" * 400_000, 431),
        (b"GET /health HTTP/1.1\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /health HTTP/1.0\r\nHost: x\r\nHost: y\r\n\r\n", 400),
        (b"POST /ping HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (
            b"POST /ping HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            501,
        ),
    ],
    ids=[
        *("garbage", "tls", "version", "negative", "two-lengths", "smuggling", "bad-chunk", "big-header", "big-path"),
        *("no-host", "two-hosts", "two-hosts-1.0", "gzip-chunked", "gzip-then-chunked"),
    ],
)
def test_raw_sockets(server: ServerProcess, data: bytes, status: int) -> None:
    answer = server.raw(data)
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer[:200]
    assert answer.count(b"HTTP/1.1 ") == 1
    if status >= 400:
        assert ENVELOPE.fullmatch(answer.partition(b"\r\n\r\n")[2]), answer


def test_what_arrives_as_garbage_is_not_logged(start_server: Any) -> None:
    server = start_server("--num-blocks", "40")
    for _ in range(3):
        server.raw(b"GARBAGE\r\n\r\n")
    assert "Invalid HTTP" not in server.log.read_text()


def test_compressed_bodies_are_refused(server: ServerProcess) -> None:
    reply = server.post("/v1/completions", json.dumps(BODY).encode(), {"Content-Encoding": "gzip"})
    assert reply.status == 415 and reply.error["code"] == "unsupported_content_encoding"
    assert "Content-Encoding: gzip" in reply.error["message"] and "identity" in reply.error["message"]
    assert reply.headers["accept-encoding"] == "identity"
    assert server.post("/v1/completions", BODY, {"Content-Encoding": "identity"}).status == 200


@pytest.mark.parametrize("stream", [True, False])
def test_http_1_0_gets_no_chunks(server: ServerProcess, stream: bool) -> None:
    body = json.dumps({**BODY, "temperature": 0, "stream": stream}).encode()
    head = b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    answer_head, _, content = server.raw(head % len(body) + body).partition(b"\r\n\r\n")
    fields = answer_head.lower().split(b"\r\n")
    assert fields[0].endswith(b" 200 ok") and b"connection: close" in fields
    assert not any(field.startswith(b"transfer-encoding") for field in fields)
    if stream:
        assert content.startswith(b"data: {") and content.endswith(b"data: [DONE]\n\n")
    else:
        assert json.loads(content)["usage"]["completion_tokens"] == 2


def test_two_keys_are_ambiguous(keyed: ServerProcess) -> None:
    ask = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s\r\n"
    good, bad = f"Authorization: Bearer {KEY}\r\n".encode(), b"Authorization: Bearer no\r\n"
    bare = f"x-api-key: {KEY}\r\n".encode()
    assert keyed.raw(ask % good).startswith(b"HTTP/1.1 200 ") and keyed.raw(ask % bare).startswith(b"HTTP/1.1 200 ")
    for fields in (good + bad, bad + good, good + good, bare + bare):
        answer = keyed.raw(ask % fields)
        assert answer.startswith(b"HTTP/1.1 401 ") and b"ambiguous" in answer


def test_two_requests_on_one_connection(server: ServerProcess) -> None:
    body = json.dumps(BODY).encode()
    one = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n" % len(
        body
    )
    answer = server.raw(one + b"\r\n" + body + one + b"Connection: close\r\n\r\n" + body)
    assert answer.count(b"HTTP/1.1 200 OK") == 2


def test_request_id_is_echoed_only_when_given(server: ServerProcess) -> None:
    assert "x-request-id" not in server.get("/version").headers
    assert server.get("/version", {"X-Request-Id": "abc-1.2:3_4"}).headers["x-request-id"] == "abc-1.2:3_4"
    for odd in ("a b", "<script>", "x" * 129, "\u00e9"):
        assert "x-request-id" not in server.get("/version", {"X-Request-Id": odd}).headers
    reply = server.post("/v1/completions", BODY, {"X-Request-Id": "mine"})
    assert reply.headers["x-request-id"] == "mine" and "mine" not in reply.body["id"]


def test_one_request_id_for_many_requests(server: ServerProcess) -> None:
    replies: list[Any] = []
    send = lambda: replies.append(server.post("/v1/completions", {**BODY, "temperature": 0}, {"X-Request-Id": "same"}))  # noqa: E731
    threads = [threading.Thread(target=send) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [reply.status for reply in replies] == [200] * 50
    assert len({reply.body["id"] for reply in replies}) == 50
    assert len({reply.body["choices"][0]["text"] for reply in replies}) == 1


def test_metrics_keep_their_size(server: ServerProcess) -> None:
    def names() -> set[str]:
        return {line.rpartition(" ")[0] for line in server.get("/metrics").raw.decode().splitlines()}

    for method, path in (("BREW", "/coffee"), ("GET", "/a"), ("POST", "/b")):
        server.request(method, path)
    before = names()
    for i in range(40):
        server.request("PROPFIND", f"/path/{i}")
        server.request("GET", f"/v1/models/model-{i}")
        server.post("/v1/completions", {**BODY, "model": f"m{i}"})
    new = {name for name in names() - before if "http_requests" not in name}
    assert not new
    assert len([name for name in names() if "http_requests" in name]) < 60


def test_a_full_queue_says_503(start_server: Any) -> None:
    server = start_server("--num-blocks", "40", "--max-num-seqs", "1", "--max-waiting", "2")
    body = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "n": 8}
    replies: list[Any] = []
    threads = [threading.Thread(target=lambda: replies.append(server.post("/v1/completions", body))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [reply for reply in replies if reply.status == 503]
    assert refused and len(refused) < 8
    for reply in refused:
        assert reply.error["code"] == "overloaded" and int(reply.headers["retry-after"]) >= 1
    assert all(reply.body["usage"]["completion_tokens"] == 1600 for reply in replies if reply.status == 200)


def test_nothing_of_a_request_is_logged(start_server: Any) -> None:
    server = start_server("--num-blocks", "40", "--api-key", "sk-MARKER-key")
    headers = {**auth("sk-MARKER-key"), "X-Request-Id": "MARKER-id"}
    salted = {"prompt": "MARKER prompt", "cache_salt": "MARKER-salt", "max_tokens": 2, "user": "MARKER-user"}
    assert server.post("/v1/completions", salted, headers).status == 200
    assert server.post("/v1/completions", b'{"MARKER": ', headers).status == 400
    assert server.post("/v1/completions", {**salted, "temperature": "MARKER"}, headers).status == 400
    assert server.post("/v1/completions", salted, auth("MARKER-wrong")).status == 401
    assert "MARKER" not in server.get("/metrics", headers).raw.decode()
    assert "MARKER" not in server.log.read_text()


def test_defaults_listen_on_this_machine_only() -> None:
    assert HTTPConfig().host == "127.0.0.1"


def test_load_is_that_of_the_moment(server: ServerProcess) -> None:
    body: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True}
    body["n"] = answers_for(server, body, seconds=1, share=1)
    with server.open_stream("/v1/completions", body) as reply:
        reply.readline()
        load = server.get("/load").body
    assert load["server_load"] == 1 and 0 < load["num_running"] + load["num_waiting"] <= body["n"]
    server.wait_metric("octavo:kv_blocks", 0, 5.0, state="held")
    assert server.get("/load").body == {"server_load": 0, "num_running": 0, "num_waiting": 0}


def test_other_protocols(server: ServerProcess) -> None:
    """A WebSocket is refused in our own words; who would rather speak HTTP/2 is answered in HTTP/1.1."""
    ask = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n"
    refused = server.raw(ask % b"websocket")
    assert refused.startswith(b"HTTP/1.1 400 ") and b'"code":"websocket_unsupported"' in refused
    assert server.raw(ask % b"h2c", timeout_s=1).startswith(b"HTTP/1.1 200 ")
    log = server.log.read_text()
    assert "uvicorn[standard]" not in log and "Unsupported upgrade" not in log
