"""Published attacks on other servers, each as a small request through every entrance that takes it.

Each is refused (or answered as usual) at once, in few bytes of memory, without a word about the server's insides, and
nothing else changes: same process, canary, blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
GOOD: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once upon a time", "max_tokens": 4},
    CHAT: {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
}
KEYS = {"alice": "sk-alice-0123", "bob": "sk-bob-0123"}
BEGINNING = 1
"""The token that every prompt begins with."""
LEAK = re.compile(rb"0x[0-9a-f]{6,}|Traceback|site-packages|/src/octavo")


def user(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS[name]}"}


@pytest.fixture(scope="module", params=["", "1"], ids=["plain", "optimised"])
def guarded(
    request: pytest.FixtureRequest, start_server: Any, tmp_path_factory: pytest.TempPathFactory
) -> ServerProcess:
    """With assertions, and without: no refusal may hang on one."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    flags = ("--api-key-file", str(path), "--num-blocks", "600", "--admin-api-key", "adm")
    server: ServerProcess = start_server(*flags, env={"PYTHONOPTIMIZE": request.param})
    return server


@pytest.fixture(autouse=True)
def _nothing_changes(guarded: ServerProcess) -> Iterator[None]:
    def canary() -> Any:
        body = {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0}
        return guarded.post(COMPLETIONS, body, user("alice")).body["choices"]

    before, pids = canary(), guarded.engine_pids
    yield
    assert canary() == before and guarded.engine_pids == pids
    assert guarded.get("/v1/kv/stats", {"Authorization": "Bearer adm"}).body["num_held_blocks"] == 0


def resident_bytes(server: ServerProcess) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]


def refused(server: ServerProcess, path: str, body: Any, *, within_s: float = 0.5) -> dict[str, Any]:
    reply = server.post(path, body, user("bob"))
    assert 400 <= reply.status < 500, (path, str(body)[:200], reply.status, reply.raw[:300])
    assert reply.took_s < within_s, (path, str(body)[:200], reply.took_s)
    assert not LEAK.search(reply.raw), reply.raw
    return reply.error


BOTH = [
    ("n without bound", {"n": 10**9}),
    ("candidates without bound", {"best_of": 10**9}),
    ("min_tokens above what fits", {"min_tokens": 10**9, "max_tokens": None}),
    ("prompt_logprobs without bound", {"prompt_logprobs": 10**9}),
    ("token ids past the logits", {"logit_bias": {"100000": 1}}),
    ("stop ids past the logits", {"stop_token_ids": [512]}),
    ("allowed ids past the logits", {"allowed_token_ids": [512]}),
    ("salt of megabytes", {"cache_salt": "x" * 10_000_000}),
    ("salt with a NUL", {"cache_salt": "a\0b"}),
    ("forged cache ids", {"kv_transfer_params": {"block_hashes": ["00" * 32]}}),
    ("tensors as prompts", {"prompt_embeds": "gANjb3MKc3lzdGVtCg=="}),
    ("a schema of no type", {"structured_outputs": {"json": {"type": "foo"}}}),
    ("an empty schema text", {"structured_outputs": {"json": ""}}),
    ("a false json_object", {"structured_outputs": {"json_object": False}}),
    ("a regex that is none", {"structured_outputs": {"regex": "("}}),
    ("a grammar with an open quote", {"structured_outputs": {"grammar": 'root ::= "'}}),
    ("a grammar of brackets", {"structured_outputs": {"grammar": "root ::= " + "(" * 100_000}}),
    ("a backend by name", {"structured_outputs": {"json": {}, "backend": "../x"}}),
    ("negative integers", {"max_tokens": -(2**31)}),
    ("code as a template", {"chat_template": "{% for i in range(10**9) %}{% endfor %}"}),
    ("another model's path", {"model": "../../etc/passwd"}),
    ("a model named by a NUL", {"model": "a\0"}),
    ("a model of a long name", {"model": "m" * 100_000}),
]


@pytest.mark.parametrize("path", GOOD)
@pytest.mark.parametrize("fields", [fields for _, fields in BOTH], ids=[name for name, _ in BOTH])
def test_both_entrances(guarded: ServerProcess, path: str, fields: dict[str, Any]) -> None:
    if path == COMPLETIONS and "chat_template" in fields:
        return  # not a field of this entrance: it has no template to replace
    guarded.post(path, GOOD[path], user("bob"))
    before = resident_bytes(guarded)
    for stream in (False, True):
        refused(guarded, path, {**GOOD[path], **fields, "stream": stream}, within_s=3.0)
    assert resident_bytes(guarded) - before < 64 << 20


CHAT_ONLY = [
    ("kwargs that override", {"chat_template_kwargs": {"tokenize": True}}),
    ("a template in kwargs", {"chat_template_kwargs": {"chat_template": "{{ 1 }}"}}),
    ("a tool's broken pattern", {"tools": [{"type": "function", "function": {"name": 7}}]}),
    ("an image of this machine", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x"}}]}]}),
    ("a file as image", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}),
    ("two hundred images", {"messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "data:,x"}}] * 200}]}),
    ("top_logprobs without bound", {"logprobs": True, "top_logprobs": 10**9}),
]  # fmt: skip


@pytest.mark.parametrize("fields", [fields for _, fields in CHAT_ONLY], ids=[name for name, _ in CHAT_ONLY])
def test_chat(guarded: ServerProcess, fields: dict[str, Any]) -> None:
    refused(guarded, CHAT, {**GOOD[CHAT], **fields})
    asked = {name: value for name, value in fields.items() if name in ("chat_template_kwargs", "messages")}
    if asked:
        refused(guarded, "/tokenize", {"messages": GOOD[CHAT]["messages"], **asked})


def test_lists_without_bound(guarded: ServerProcess) -> None:
    refused(guarded, COMPLETIONS, {"prompt": ["a"] * 100_000}, within_s=3)
    refused(guarded, COMPLETIONS, {"prompt": [[1]] * 100_000}, within_s=3)
    refused(guarded, COMPLETIONS, {"prompt": [1] * 1_000_000}, within_s=3)
    refused(guarded, COMPLETIONS, {"prompt": "", "max_tokens": 1})
    refused(guarded, COMPLETIONS, {**GOOD[COMPLETIONS], "logprobs": 10**9})
    refused(guarded, COMPLETIONS, {**GOOD[COMPLETIONS], "stop": ["x"] * 100_000}, within_s=3)
    refused(guarded, "/detokenize", b'{"tokens": [' + b"1," * 25_000_000 + b"1]}", within_s=5)
    refused(guarded, "/detokenize", {"tokens": [2**62]})
    refused(guarded, "/detokenize", {"tokens": [-1]})


@pytest.mark.parametrize(
    "piece", [">>", "[", "{", "<|", "\\", "\u0300", "a" * 50 + " ", "<|im_start|>", "((((a+)+)+)+b"]
)
def test_texts_that_slow_a_tokenizer(guarded: ServerProcess, piece: str) -> None:
    text = piece * (50_000 // len(piece))
    for path, body in ((COMPLETIONS, {"prompt": text}), (CHAT, {"messages": [{"role": "user", "content": text}]})):
        refused(guarded, path, {**body, "max_tokens": 1}, within_s=2)
    assert guarded.post("/tokenize", {"prompt": text}, user("bob")).took_s < 2


def test_control_tokens_in_a_text_are_text(guarded: ServerProcess) -> None:
    for text in ("<|image|>", "<image>", "<|im_end|>", "</s><s>", "<unk>"):
        assert (
            guarded.post(CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 2}, user("bob")).status
            == 200
        )


def test_no_tenant_finds_what_another_computed(guarded: ServerProcess) -> None:
    secret = {"prompt": "The secret of the house is that " * 6, "max_tokens": 1}

    def cached(name: str, **fields: Any) -> int:
        reply = guarded.post(COMPLETIONS, {**secret, **fields}, user(name))
        count: int = reply.body["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert cached("alice") <= BEGINNING
    assert cached("alice") > 20
    assert cached("bob") <= BEGINNING
    assert cached("bob", cache_salt="alice") == 0
    assert guarded.post("/v1/kv/reset", {"tenant": "alice"}, {"Authorization": "Bearer adm"}).status == 200
    assert cached("alice") <= BEGINNING, "what was purged is gone"
    assert cached("bob") > 20, "and what others have stays"


def test_pickles_are_only_bytes(guarded: ServerProcess) -> None:
    pickled = b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x04exit\x94\x85\x94R\x94."
    for path in (COMPLETIONS, CHAT, "/update_weights_from_tensor", "/load_lora_adapter", "/v1/kv/reset"):
        assert guarded.post(path, pickled, user("bob")).status in (400, 401, 404)
    assert guarded.raw(pickled).startswith(b"HTTP/1.1 400")


def test_made_up_schemas_do_not_pile_up(guarded: ServerProcess) -> None:
    """The cache of grammars is bounded: a new one with each request leaves the memory where it is."""

    def ask(i: int) -> None:
        schema = {"enum": [f"value-{i}-{'x' * 200}"]}
        body = {**GOOD[COMPLETIONS], "structured_outputs": {"json": schema}}
        assert guarded.post(COMPLETIONS, body, user("bob")).status == 200

    for i in range(60):
        ask(i)
    before = resident_bytes(guarded)
    for i in range(60, 260):
        ask(i)
    assert resident_bytes(guarded) - before < 48 << 20


def test_a_state_explosion_is_cut_short(guarded: ServerProcess) -> None:
    for regex in ("(a+)+b", "(a|aa){1,400}", "(x+x+)+y", "(.{1,500}){1,500}"):
        reply = guarded.post(COMPLETIONS, {**GOOD[COMPLETIONS], "structured_outputs": {"regex": regex}}, user("bob"))
        assert reply.status in (200, 400) and reply.took_s < 6, (regex, reply.status, reply.took_s)
        assert not LEAK.search(json.dumps(reply.body).encode())
