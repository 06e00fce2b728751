"""The load generator: workloads as specified, figures that add up, failures counted."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.bench_load import Load, Record, send_all
from octavo.cli.bench_report import METRICS, percentile, summarize
from octavo.cli.bench_workload import CONCURRENCY, Item, lengths, read_jsonl, synthetic
from octavo.cli.http_client import Endpoint
from octavo.cli.main import main
from octavo.errors import ConfigError
from support.paths import TINYSTORIES
from unit.cli.sse_server import SSEServer, completion


class Words:
    """A tokenizer whose tokens are words: ` a`.. with 3 letters or more."""

    def __init__(self) -> None:
        rng = random.Random(0)
        self.words = [*sorted({" " + "".join(rng.choices("abcdefgh", k=5)) for _ in range(500)}), " X", "ab"]
        self.ids = {word: i for i, word in enumerate(self.words)}
        self.vocab_size = len(self.words)

    def token_bytes(self, token_id: int) -> bytes:
        return self.words[token_id].encode()

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.ids[word] for word in re.findall(r" ?\w+", text)]

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.words[i] for i in token_ids)


@pytest.mark.parametrize("name", list(CONCURRENCY))
def test_workloads_are_as_the_table_says(name: str) -> None:
    items = synthetic(name, Words())
    assert [len(items), items[0].n] == {
        "chat": [64, 1], "prefix": [64, 1], "nsample": [16, 4], "single": [1, 1], "long": [4, 1],
    }[name]  # fmt: skip
    inputs = [item.prompt_token_count for item in items]
    assert inputs == [len(Words().encode(item.prompt)) for item in items]
    if name == "chat":
        assert min(inputs) >= 4 and max(inputs) <= 1024 and abs(sum(inputs) / 64 - 160) < 1
        outputs = [item.output_token_count for item in items]
        assert min(outputs) >= 4 and max(outputs) <= 512
        assert (sum(inputs), sum(outputs)) == (10_236, 9_575), "lengths that published figures were measured with"
    else:
        assert set(inputs) == {{"prefix": 544, "nsample": 96, "single": 128, "long": 4096}[name]}
    if name == "prefix":
        assert len({tuple(item.prompt.split()[:512]) for item in items}) == 1
        assert len({item.prompt for item in items}) == 64


def test_the_seed_changes_words_and_never_lengths() -> None:
    first, again, other = (synthetic("chat", Words(), seed) for seed in (1, 1, 2))
    assert first == again
    assert [i.prompt for i in first] != [i.prompt for i in other]
    assert [(i.prompt_token_count, i.output_token_count) for i in first] == [
        (i.prompt_token_count, i.output_token_count) for i in other
    ]


def test_lengths_reach_their_mean_after_the_cut() -> None:
    values = lengths(random.Random(3), 400, 150, 0.8, 4, 512)
    assert abs(sum(values) / 400 - 150) < 0.5 and min(values) >= 4 and max(values) <= 512


def test_files_are_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / ("long" * 30) / "w.jsonl"  # longer than an error shows
    path.parent.mkdir()
    path.write_text('{"prompt": "a", "output_token_count": 3, "n": 2, "temperature": 1.0, "extra": 1}\n\n')
    assert read_jsonl(str(path)) == [Item(prompt="a", output_token_count=3, n=2, temperature=1.0)]
    path.write_text('{"prompt": "a", "output_token_count": 3}\n{"prompt": 5}\n')
    with pytest.raises(ConfigError, match="= 'line 2 of /"):
        read_jsonl(str(path))
    path.write_text("\n")
    with pytest.raises(ConfigError, match="at least one line"):
        read_jsonl(str(path))


def run_load(server: SSEServer, items: list[Item], **settings: Any) -> tuple[list[Record], float]:
    async def work() -> tuple[list[Record], float]:
        async with server.listening() as url:
            return await send_all(Load(at=Endpoint.parse(url), model="tiny", **settings), items)

    coroutine: Coroutine[Any, Any, tuple[list[Record], float]] = asyncio.wait_for(work(), 30)
    return asyncio.run(coroutine)


def items_of(count: int, tokens: int = 4, **rest: Any) -> list[Item]:
    return [Item(prompt=" one two three", output_token_count=tokens, **rest) for _ in range(count)]


def test_a_closed_loop_keeps_its_number_in_flight() -> None:
    server = SSEServer(completion, delay_s=0.003)
    records, duration_s = run_load(server, items_of(12, n=2, temperature=1.0), max_concurrency=3)
    assert server.most_in_flight == 3
    assert all(r.error is None and r.output_tokens == r.wanted_tokens == 8 and r.prompt_tokens == 3 for r in records)
    assert all(r.ttft_s is not None and 0 < r.ttft_s < r.end_s - r.start_s <= duration_s for r in records)
    assert all(len(r.tpot_s) == 2 and len(r.itl_s) == 6 for r in records), "per answer, not per request"
    body = server.bodies[0]
    assert body["ignore_eos"] and body["n"] == 2 and body["seed"] == 0 and body["stream_options"]["include_usage"]


def test_times_are_those_of_the_server() -> None:
    records, _ = run_load(SSEServer(completion, delay_s=0.02), items_of(1, tokens=6), max_concurrency=1)
    assert records[0].tpot_s[0] >= 0.02, "five gaps of at least 20 ms"
    assert sum(records[0].itl_s) == pytest.approx(records[0].tpot_s[0] * 5)


def test_poisson_arrivals_are_spread_over_time() -> None:
    server = SSEServer(completion)
    start = time.perf_counter()
    records, _ = run_load(server, items_of(20, tokens=1), request_rate=100.0)
    starts = sorted(r.start_s - start for r in records)
    gaps = [b - a for a, b in itertools.pairwise(starts)]
    assert 0.05 < starts[-1] < 2 and max(gaps) > 2 * (sum(gaps) / len(gaps)), "gaps vary as an exponential law's do"


def test_failures_are_counted_and_not_timed() -> None:
    records, duration_s = run_load(SSEServer(completion, status=400), items_of(3), max_concurrency=2)
    figures = summarize(records, duration_s, list(METRICS), [50])
    assert figures["failed"] == 3 and figures["completed"] == 0 and figures["p50_ttft_ms"] is None
    assert "temperature" in figures["errors"][0]


def test_a_wrong_length_is_counted() -> None:
    server = SSEServer(lambda body: completion(body | {"max_tokens": body["max_tokens"] - 1}))
    records, duration_s = run_load(server, items_of(2), max_concurrency=1)
    assert summarize(records, duration_s, [], [])["wrong_length"] == 2


def test_pieces_are_counted_where_the_server_counts_one_answer_of_several() -> None:
    def one_counted(body: dict[str, Any]) -> list[str]:
        usage = {"prompt_tokens": 3, "completion_tokens": body["max_tokens"]}
        return [*completion(body)[:-2], json.dumps({"choices": [], "usage": usage}), "[DONE]"]

    records, _ = run_load(SSEServer(one_counted), items_of(1, n=3, temperature=1.0), max_concurrency=1)
    assert records[0].output_tokens == records[0].wanted_tokens == 12


def test_a_body_can_be_rewritten_for_a_server_of_its_own_kind() -> None:
    server = SSEServer(completion)

    def rewrite(item: Item, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "max_tokens": item.output_token_count, "special": True}

    records, _ = run_load(server, items_of(1), max_concurrency=1, rewrite=rewrite)
    assert records[0].error is None and server.bodies[0]["special"]


def test_an_error_inside_the_stream_is_a_failure() -> None:
    server = SSEServer(lambda body: [completion(body)[0], json.dumps({"error": {"message": "engine died"}}), "[DONE]"])
    records, _ = run_load(server, items_of(1), max_concurrency=1)
    assert records[0].error is not None and "engine died" in records[0].error


def test_percentiles() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0], 99) == 3.0
    assert percentile([4.0, 1.0, 2.0, 3.0], 50) == 2.5
    assert percentile(range(101), 95) == 95


def test_figures_add_up() -> None:
    records = [
        Record(start_s=0, end_s=2, ttft_s=0.5, tpot_s=[0.1], itl_s=[0.1, 0.2], prompt_tokens=10, output_tokens=4,
               wanted_tokens=4),
        Record(start_s=1, end_s=4, ttft_s=1.5, tpot_s=[0.3], itl_s=[0.3], prompt_tokens=20, output_tokens=6,
               wanted_tokens=6),
    ]  # fmt: skip
    figures = summarize(records, 4.0, ["ttft", "tpot", "itl", "e2el"], [50, 99.9])
    assert figures["output_throughput"] == 2.5 and figures["total_token_throughput"] == 10
    assert figures["mean_ttft_ms"] == figures["p50_ttft_ms"] == 1000
    assert figures["p50_itl_ms"] == pytest.approx(200) and figures["p50_e2el_ms"] == 2500
    assert "p99.9_tpot_ms" in figures


def test_the_command_prints_tables_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = tmp_path / "w.jsonl"
    workload.write_text('{"prompt": " a b", "output_token_count": 2}\n')
    words = ["bench", "serve", "--dataset-path", str(workload), "--num_prompts", "3", "--max-concurrency", "2",
             "--save-result", "--result-dir", str(tmp_path), "--result-filename", "r.json"]  # fmt: skip

    async def work() -> int:
        async with SSEServer(completion).listening() as url:
            return await asyncio.to_thread(main, [*words, "--base-url", url])

    assert asyncio.run(asyncio.wait_for(work(), 30)) == 0
    shown = capsys.readouterr().out
    assert "custom on tiny, closed loop, 2 in flight" in shown and "time per output token" in shown
    result = json.loads((tmp_path / "r.json").read_text())
    assert result["completed"] == 3 and result["total_output_tokens"] == 6 and result["machine"]["cpus"] >= 1
    assert result["p95_ttft_ms"] > 0 and result["request_rate"] == "inf" and result["own_server"] is False


@pytest.mark.parametrize("given", ["--model", "positional", None])
def test_prompts_are_made_with_the_model_given(given: str | None, capsys: pytest.CaptureFixture[str]) -> None:
    """A server may call its model what it likes: `tiny` is none of ours."""
    server = SSEServer(completion)
    words = {"--model": ["--model", str(TINYSTORIES)], "positional": [str(TINYSTORIES)], None: []}[given]

    async def work() -> int:
        async with server.listening() as url:
            arguments = ["--base-url", url, "--dataset-name", "prefix", "--num-prompts", "2"]
            return await asyncio.to_thread(main, ["bench", "serve", *words, *arguments])

    assert asyncio.run(asyncio.wait_for(work(), 60)) == (0 if given else 2)
    if given:
        assert {body["model"] for body in server.bodies} == {"tiny"} and "prefix on tiny" in capsys.readouterr().out
    else:
        assert "no model 'tiny'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--percentile-metrics", "ttft,speed"], "percentile_metrics = 'speed': must be of ttft"),
        (["--metric-percentiles", "101"], "metric_percentiles = '101': must be numbers from 0 to 100"),
        (["--base-url", "nowhere"], "url = 'nowhere': must be a URL"),
        (["--dataset-name", "web"], "invalid choice: 'web'"),
    ],
)
def test_mistakes(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["bench", "serve", "--base-url", "http://127.0.0.1:9", *words])
    except SystemExit as exit_:
        status = exit_.code  # type: ignore[assignment]
    assert status == 2
    assert line in capsys.readouterr().err
