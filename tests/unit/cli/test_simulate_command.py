"""`octavo simulate`: figures on the terminal and as JSON, and errors that name what is wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo.cli import simulate_progress
from octavo.cli.main import main
from octavo.sim.simulator import simulate
from support.simulations import LinearCost, request, small_system

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,3,4\n2023-11-16 18:17:04,5,6\n"
SHORT = ["simulate", "opt-13b", "--duration", "20"]


def test_a_curve_is_printed_and_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "curve.json"
    assert main([*SHORT, "--rate", "1", "3", "--json", str(path)]) == 0
    slow, fast = json.loads(path.read_text())
    assert (slow["rate"], fast["rate"], slow["kv_policy"]) == (1, 3, "paged")
    assert slow["num_finished"] == slow["num_requests"] > 5
    assert slow["mean_running"] < fast["mean_running"]
    assert slow["tokens_per_s"] < fast["tokens_per_s"]
    printed = capsys.readouterr().out
    assert "ShareGPT" in printed
    assert "paged" in printed


def test_json_alone_can_be_piped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--workload", "alpaca", "--rate", "2", "--until", "10", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert 10 <= row["simulated_s"] < 11


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--workload", "nope"], "workload = 'nope': must be one of sharegpt"),
        (["--kv-policy", "nope"], "kv_policy = 'nope': must be one of paged"),
        (["--rate", "0"], "rate = 0.0"),
        (["--duration", "-1"], "duration = -1.0"),
        (["--block-size", "3"], "block_size = 3: must be a power of two"),
        (["--num-blocks", "0"], "num_blocks = 0: must be from 1 to 16777216"),
        (["--max-num-seqs", "1M"], "max_num_seqs = 1048576: must be from 1 to 65536"),
        (["--n", "0"], "n = 0: must be from 1 to 65536"),
        (["--n", "2"], "n = 2: must be left out with sharegpt: only parallel has a use for it"),
        (["--workload", "beam", "--n", "3"], "n = 3: must be left out with beam: only parallel has a use for it"),
        (
            ["--workload", "parallel", "--beam-width", "4"],
            "beam_width = 4: must be left out with parallel: only beam has a use for it",
        ),
        (["--cv", "4"], "cv = 4.0: must be left out without --arrivals bursty"),
        (["--arrivals", "poisson", "--cv", "2"], "cv = 2.0: must be left out without --arrivals bursty"),
        (
            ["--rate", "1e5", "--duration", "1e7"],
            "requests = 1000000000000: must be at most 250000 in a run: lower",
        ),
        (
            ["--workload", "parallel", "--rate", "100", "--n", "10000"],
            "must be at most 500000 in a run: lower n, the rate or the duration",
        ),
        (
            ["--workload", "beam", "--rate", "100", "--beam-width", "10000"],
            "must be at most 500000 in a run: lower beam_width, the rate or the duration",
        ),
        (
            ["--arrivals", "artifact", "--rate", "0.1", "--duration", "1e6"],
            "slices = 100000000: must be at most 10000000",
        ),
        (["--arrivals", "artifact", "--rate", "1000"], "rate = 1000.0: must be below 1000 with the artifact's"),
        (["--kv-policy", "orca-max", "--preemption", "swap"], "preemption = 'swap': must be left out but for paged"),
        (["--kv-policy", "fastertransformer", "--preemption", "auto"], "preemption = 'auto': must be left out but for"),
        (["--preemption", "swap"], "preemption = 'swap': must be given with num_host_blocks above 0"),
        (["--num-host-blocks", "9"], "num_host_blocks = 9: must be 0 with preemption recompute"),
        (["--batch-size", "3"], "batch_size = 3: must be left out but for fastertransformer"),
        (["--num-blocks", "2"], "must be servable"),
        (["--preemption", "nope"], "preemption = 'nope'"),
        (["--trace", "/nowhere"], "/nowhere"),
        (["--kv-policy", "orca-max", "--enable-prefix-caching"], "enable_prefix_caching = True: must be left out"),
        (["--kv-policy", "orca-max", "--num-host-blocks", "9"], "num_host_blocks = 9: must be 0 but for paged"),
    ],
)
def test_what_is_wrong_is_named(flags: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    rate = [] if "--rate" in flags else ["--rate", "1"]
    assert main([*SHORT, *rate, *flags]) == 2
    assert named in capsys.readouterr().err


@pytest.mark.parametrize(
    ("least", "most"),
    [
        (["--workload", "parallel", "--n", "1"], ["--workload", "parallel", "--n", "4"]),
        (["--workload", "beam", "--beam-width", "2"], ["--workload", "beam", "--beam-width", "6"]),
        (["--arrivals", "bursty", "--cv", "1"], ["--arrivals", "bursty", "--cv", "5"]),
    ],
)
def test_settings_of_few_workloads_are_used(
    least: list[str], most: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = []
    for flags in (least, most):
        assert main([*SHORT, "--rate", "2", *flags, "--json", "-"]) == 0
        rows += json.loads(capsys.readouterr().out)
    assert rows[0]["mean_running"] != rows[1]["mean_running"]


def test_a_trace_is_not_repeated_without_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    words = ["simulate", "--workload", "azure-code", "--trace", str(path), "--duration", "1e7"]
    assert main(words) == 2
    assert "requests = 10000000: must be at most 250000 in a run" in capsys.readouterr().err


def test_a_trace_out_of_order_is_put_in_order_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "2023-11-16 18:17:00,7,8\n")
    words = ["simulate", "--workload", "azure-code", "--trace", str(path), "--duration", "4"]
    assert main(words) == 0
    said = "trace.csv, line 4 is earlier than the line before it: the trace was put in order of time"
    assert said in capsys.readouterr().out
    assert main([*words, "--json", "-"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out) and said in captured.err


def test_the_title_names_the_file_that_was_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("input_tokens,output_tokens\n5,4\n")
    assert main([*SHORT, "--rate", "1", "--trace", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "opt-13b, sharegpt: from mine.csv" in printed and "ShareGPT" not in printed


def test_answers_that_come_whole_have_no_time_per_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.json"
    both = ["--kv-policy", "paged", "fastertransformer"]
    assert main([*SHORT, "--workload", "alpaca", "--rate", "1", *both, "--json", str(path)]) == 0
    paged, whole = json.loads(path.read_text())
    assert paged["tpot_p50_s"] > 0 and whole["tpot_p50_s"] is None
    assert "fastertransformer hands out answers whole" in " ".join(capsys.readouterr().out.split())


def test_a_long_run_shows_how_far_it_is_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulate_progress, "AFTER_S", 0.0)
    words = [*SHORT, "--workload", "alpaca", "--rate", "2", "--json", "-"]
    assert main(words) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(words) == 0
    loud = capsys.readouterr()
    assert "paged, 2 requests/s" in loud.err
    (one,), (other,) = json.loads(quiet.out), json.loads(loud.out)
    assert one | {"wall_s": 0} == other | {"wall_s": 0}


def test_progress_counts_the_requests_that_were_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate_progress, "AFTER_S", 0.0)
    monkeypatch.setattr(simulate_progress, "EVERY_S", 0.0)
    requests = [request(float(i), 8, 4) for i in range(5)]
    completed: list[float] = []
    with simulate_progress.SimulationProgress("run", requests) as progress:
        watched = progress.observe

        def observe(*words: Any) -> None:
            watched(*words)
            completed.append(progress._bar.tasks[0].completed)

        monkeypatch.setattr(progress, "observe", observe)
        assert len(simulate(small_system(), LinearCost(), requests, probes=[progress]).finished) == 5
        (task,) = progress._bar.tasks
    assert completed == sorted(completed) and set(completed) == set(range(6))
    assert task.total == task.completed == 5


def test_an_unknown_model_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "opt-14b", "--rate", "1"]) == 2
    assert "one of opt-13b" in capsys.readouterr().err


def test_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--list-workloads"]) == 0
    assert "mooncake" in capsys.readouterr().out


def test_where_nothing_finished_stands_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "--rate", "1", "--until", "0.001"]) == 0
    printed = capsys.readouterr().out
    assert "inf" not in printed and " - " in printed
