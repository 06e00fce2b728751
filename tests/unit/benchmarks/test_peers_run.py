"""The comparison itself, on two servers of the tiny model that pass for different engines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks" / "peers"))

import engines
import probe
import run
import table

from octavo.cli.bench_workload import Item
from support.paths import TINYSTORIES


def served(port: int) -> list[str]:
    words = [sys.executable, "-m", "octavo.cli.main", "serve", str(TINYSTORIES), "--port", str(port)]
    return [*words, "--served-model-name", engines.SERVED_NAME, "--num-blocks", "200", "--num-threads", "1"]


OURS = engines.Engine(
    kind=engines.OCTAVO, group="bf16", weights="w", kv="k", command=served, workloads=("chat", "poisson80"),
    tokenizer=TINYSTORIES,
)  # fmt: skip
PEER = replace(OURS, kind="Peer", workloads=("chat", "nsample"), streams_n=False, takes_n=False)
BROKEN = replace(PEER, command=lambda port: [sys.executable, "-c", "raise SystemExit('no such library')"])


class StillAir:
    """In place of the bandwidth probe, which takes half a gigabyte."""

    def __init__(self, folder: Path) -> None: ...
    def measure(self) -> float:
        return 30.0


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Run a comparison; the rows it wrote."""
    known = {"octavo-bf16": OURS, "openvino-bf16": PEER, "vllm-bf16": BROKEN}

    def items(name: str, tokenizer: Any, seed: int) -> list[Item]:
        count, n = (6, 1) if name != "nsample" else (2, 3)
        return [
            Item(prompt=f"Once upon {seed} {i}", output_token_count=40, n=n, temperature=n - 1) for i in range(count)
        ]

    monkeypatch.setattr(run, "ENGINES", known)
    monkeypatch.setattr(table, "ENGINES", known)
    monkeypatch.setattr(run, "ROOT", tmp_path)
    monkeypatch.setattr(run, "Triad", StillAir)
    monkeypatch.setattr(run, "make_items", items)
    monkeypatch.setattr(run, "wait_until_idle", lambda limit_s: True)
    monkeypatch.setattr(run, "MAX_OTHER_CPU", 99.0)

    def work(**settings: Any) -> list[dict[str, Any]]:
        out = tmp_path / "out.jsonl"
        args = {"engines": ["octavo-bf16", "openvino-bf16"], "workloads": ["chat", "nsample", "poisson80"], "rounds": 2,
                "first_round": 0, "restart": False, "idle_s": 0.0, "out": out}  # fmt: skip
        run.Comparison(argparse.Namespace(**args | settings)).run()
        return [json.loads(line) for line in out.read_text().splitlines()]

    return work


def test_rounds_take_the_workloads_in_turn_on_servers_that_stay(compare: Callable[..., list[dict[str, Any]]]) -> None:
    rows = compare()
    assert rows[0]["run"]["commit"] and rows[0]["run"]["machine"]["cpus"] >= 1
    assert [(row["engine"], row["workload"], row["round"]) for row in rows[1:]] == [
        ("octavo-bf16", "start", 0), ("openvino-bf16", "start", 0),
        ("octavo-bf16", "chat", 0), ("openvino-bf16", "chat", 0), ("openvino-bf16", "nsample", 0),
        ("octavo-bf16", "poisson80", 0),
        ("openvino-bf16", "chat", 1), ("octavo-bf16", "chat", 1), ("openvino-bf16", "nsample", 1),
        ("octavo-bf16", "poisson80", 1),
    ]  # fmt: skip
    timings = [row for row in rows[1:] if row["workload"] != "start"]
    assert all(row["failed"] == row["wrong_length"] == 0 and row["peak_rss_bytes"] > 20e6 for row in timings)
    assert all(row["client_cpu"] > 0 and row["triad_gb_per_s"] == 30 for row in timings)
    assert sum(row["server_cpu"] for row in timings) > 0, "the kernel counts in ticks, and some timings take none"
    nsample = next(row for row in timings if row["workload"] == "nsample")
    assert nsample["completed"] == 6 and nsample["in_flight"] == 12, "one request an answer, and as many in flight"
    chat, poisson = (next(r for r in timings if r["workload"] == name) for name in ("chat", "poisson80"))
    assert poisson["request_rate"] == pytest.approx(0.8 * chat["request_throughput"], rel=0.01)
    assert poisson["in_flight"] is None
    starts = [row for row in rows[1:] if row["workload"] == "start"]
    assert all(0 < row["ready_s"] < row["first_token_s"] for row in starts)


def test_each_server_anew(compare: Callable[..., list[dict[str, Any]]]) -> None:
    rows = compare(restart=True, workloads=["chat"], engines=["octavo-bf16"])
    assert [row["workload"] for row in rows[1:]] == ["start", "chat", "start", "chat"]


def test_an_engine_that_does_not_start_is_left_out(compare: Callable[..., list[dict[str, Any]]]) -> None:
    rows = compare(engines=["vllm-bf16", "octavo-bf16"], workloads=["chat"])
    assert [row for row in rows if "failed" in row and row.get("engine") == "vllm-bf16"] == [
        {"engine": "vllm-bf16", "round": 0, "failed": "did not start: no such library\n"}
    ]
    assert sum(row.get("workload") == "chat" for row in rows) == 2


def test_engines_may_be_given_their_own_workloads() -> None:
    assert run._chosen("llamacpp-bf16:single+long", ["single", "chat", "long"]) == ("llamacpp-bf16", ("single", "long"))
    assert run._chosen("transformers-bf16", ["single", "chat"]) == ("transformers-bf16", ("single",))
    with pytest.raises(SystemExit, match="no engine 'x'"):
        run._chosen("x", [])


def test_time_is_told_apart() -> None:
    shares = probe.Shares(os.getppid())
    end = probe.time.perf_counter() + 0.3
    while probe.time.perf_counter() < end:
        pass
    taken = shares.taken()
    assert 0.05 < taken["client_cpu"] <= 1.1 and taken["other_cpu"] >= 0
    assert probe.busy_s() > 0


def test_the_machine_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processors look idle when together they worked a tenth of the time at most."""
    monkeypatch.setattr(probe.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(probe.time, "sleep", lambda seconds: None)
    clock = iter([0.0, 1.5, 1.5, 1.6])
    monkeypatch.setattr(probe, "busy_s", lambda: next(clock))
    assert probe.wait_until_idle(5.0, look_s=1.0)
    assert next(clock, None) is None, "the first look found it busy"
    assert not probe.wait_until_idle(0.0)
