"""`octavo run-batch`: a file of requests, answered as the server would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.commands import octavo
from support.server_process import TINY_MODEL, TINY_TEMPLATE, ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL = str(TINY_MODEL)
FLAGS = ["--served-model-name", "tiny", "--num-blocks", "100", "--chat-template", str(TINY_TEMPLATE)]


def line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "tiny", "temperature": 0, **body}}


REQUESTS = [
    line("story", COMPLETIONS, prompt="Once upon a time", max_tokens=40),
    line("chat", CHAT, messages=[{"role": "user", "content": "Hello"}], max_tokens=5),
    line("short", COMPLETIONS, prompt=["Lily", "The dog"], n=2, max_tokens=2),
]
BAD: list[tuple[Any, str]] = [
    ("no json", "not valid JSON"),
    ({**REQUESTS[0], "url": "/v1/nothing"}, "url = '/v1/nothing': must be /v1/chat/completions or"),
    ({**REQUESTS[0], "method": "GET"}, "method = 'GET': must be POST"),
    ({**REQUESTS[0], "custom_id": ""}, "custom_id"),
    ({**REQUESTS[0], "custom_id": 5}, "custom_id: expected str"),
    ({"custom_id": "x", "method": "POST", "url": CHAT}, "body"),
    (line("streamed", COMPLETIONS, prompt="a", stream=True), "body.stream"),
    ('{"custom_id": "a", "custom_id": "b"}', "given twice"),
]


def run_batch(folder: Path, lines: list[Any]) -> tuple[int, list[dict[str, Any]], str]:
    texts = [text if isinstance(text, str) else json.dumps(text) for text in lines]
    (folder / "in.jsonl").write_text("\n".join(texts) + "\n\n", encoding="utf-8-sig")  # as some editors do
    done = octavo("run-batch", MODEL, "-i", str(folder / "in.jsonl"), "-o", str(folder / "out.jsonl"), *FLAGS)
    rows = [json.loads(text) for text in (folder / "out.jsonl").read_text().splitlines()]
    return done.returncode, rows, done.stderr


def test_answers_are_the_servers_in_the_order_of_the_requests(server: ServerProcess, tmp_path: Path) -> None:
    status, rows, said = run_batch(tmp_path, REQUESTS)
    assert status == 0 and "3 of 3 requests answered" in said
    assert [row["custom_id"] for row in rows] == ["story", "chat", "short"]
    assert len({row["id"] for row in rows}) == 3
    for request, row in zip(REQUESTS, rows, strict=True):
        assert row["error"] is None and row["response"]["status_code"] == 200
        direct = server.post(request["url"], request["body"]).body
        assert row["response"]["body"]["choices"] == direct["choices"]
        assert row["response"]["body"]["usage"]["completion_tokens"] == direct["usage"]["completion_tokens"]


def test_bad_lines_are_answered_and_the_others_go_on(server: ServerProcess, tmp_path: Path) -> None:
    refused = line("hot", COMPLETIONS, prompt="a", temperature=-1)
    huge = json.dumps(line("huge", COMPLETIONS, prompt="a", max_tokens=1)).replace('"temperature": 0', '"seed": 1e999')
    status, rows, said = run_batch(tmp_path, [*(bad for bad, _ in BAD), refused, huge, REQUESTS[0]])
    assert status == 1 and f"1 of {len(BAD) + 3} requests answered" in said
    for (_, why), row in zip(BAD, rows, strict=False):
        assert row["response"] is None and why in row["error"]["message"], (why, row)
    *_, hot, big, good = rows
    direct = server.post(COMPLETIONS, refused["body"])
    assert hot["error"] is None
    assert hot["response"]["status_code"] == direct.status == 400 and hot["response"]["body"] == direct.body
    assert big["response"]["status_code"] == 400 and big["response"]["body"]["error"]["param"] == "seed"
    assert good["response"]["status_code"] == 200


@pytest.mark.parametrize(
    ("words", "why"),
    [(["-i", "none.jsonl", "-o", "out"], "input_file"), (["-i", "x"], "-o/--output-file"), ([], "-i/--input-file")],
)
def test_mistakes_are_one_line(words: list[str], why: str) -> None:
    done = octavo("run-batch", MODEL, *words)
    assert done.returncode == 2 and why in done.stderr.splitlines()[-1]


def test_the_requests_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text(json.dumps(REQUESTS[0]))
    before = (tmp_path / "in.jsonl").read_bytes()
    done = octavo("run-batch", MODEL, "-i", str(tmp_path / "in.jsonl"), "-o", str(tmp_path / "in.jsonl"))
    assert done.returncode == 2 and "output_file" in done.stderr
    assert (tmp_path / "in.jsonl").read_bytes() == before
