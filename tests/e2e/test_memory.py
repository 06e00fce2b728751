"""Shared KV memory from outside: samples, beams, hits, accounts, admin routes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from openai import OpenAI

from support.server_process import ServerProcess

KEY, ADMIN = {"Authorization": "Bearer user"}, {"Authorization": "Bearer adm"}
STORY = "Once upon a time, there was a little girl named Lily. She liked to play in the garden with her red ball."
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def memory(start_server: Any) -> ServerProcess:
    """A server of its own, with both keys: its cache is looked at and emptied here."""
    flags = ("--num-blocks", "400", "--block-size", "8", "--api-key", "user", "--admin-api-key", "adm")
    return start_server(*flags)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def openai_client(memory: ServerProcess) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{memory.url}/v1", api_key="user", max_retries=0) as client:
        yield client


@pytest.fixture(autouse=True)
def _sound(memory: ServerProcess) -> Iterator[None]:
    """Each test begins with an empty cache, and ends with nothing held and every invariant in place."""
    assert memory.post("/v1/kv/reset", {}, ADMIN).status == 200
    yield
    until_s = time.monotonic() + 5
    while (stats := memory.get("/v1/kv/stats", ADMIN).body)["num_held_blocks"] or stats["num_pinned_blocks"]:
        assert time.monotonic() < until_s, stats
        time.sleep(0.02)
    assert memory.get("/v1/kv/audit", ADMIN).body["broken"] == []


def totals(memory: ServerProcess) -> dict[str, int]:
    counts: dict[str, int] = memory.get("/v1/kv/stats", KEY).body["totals"]
    return counts


def cached(usage: Any) -> int:
    return int(usage.prompt_tokens_details.cached_tokens)


def test_four_streams_of_one_prompt(memory: ServerProcess, openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": STORY, "n": 4, "seed": 7, "max_tokens": 24}
    before = totals(memory)["num_copy_faults"]
    whole = openai_client.completions.create(**options)
    streamed, usage = [""] * 4, None
    for chunk in openai_client.completions.create(**options, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            streamed[choice.index] += choice.text
    assert streamed == [choice.text for choice in whole.choices] and len(set(streamed)) == 4
    assert whole.usage is not None and usage is not None
    assert whole.usage.completion_tokens == usage.completion_tokens == 96
    assert cached(whole.usage) == 0 and cached(usage) == usage.prompt_tokens - 1, "all but the last token"
    assert totals(memory)["num_copy_faults"] > before, "tails are copied when the answers part"


def test_each_of_n_is_the_answer_it_is_alone(memory: ServerProcess) -> None:
    body = {"prompt": STORY, "seed": 3, "max_tokens": 20, "logprobs": 2}
    several = memory.post(COMPLETIONS, {**body, "n": 3}, KEY).body["choices"]
    assert memory.post("/v1/kv/reset", {}, ADMIN).status == 200
    one = memory.post(COMPLETIONS, body, KEY).body["choices"][0]
    assert several[0] == one
    more = memory.post(COMPLETIONS, {**body, "n": 5}, KEY).body["choices"]
    assert more[:3] == several


def test_best_of_returns_the_likeliest_and_counts_all(memory: ServerProcess, openai_client: OpenAI) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": STORY, "seed": 7, "max_tokens": 12}
    drawn = openai_client.completions.create(**options, n=6, logprobs=0).choices
    means = [sum(c.logprobs.token_logprobs) / len(c.logprobs.token_logprobs) for c in drawn]  # type: ignore[arg-type, union-attr]
    order = sorted(range(6), key=lambda i: -means[i])
    best = openai_client.completions.create(**options, n=2, best_of=6)
    assert [choice.text for choice in best.choices] == [drawn[i].text for i in order[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert all(choice.logprobs is None for choice in best.choices)
    assert best.usage is not None and best.usage.completion_tokens == 72
    streamed = memory.post(COMPLETIONS, {"prompt": "a", "best_of": 2, "stream": True}, KEY)
    assert streamed.status == 400 and streamed.error["param"] == "best_of"
    assert streamed.error["code"] == "unsupported_parameter"


def test_beams_are_returned_best_first_and_streamed_whole(memory: ServerProcess) -> None:
    body = {"prompt": STORY, "beam_width": 4, "n": 3, "max_tokens": 16, "temperature": 0}
    whole = memory.post(COMPLETIONS, {**body, "logprobs": 0}, KEY).body
    scores = [choice["score"] for choice in whole["choices"]]
    assert scores == sorted(scores, reverse=True) and len(scores) == 3 and max(scores) < 0
    assert len({choice["text"] for choice in whole["choices"]}) == 3
    for choice in whole["choices"]:
        values = choice["logprobs"]["token_logprobs"]
        assert sum(values) / len(values) == pytest.approx(choice["score"], abs=1e-4)
    chunks = memory.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}}, KEY).chunks
    *answers, last = chunks
    assert [(c["choices"][0]["index"], c["choices"][0]["text"], c["choices"][0]["score"]) for c in answers] == [
        (choice["index"], choice["text"], choice["score"]) for choice in whole["choices"]
    ]
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    greedy = memory.post(COMPLETIONS, {"prompt": STORY, "max_tokens": 16, "temperature": 0, "logprobs": 0}, KEY).body
    likely = greedy["choices"][0]["logprobs"]["token_logprobs"]
    assert scores[0] >= sum(likely) / len(likely) - 1e-4, "a search finds nothing worse than its greediest beam"
    old = memory.post(COMPLETIONS, {**body, "beam_width": None, "use_beam_search": True, "n": 4}, KEY).body
    assert [choice["text"] for choice in old["choices"][:3]] == [choice["text"] for choice in whole["choices"]]


def test_beams_over_chat_and_too_many_of_them(memory: ServerProcess) -> None:
    body = {"messages": [{"role": "user", "content": "Hello"}], "beam_width": 3, "n": 2, "max_tokens": 8}
    reply = memory.post("/v1/chat/completions", body, KEY).body
    assert [choice["message"]["role"] for choice in reply["choices"]] == ["assistant"] * 2
    assert all(choice["score"] < 0 for choice in reply["choices"])
    frames = memory.stream("/v1/chat/completions", body, KEY).chunks
    texts = ["".join(f["choices"][0]["delta"].get("content") or "" for f in frames if f["choices"][0]["index"] == i)
             for i in range(2)]  # fmt: skip
    assert texts == [choice["message"]["content"] for choice in reply["choices"]]
    wide = memory.post("/v1/chat/completions", {**body, "beam_width": 65}, KEY)
    assert wide.status == 400 and wide.error["param"] == "beam_width"


def test_a_search_that_can_never_fit_is_refused_with_the_arithmetic(start_server: Any) -> None:
    server = start_server("--num-blocks", "60", "--block-size", "8", "--max-num-seqs", "16", "--max-beam-width", "100")
    wide = server.post(COMPLETIONS, {"prompt": STORY, "beam_width": 17, "max_tokens": 4})
    assert wide.status == 400 and "17 sequences at once" in wide.error["message"]
    long = server.post(COMPLETIONS, {"prompt": STORY, "beam_width": 16, "max_tokens": 100})
    assert long.status == 400 and long.error["code"] == "context_length_exceeded"
    assert "16 beams" in long.error["message"] and "pool has 59" in long.error["message"]


def test_the_second_turn_of_a_chat_finds_the_first(openai_client: OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": STORY}]
    options: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "temperature": 0, "extra_body": {"ignore_eos": True}}
    first = openai_client.chat.completions.create(messages=messages, **options)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        {"role": "user", "content": "And then?"},
    ]
    stream = openai_client.chat.completions.create(
        messages=messages, stream=True, stream_options={"include_usage": True}, **options
    )
    usage = [chunk.usage for chunk in stream][-1]
    assert first.usage is not None and usage is not None
    assert cached(first.usage) == 0
    assert cached(usage) >= first.usage.prompt_tokens - 8, "the first prompt, to the block at least"


def test_a_salt_separates(memory: ServerProcess) -> None:
    def hits(**fields: Any) -> int:
        body = {"prompt": STORY, "max_tokens": 4, "seed": 1, **fields}
        return int(memory.post(COMPLETIONS, body, KEY).body["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [hits(), hits(cache_salt="a"), hits(cache_salt="b")] == [0, 0, 0]
    assert min(hits(), hits(cache_salt="a"), hits(cache_salt="b")) > 0
    chat = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 2, "cache_salt": "a"}
    counts = [memory.post("/v1/chat/completions", chat, KEY).body["usage"]["prompt_tokens_details"]["cached_tokens"]
              for _ in range(2)]  # fmt: skip
    assert counts[0] == 0 < counts[1]


def test_reset_forgets(memory: ServerProcess) -> None:
    body = {"prompt": STORY, "max_tokens": 2}
    for path in ("/v1/kv/reset", "/reset_prefix_cache"):
        memory.post(COMPLETIONS, body, KEY)
        assert memory.get("/v1/kv/stats", KEY).body["num_cached_blocks"] > 0
        reply = memory.request("POST", path, None, ADMIN)
        assert reply.status == 200 and reply.body["num_freed_blocks"] > 0
        assert memory.get("/v1/kv/stats", KEY).body["num_cached_blocks"] == 0
        assert memory.post(COMPLETIONS, body, KEY).body["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert memory.post("/v1/kv/reset", {"tenant": "nobody"}, ADMIN).body["num_freed_blocks"] == 0
    assert memory.post("/v1/kv/reset", {"tenant": 5}, ADMIN).error["param"] == "tenant"
    assert memory.post("/v1/kv/reset", {"tenants": "x"}, ADMIN).status == 400


def test_the_figures_add_up_while_requests_run(memory: ServerProcess) -> None:
    body = {"prompt": STORY, "max_tokens": 180, "ignore_eos": True, "n": 3}
    threads = [threading.Thread(target=memory.post, args=(COMPLETIONS, {**body, "seed": i}, KEY)) for i in range(6)]
    for thread in threads:
        thread.start()
    held, shared = 0, 0.0
    while any(thread.is_alive() for thread in threads):
        stats = memory.get("/v1/kv/stats", ADMIN).body
        states = [stats[f"num_{state}_blocks"] for state in ("held", "pinned", "cached", "free")]
        assert sum(states) == stats["num_blocks"] == 399, stats
        assert (
            min(states) >= 0 and stats["num_promised_blocks"] <= stats["num_cached_blocks"] + stats["num_free_blocks"]
        )
        assert 0 <= stats["tail_waste"] <= 1 and stats["num_unfilled_slots"] <= stats["num_held_blocks"] * 8
        assert stats["totals"]["num_held_blocks"] == stats["num_held_blocks"] + stats["num_pinned_blocks"]
        assert stats["totals"]["num_cached_blocks"] == stats["num_cached_blocks"]
        device = stats["bytes"]["device"]
        assert device["total"] == sum(device[name] for name in ("held", "pinned", "cached", "free"))
        held, shared = max(held, stats["num_held_blocks"]), max(shared, stats["shared_ratio"])
    for thread in threads:
        thread.join()
    assert held > 30 and shared > 1.2, "nothing was shared"


def test_blocks_come_in_pages(memory: ServerProcess) -> None:
    memory.post(COMPLETIONS, {"prompt": STORY, "max_tokens": 9}, KEY)
    blocks: list[dict[str, Any]] = []
    first: int | None = 1
    while first is not None:
        page = memory.get(f"/v1/kv/blocks?first={first}&count=150", ADMIN).body
        blocks += page["data"]
        first = page["next"]
    assert [block["block_id"] for block in blocks] == list(range(1, 400))
    stats = memory.get("/v1/kv/stats", ADMIN).body
    for state in ("held", "cached", "free", "pinned"):
        assert sum(block["state"] == state for block in blocks) == stats[f"num_{state}_blocks"]
    known = [block for block in blocks if block["state"] == "cached"]
    assert known and all(len(block["key"]) == 16 and block["owner"] == "default" for block in known)
    for query in ("first=0", "first=x", "count=0", "count=10001", "first=-1", "count="):
        reply = memory.get(f"/v1/kv/blocks?{query}", ADMIN)
        assert reply.status == 400 and reply.error["param"] == query.partition("=")[0]


def test_audit_tells_and_repairs(memory: ServerProcess) -> None:
    sound = {"object": "kv.audit", "sound": True, "broken": [], "left": [], "repaired": False}
    assert memory.get("/v1/kv/audit", ADMIN).body == sound
    assert memory.post("/v1/kv/audit", {"repair": True}, ADMIN).body == sound
    assert memory.request("POST", "/v1/kv/audit", None, ADMIN).body == sound
    assert memory.post("/v1/kv/audit", {"repair": "yes"}, ADMIN).error["param"] == "repair"


def published(memory: ServerProcess) -> dict[str, int]:
    return {prefix["name"]: prefix["num_tokens"] for prefix in memory.get("/v1/kv/published", ADMIN).body["data"]}


def test_a_published_prefix_survives_reset_and_death(memory: ServerProcess) -> None:
    reply = memory.post("/v1/kv/published", {"name": "story", "text": STORY}, ADMIN)
    assert reply.status == 200 and reply.body["num_blocks"] * 8 == reply.body["num_tokens"] > 16
    assert published(memory) == {"story": reply.body["num_tokens"]}
    try:
        for _ in range(2):
            memory.post("/v1/kv/reset", {}, ADMIN)
            stats = memory.get("/v1/kv/stats", ADMIN).body
            assert stats["num_published_blocks"] == stats["num_held_blocks"] == reply.body["num_blocks"]
            body = {"prompt": STORY + " One day", "max_tokens": 3, "cache_salt": "mine"}
            usage = memory.post(COMPLETIONS, body, KEY).body["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] >= reply.body["num_tokens"], "salted or not"
            [pid] = memory.engine_pids
            os.kill(pid, signal.SIGKILL)
            until_s = time.monotonic() + 20
            while published(memory) != {"story": reply.body["num_tokens"]}:
                assert time.monotonic() < until_s
        again = memory.post("/v1/kv/published", {"name": "story", "token_ids": [5] * 20}, ADMIN)
        assert again.status == 400 and again.error["param"] == "name"
    finally:
        assert memory.request("DELETE", "/v1/kv/published/story", None, ADMIN).body["withdrawn"]
    assert published(memory) == {}
    assert memory.request("DELETE", "/v1/kv/published/story", None, ADMIN).status == 404


def test_messages_and_token_ids_can_be_published(memory: ServerProcess) -> None:
    messages = [{"role": "system", "content": "You tell short stories about animals and children in the forest."}]
    given = {"chat": {"messages": messages}, "ids": {"token_ids": list(range(3, 40))}}
    for name, fields in given.items():
        assert memory.post("/v1/kv/published", {"name": name, **fields}, ADMIN).status == 200
    chat = {"messages": [*messages, {"role": "user", "content": "Go on."}], "max_tokens": 2}
    usage = memory.post("/v1/chat/completions", chat, KEY).body["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= published(memory)["chat"] > 0
    for name in given:
        assert memory.request("DELETE", f"/v1/kv/published/{name}", None, ADMIN).status == 200


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"text": STORY}, "name"),
        ({"name": "a/b", "text": STORY}, "name"),
        ({"name": "x"}, "text"),
        ({"name": "x", "text": STORY, "token_ids": [1]}, "text"),
        ({"name": "x", "text": ""}, "text"),
        ({"name": "x", "text": "short"}, "text"),
        ({"name": "x", "token_ids": [1, 9999]}, "token_ids[1]"),
        ({"name": "x", "messages": [{"role": "boss"}]}, "messages[0].role"),
        ({"name": "x", "text": STORY, "extra": 1}, None),
        ({"name": "x", "text": "word " * 400}, "text"),
    ],
)
def test_what_cannot_be_published_is_named(memory: ServerProcess, body: dict[str, Any], param: str | None) -> None:
    reply = memory.post("/v1/kv/published", body, ADMIN)
    assert reply.status == 400 and reply.error["param"] == param, reply.raw
    assert published(memory) == {}


def test_admin_routes_need_the_admin_key(memory: ServerProcess, server: ServerProcess) -> None:
    routes = [("GET", "/v1/kv/blocks"), ("GET", "/v1/kv/audit"), ("POST", "/v1/kv/audit"), ("GET", "/v1/kv/published"),
              ("POST", "/v1/kv/published"), ("DELETE", "/v1/kv/published/x"), ("POST", "/v1/kv/reset"),
              ("POST", "/reset_prefix_cache"), ("GET", "/v1/kv/other")]  # fmt: skip
    for method, path in routes:
        for headers in ({}, KEY, {"Authorization": "Bearer ad"}):
            assert memory.request(method, path, None, headers).error["code"] == "invalid_api_key"
        refusal = server.request(method, path, None, {})
        assert refusal.status == 403 and "--admin-api-key" in refusal.error["message"]
    assert memory.get("/v1/kv/other", ADMIN).status == 404
    assert memory.post(COMPLETIONS, {"prompt": "a"}, ADMIN).status == 401, "it is no key for anything else"


def test_octavo_kv_shows_a_running_server(memory: ServerProcess) -> None:
    def octavo(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "octavo.cli.main", "kv", "--url", memory.url, "--once", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    memory.post(COMPLETIONS, {"prompt": STORY, "max_tokens": 9}, KEY)
    shown = octavo("--admin-key", "adm")
    assert shown.returncode == 0, shown.stderr
    for fact in ("399 blocks of 8 tokens", "held 0", "cached", "allocation", "default", "prompt tokens found"):
        assert fact in shown.stdout
    assert "\x1b" not in shown.stdout
    figures = json.loads(octavo("--json", "--api-key", "user").stdout)
    assert figures["object"] == "kv.stats" and figures["num_blocks"] == 399
    refused = octavo("--api-key", "wrong")
    assert refused.returncode == 1 and "not valid" in refused.stderr and "Traceback" not in refused.stderr


def num_steps(memory: ServerProcess) -> float:
    lines = memory.get("/metrics", KEY).raw.decode().splitlines()
    return next(float(line.rpartition(" ")[2]) for line in lines if line.startswith("octavo:steps_total"))


def test_a_search_for_a_client_that_left_stops(memory: ServerProcess) -> None:
    fields = {"prompt": STORY, "beam_width": 8, "n": 8, "max_tokens": 200, "ignore_eos": True}
    body = json.dumps(fields).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\n"
    head += "Content-Type: application/json\r\n"
    before = num_steps(memory)
    with socket.create_connection(("127.0.0.1", memory.port)) as connection:
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        until_s = time.monotonic() + 5
        while not memory.get("/v1/kv/stats", KEY).body["num_held_blocks"]:
            assert time.monotonic() < until_s
    while memory.get("/v1/kv/stats", KEY).body["num_held_blocks"]:
        assert time.monotonic() < until_s
    assert num_steps(memory) - before < 180, "it was searched to its end of 200 tokens"
    assert memory.post(COMPLETIONS, {**fields, "max_tokens": 5}, KEY).status == 200
