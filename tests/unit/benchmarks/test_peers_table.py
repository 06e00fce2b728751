"""The comparison with peers: what counts, what is void and why, and ratios within a round."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"
sys.path.insert(0, str(PEERS))

import engines  # noqa: E402
import table  # noqa: E402
import workloads  # noqa: E402

from octavo.cli.bench_workload import CONCURRENCY, Item  # noqa: E402

REFERENCE = table.Reference({"openvino-bf16": {"chat": 300.0}, "llamacpp-bf16": {"chat": 100.0}}, 30.0, 0.2)


def timing(engine: str, round_: int, speed: float, **rest: Any) -> dict[str, Any]:
    row = {
        "engine": engine, "round": round_, "attempt": 0, "workload": "chat", "output_throughput": speed, "failed": 0,
        "wrong_length": 0, "other_cpu": 0.05, "triad_gb_per_s": 30.0, "peak_rss_bytes": 500e6,
    }  # fmt: skip
    for name in ("ttft", "tpot"):
        row |= {f"p{p}_{name}_ms": 100.0 for p in (50, 95)}
    return row | rest


def results(*rows: dict[str, Any], scaling: str = "linear") -> Any:
    return table.Results(rows, REFERENCE, scaling)


def test_a_ratio_is_taken_within_a_round_against_the_fastest_peer() -> None:
    found = results(
        timing("octavo-bf16", 0, 600.0), timing("octavo-bf16", 1, 400.0), timing("octavo-bf16", 2, 999.0),
        timing("openvino-bf16", 0, 300.0), timing("openvino-bf16", 1, 250.0),
        timing("llamacpp-bf16", 0, 100.0), timing("llamacpp-bf16", 1, 110.0),
    )  # fmt: skip
    assert found.best_peer("bf16", "chat") == "openvino-bf16"
    ratio = table.Ratio.of(found, "octavo-bf16", "openvino-bf16", "chat", "output_throughput")
    assert ratio.values == (2.0, 1.6), "round 2 has no peer to compare with"
    page = table.render(found)
    assert "| chat | bf16, bf16 | 600.0 | OpenVINO GenAI f16, f16 (its default) | 275.0 |" in page
    assert "1.80 (1.60 to 2.00) | 2 | 1.6 met" in page


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"other_cpu": 0.16}, "other processes took 0.16 of a core"),
        ({"failed": 1}, "1 requests failed"),
        ({"wrong_length": 2}, "2 answers of wrong length"),
        ({"output_throughput": 230.0}, "is 0.77 of its reference figure 300.0"),
        ({"output_throughput": 370.0}, "is 1.23 of its reference figure"),
        ({"triad_gb_per_s": 60.0}, "is 0.50 of its reference figure 300.0 scaled to 60.0 GB/s"),
    ],
)
def test_a_void_timing_is_left_out_and_says_why(wrong: dict[str, Any], reason: str) -> None:
    found = results(timing("openvino-bf16", 0, 300.0), timing("openvino-bf16", 1, 300.0) | wrong)
    assert list(found.good("openvino-bf16", "chat")) == [0]
    (said,) = found.void
    assert said.startswith("openvino-bf16, chat, round 1: ") and reason in said
    assert f"* {said}" in table.render(found)


def test_a_workload_bound_by_computing_may_stay_behind_the_bandwidth_when_asked() -> None:
    fast_memory = timing("openvino-bf16", 0, 300.0, triad_gb_per_s=60.0)
    assert not results(fast_memory).good("openvino-bf16", "chat")
    assert results(fast_memory, scaling="between").good("openvino-bf16", "chat")
    assert not results(fast_memory | {"output_throughput": 700.0 * 1.1}, scaling="between").good(
        "openvino-bf16", "chat"
    )


def test_on_a_processor_of_another_kind_the_reference_does_not_apply() -> None:
    reference = table.Reference(REFERENCE.output_tok_s, 30.0, 0.2, frozenset({"avx512_bf16"}))
    far_off = timing("openvino-bf16", 0, 100.0)
    for features, counts, notes in ((["avx2", "avx512_bf16"], 0, 0), (["avx2"], 1, 1)):
        run = {"commit": "c", "date": "today", "rounds": 1, "servers": "up",
               "machine": {"cpu": "C", "cpus": 2, "memory_bytes": None, "cpu_features": features}}  # fmt: skip
        found = table.Results([{"run": run}, far_off], reference, "linear")
        assert (len(found.good("openvino-bf16", "chat")), len(found.notes)) == (counts, notes)
    assert "its processor lacks avx512_bf16" in table.render(found)


def test_a_repeated_timing_takes_the_place_of_the_disturbed_one() -> None:
    found = results(timing("openvino-bf16", 0, 200.0, other_cpu=0.5), timing("openvino-bf16", 0, 310.0, attempt=1))
    assert found.median("openvino-bf16", "chat", "output_throughput") == 310.0
    assert found.num_timed("openvino-bf16", "chat") == 2 and len(found.void) == 1


def test_octavo_itself_has_no_figure_to_be_off_from() -> None:
    assert results(timing("octavo-bf16", 0, 5000.0)).good("octavo-bf16", "chat")


def test_what_a_peer_does_not_stream_is_a_dash() -> None:
    nothing = {f"p{p}_{name}_ms": None for p in (50, 95) for name in ("ttft", "tpot")}
    found = results(timing("octavo-bf16", 0, 600.0), timing("openvino-bf16", 0, 300.0, **nothing))
    (row,) = [line for line in table.ratio_table(found) if line.startswith("| chat")]
    assert row.endswith("| - | - |")


def test_a_group_without_gates_is_compared_with_itself_alone() -> None:
    found = results(
        timing("octavo-qwen", 0, 90.0), timing("openvino-qwen-q8_0", 0, 60.0), timing("openvino-bf16", 0, 300.0)
    )
    (row,) = [line for line in table.ratio_table(found) if line.startswith("| chat")]
    assert row.startswith(
        "| chat | Qwen Q4_K_M file, bf16 | 90.0 | OpenVINO GenAI Qwen Q8_0, f16 (its default) | 60.0 |"
    )
    assert "| 1.50 (1.50 to 1.50) | 1 | - |" in row


def test_worse_latencies_are_named() -> None:
    found = results(
        timing("octavo-bf16", 0, 600.0, p50_ttft_ms=150.0, p95_tpot_ms=90.0), timing("openvino-bf16", 0, 300.0)
    )
    (row,) = [line for line in table.ratio_table(found) if line.startswith("| chat")]
    assert row.endswith("| 1.50 worse | 0.90 |")


def test_the_page_names_commit_machine_and_date() -> None:
    run = {"commit": "abc1234", "date": "2026-01-01 00:00 UTC", "rounds": 5, "servers": "up for the whole run",
           "machine": {"cpu": "Some CPU", "cpus": 2, "memory_bytes": 24 << 30}}  # fmt: skip
    page = table.render(results({"run": run}, {"engine": "vllm-bf16", "round": 0, "failed": "did not start: no"}))
    assert page.startswith("Commit abc1234, 2026-01-01 00:00 UTC, 2 CPUs of Some CPU, 24 GiB, 5 rounds")
    assert "* vllm-bf16, round 0: did not start: no" in page


def test_the_committed_reference_and_the_tables_name_what_exists() -> None:
    reference = table.Reference.read(PEERS / "reference.json")
    assert reference.tolerance == 0.2 and 30 <= reference.triad_gb_per_s <= 31
    assert set(reference.output_tok_s) <= set(engines.ENGINES)
    for engine, figures in reference.output_tok_s.items():
        assert set(figures) <= set(engines.ENGINES[engine].workloads) and engines.ENGINES[engine].kind != engines.OCTAVO
    for name in engines.DEFAULT:
        assert name.partition(":")[0] in engines.ENGINES
    assert all(set(engine.workloads) <= set(workloads.WORKLOADS) for engine in engines.ENGINES.values())
    assert {engine.group for engine in engines.ENGINES.values()} == set(table.GATES)
    assert all(set(gates) in (set(CONCURRENCY), set()) for gates in table.GATES.values())
    for group in table.GATES:
        members = [engine for engine in engines.ENGINES.values() if engine.group == group]
        assert len({engine.tokenizer for engine in members}) == 1, "engines that are compared get the same prompts"


def test_servers_without_n_get_as_many_requests() -> None:
    items = [Item(prompt="a", output_token_count=3, n=3), Item(prompt="b", output_token_count=2)]
    assert [(item.prompt, item.n) for item in workloads.one_answer_each(items)] == [("a", 1)] * 3 + [("b", 1)]
