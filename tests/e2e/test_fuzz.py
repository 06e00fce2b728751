"""A few hundred of the bad requests that `make fuzz-quick` sends by the thousand. Each run draws others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fuzz.request import Request
from fuzz.run import FLAGS, KEY, LIMIT_S, Client, Findings, check, check_raw, run
from support.server_process import ServerProcess


@pytest.mark.parametrize(("count", "env"), [(600, {}), (200, {"PYTHONOPTIMIZE": "1"})], ids=["plain", "optimised"])
def test_bad_requests_are_borne(count: int, env: dict[str, str], start_server: Any, tmp_path: Path) -> None:
    server: ServerProcess = start_server(*FLAGS, "--files-dir", str(tmp_path), env=env)
    number = random.SystemRandom().getrandbits(32)
    found = run(server, random.Random(number), count)
    assert not found.problems, f"seed {number}, {count} requests:\n" + "\n".join(found.problems[:10])
    assert sum(found.statuses.values()) > count * 0.9 and found.statuses[400] > count * 0.3, found
    assert found.p99_s < LIMIT_S, found


@pytest.mark.parametrize(
    ("status", "body", "kind", "why"),
    [
        (
            500,
            b'{"error": {"message": "internal server error", "code": "internal_error"}}',
            "application/json",
            "unplanned",
        ),
        (400, b'{"error": {"message": "at 0x7f3a12b45678"}}', "application/json", "insides"),
        (400, b"Bad Request", "text/plain", "without the envelope"),
        (404, b'{"detail": "Not Found"}', "application/json", "without the envelope"),
        (200, b'data: {"error": {"code": "internal_error"}}\n\n', "text/event-stream", "an error of ours"),
    ],
)
def test_the_run_notices(status: int, body: bytes, kind: str, why: str) -> None:
    found = Findings()
    check(status, body, 0.01, Request(), found, kind)
    assert len(found.problems) == 1 and why in found.problems[0]


@pytest.mark.parametrize(
    ("received", "why"),
    [
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n{}", "unplanned 500"),
        (b'HTTP/1.1 501 Not Implemented\r\n\r\n{"error":{"code":"internal_error"}}', "unplanned 501"),
        (b"<html>Bad Request</html>", "not a reply"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\nTraceback", "insides"),
    ],
)
def test_the_run_notices_bad_replies_to_bytes(received: bytes, why: str) -> None:
    found = Findings()
    check_raw(received, Request(), found)
    assert len(found.problems) == 1 and why in found.problems[0]


def test_a_transfer_coding_that_nobody_knows_is_a_planned_501() -> None:
    found = Findings()
    check_raw(
        b'HTTP/1.1 501 Not Implemented\r\n\r\n{"error":{"code":"unsupported_transfer_encoding"}}', Request(), found
    )
    assert not found.problems and found.statuses == {501: 1}


def test_no_reply_is_noticed() -> None:
    found = Findings()
    Client(1).send(Request("GET", "/health", headers={"Authorization": KEY}), found)
    assert "no reply" in found.problems[0]
