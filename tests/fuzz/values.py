"""Values that have broken servers, and bodies that they are put into."""

from __future__ import annotations

import json
import random
from typing import Any

from fuzz.request import Request, posted

GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Once upon a time", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "model": "tiny"},
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "Hello"}], "model": "tiny"},
    "/tokenize": {"prompt": "Once upon a time"},
    "/detokenize": {"tokens": [1, 2, 3]},
    "/v1/kv/published": {"name": "fuzz", "text": "Once upon a time there was a little girl who liked to play. " * 2},
}

NUMBERS = [
    *(-(2**63) - 1, -(2**63), -(2**31) - 1, -1, 0, 1, 2, 20, 21, 64, 65, 128, 129, 255, 256, 257, 512, 1024, 1025),
    *(2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30),
    *(-0.0, 0.5, 1.0, 1.5, -1.5, 1e-300, 1e308, -1e308, 5e-324),
]
TEXTS = [
    *("", " ", "1", "0x10", "nan", "true", "null", "a\0b", "\u202eabc", "\ud7ff\ufffd\ufffe", "é" * 300, "x" * 70_000),
    *("../../etc/passwd", "/etc/passwd", "%s%n%x", "{{7*7}}", "{% for i in range(10**9) %}{% endfor %}", "${jndi:x}"),
    *("<|im_start|>system", "<|endoftext|>", "</s>", "```", "(a+)+b", "(", "[", 'root ::= "', '{"type": "foo"}'),
    *("auto", "none", "required", "json", "text", "user", "assistant", "system", "tool", "default", "(public)"),
]
NESTED: list[Any] = [
    *(
        [],
        [[]],
        [None],
        [""],
        ["a", 1],
        [1, "a"],
        [-1],
        [512],
        [2**62],
        [True],
        [1.5],
        ["a"] * 2000,
        [0] * 3000,
        [[1]] * 50,
    ),
    *({}, {"": ""}, {"type": "foo"}, {"type": "object", "pattern": "["}, {"a": {"b": {"c": [{}]}}}, {"__proto__": 1}),
    *({"512": 1}, {"-1": 1}, {"0": 101}, {"type": "json_schema", "json_schema": {"schema": {"type": "foo"}}}),
    *(
        {"type": "json_object"},
        {"type": "function", "function": {"name": ""}},
        {"include_usage": 1},
        {"regex": "(a+)+b"},
    ),
]
NESTED += [{"regex": "(a+)+b"}, {"json": ""}, {"grammar": 'root ::= "'}, {"choice": []}, {"json_object": False}]
NESTED += [{"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "string", "pattern": "["}}}]
PLAIN: list[Any] = [True, False, None]
RAW = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "9" * 5000,
    '"\\ud800"',
    '"\\u0000"',
    "[" * 70 + "]" * 70,
    "01",
    "+1",
    ".5",
]
"""JSON, or what only looks like it, that `json.dumps` cannot say."""

EXTRA = ["structured_outputs", "response_format", "tools", "tool_choice", "cache_salt", "chat_template_kwargs", "lora"]


def fields_of(schema: dict[str, Any], path: str) -> list[str]:
    """The names in the body of a POST, by the server's own description."""
    content = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    name = content["$ref"].rsplit("/", 1)[-1] if "$ref" in content else None
    described = schema["components"]["schemas"][name] if name else content
    return sorted(described.get("properties", {}))


def json_paths(schema: dict[str, Any]) -> list[str]:
    """Paths that take a JSON object."""
    posts = {path: item["post"] for path, item in schema["paths"].items() if "post" in item}
    return sorted(
        p for p, post in posts.items() if "application/json" in post.get("requestBody", {}).get("content", {})
    )


def matrix(schema: dict[str, Any], rng: random.Random, count: int) -> list[Request]:
    """So many of all pairs of a field and a value, at random, some with a second bad field."""
    pairs: list[tuple[str, str, Any, str | None]] = []
    for path in json_paths(schema):
        for name in [*fields_of(schema, path), *EXTRA]:
            pairs += [(path, name, value, None) for value in (*NUMBERS, *TEXTS, *NESTED, *PLAIN)]
            pairs += [(path, name, None, raw) for raw in RAW]
    chosen = rng.sample(pairs, min(count, len(pairs)))
    return [_placed(schema, rng, *pair) for pair in chosen]


def _placed(schema: dict[str, Any], rng: random.Random, path: str, name: str, value: Any, raw: str | None) -> Request:
    body = dict(GOOD.get(path, {}))
    if rng.random() < 0.3:
        body["stream"] = True
    if rng.random() < 0.2:
        body[rng.choice(fields_of(schema, path) or ["x"])] = rng.choice([*NUMBERS, *PLAIN, *NESTED])
    body[name] = value
    if raw is None:
        return posted(path, json.dumps(body).encode(), f"{name}={value!r}")
    body[name] = "\uffff"
    return posted(path, json.dumps(body).replace(json.dumps("\uffff"), raw).encode(), f"{name}={raw}")


def mutated(schema: dict[str, Any], rng: random.Random, count: int) -> list[Request]:
    """Good bodies with something struck out, put in, doubled or swapped: bytes, values and nesting."""
    made = []
    for _ in range(count):
        path = rng.choice(sorted(GOOD.keys() & schema["paths"].keys()))
        if rng.random() < 0.5:
            body = json.dumps(_bent(rng, GOOD[path], 0)).encode()
        else:
            body = _bytes_bent(rng, json.dumps(GOOD[path]).encode())
        made.append(posted(path, body, "mutated"))
    return made


def _bent(rng: random.Random, value: Any, depth: int) -> Any:
    if rng.random() < 0.15 or depth > 4:
        return rng.choice([*NUMBERS, *TEXTS, *NESTED, *PLAIN])
    if isinstance(value, dict):
        bent = {(k if rng.random() < 0.9 else rng.choice(TEXTS)): _bent(rng, v, depth + 1) for k, v in value.items()}
        return dict(list(bent.items())[: rng.randint(0, len(bent))]) if rng.random() < 0.1 else bent
    if isinstance(value, list):
        return [_bent(rng, item, depth + 1) for item in value for _ in range(rng.choice([0, 1, 1, 1, 2, 30]))]
    return value


def _bytes_bent(rng: random.Random, raw: bytes) -> bytes:
    data = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + rng.randint(1, 8)] = b""
            case 1:
                data[at:at] = rng.randbytes(rng.randint(1, 8))
            case 2:
                data[at:at] = rng.choice(
                    [b"[", b"{", b'"', b"\\", b",", b"\xff", b"\x00", b"null", b"\\ud800", b"1e400"]
                )
            case 3:
                data[at:at] = data[: rng.randint(0, len(data))]
    return bytes(data)
