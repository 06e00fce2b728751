"""`octavo simulate`: figures on the terminal and as JSON, and errors that name what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import main

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
        (["--num-blocks", "0"], "num_blocks = 0: must be an integer of at least 1"),
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
