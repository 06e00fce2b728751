"""Bytes on a socket that are almost, or not at all, HTTP."""

from __future__ import annotations

import json
import random

from fuzz.request import Request
from fuzz.values import GOOD

_SNIPPETS = [
    *(b"\r\n", b"\n", b"\0", b" ", b":", b"\xff" * 9, b"HTTP/1.1", b"HTTP/9.9", b"%2e%2e/", b"//", b"?" * 50, b"#"),
    *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n"),
    *(
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: gzip\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
    ),
    *(b"Expect: 100-continue\r\n", b"X: " + b"a" * 70_000 + b"\r\n", b"Host: a\r\nHost: b\r\n", b" folded\r\n"),
    *(b"Content-Type: multipart/form-data; boundary=x\r\n", b"Content-Encoding: gzip\r\n", b"zz\r\n", b"ffffffff\r\n"),
]
_WHOLE = [
    *(
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GARBAGE\r\n\r\n",
        b"\r\n" * 100,
    ),
    *(
        b"GET / HTTP/1.1\r\n\r\n" * 50,
        b"\0" * 1000,
        b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
        b"GET  /  HTTP/1.1\r\n\r\n",
    ),
    *(
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    ),
    *(b"GET /%ff%00%zz HTTP/1.1\r\nHost: x\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n", b"get /health http/1.1\r\n\r\n"),
]


def raw_requests(rng: random.Random, count: int, key: str) -> list[Request]:
    """So many, some of which hang up midway."""
    made = []
    for _ in range(count):
        raw = rng.choice(_WHOLE) if rng.random() < 0.15 else _bent(rng, _good(rng, key))
        closes_after = rng.randint(0, len(raw)) if rng.random() < 0.3 else None
        made.append(Request(raw=raw, closes_after=closes_after, what="raw"))
    return made


def _good(rng: random.Random, key: str) -> bytes:
    path = rng.choice([*sorted(GOOD), "/health", "/v1/models", "/metrics"])
    body = json.dumps({**GOOD[path], "stream": rng.random() < 0.5}).encode() if path in GOOD else b""
    lines = [f"{'POST' if body else 'GET'} {path} HTTP/1.1", "Host: x", f"Authorization: Bearer {key}"]
    if body and rng.random() < 0.3:
        lines += ["Content-Type: application/json", "Transfer-Encoding: chunked"]
        half = len(body) // 2
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:])) + b"0\r\n\r\n"
    elif body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode() + body


def _bent(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data) + 1)
        line = data.find(b"\r\n", at)
        match rng.randrange(4):
            case 0:
                data[at : at + rng.randint(1, 20)] = b""
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 10))
            case 2:
                data[at:at] = rng.choice(_SNIPPETS)
            case 3 if line >= 0:
                data[line + 2 : line + 2] = rng.choice(_SNIPPETS)
    return bytes(data)
