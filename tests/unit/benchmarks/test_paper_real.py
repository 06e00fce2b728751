"""The real comparison in a very short form: what it draws, how it searches, and the shape of what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))

import paper_real

from octavo.errors import ConfigError
from support.paths import TINYSTORIES

SYSTEMS = ["paged", "fastertransformer"]


def test_a_seed_draws_the_same_requests_at_any_rate() -> None:
    workload = paper_real.Workload(8, 512)
    slow, fast = workload.draw(10.0, 20.0, 5), workload.draw(20.0, 10.0, 5)
    assert [r.token_ids for r in slow] == [r.token_ids for r in fast]
    assert [r.arrival_s for r in slow] == pytest.approx([2 * r.arrival_s for r in fast])
    assert slow != workload.draw(10.0, 20.0, 6)
    assert 150 < len(slow) < 250


def test_lengths_are_sharegpt_s_divided_and_every_forty_hold_all_of_them() -> None:
    workload = paper_real.Workload(8, 512)
    assert workload.mean_tokens == pytest.approx(499.2 / 8, rel=0.02)
    requests = workload.draw(1e6, 40 / 1e6 * 20, 1)
    forties = [requests[i : i + 40] for i in range(0, len(requests) - 39, 40)]
    assert len(forties) > 10
    for some in forties:
        assert sum(r.num_output_tokens for r in some) / 40 == pytest.approx(42.7, rel=0.05)
        assert max(len(r.token_ids) + r.num_output_tokens for r in some) <= 256


def test_a_rate_is_read_off_the_line_around_the_threshold() -> None:
    points = [(4.0, 0.1), (5.0, 0.3), (3.0, 0.05)]
    assert paper_real.is_between(points, 0.2) and paper_real.passing(points, 0.2) == pytest.approx(4.5)
    assert not paper_real.is_between(points, 0.4)
    assert paper_real.passing(points[:1], 0.4) == 4.0 * paper_real.STEP_UP
    assert paper_real.passing(points[1:2], 0.2) == 5.0 / paper_real.STEP_UP


def test_the_comparison_from_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--model", str(TINYSTORIES), "--systems", *SYSTEMS, "--rounds", "1", "--num-threads", "1"]
    words += ["--warmup", "0.05", "--window", "0.2", "--min-requests", "4", "--threshold", "0.01", "--minutes", "0"]
    words += ["--long-window", "0.6"]
    found = paper_real.main([*words, "--jsonl", str(tmp_path / "runs.jsonl")])
    assert list(found) == SYSTEMS and all(len(rounds) == 1 for rounds in found.values())
    assert all(one.rate > 0 for rounds in found.values() for one in rounds)
    settings, *lines = map(json.loads, (tmp_path / "runs.jsonl").read_text().splitlines())
    runs, ends = lines[:-2], lines[-2:]
    assert settings["threshold"] == 0.01 and settings["machine"]["cpus"] > 0 and settings["cost"]["token_s"]
    assert len(runs) == 2 * len(SYSTEMS) and all(run["num_requests"] > 0 for run in runs)
    for run in runs:
        assert run["normalized_s"] > 0 and run["expected_s"] > 0 and 0 < run["num_running"] <= 128
        assert run["system"] != "fastertransformer" or run["num_running"] <= 7
    assert [end["system"] for end in ends] == SYSTEMS and ends[0]["ratios"] == [1.0]
    printed = capsys.readouterr().out
    assert "simulated, 0.6 s after a warm-up of 0 s:" in printed and "paged by it 1.00 (1.00-1.00)" in printed
    assert "245 blocks of 8 tokens: 7 contexts of 256, 31.0 mean requests" in printed
    assert [line.split("|")[1].strip() for line in printed.splitlines() if line.startswith("| `")] == [
        f"`{name}`" for name in SYSTEMS
    ]


def test_settings_out_of_range_are_named() -> None:
    with pytest.raises(ConfigError, match="scale"):
        paper_real.arguments(["--scale", "0"])
