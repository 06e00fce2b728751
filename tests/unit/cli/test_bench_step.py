"""`octavo bench step` drives the real core and reports what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli import bench_step
from octavo.cli.main import main


@pytest.mark.parametrize("depth", [1, 2])
def test_every_measured_step_decodes_every_sequence(depth: int) -> None:
    core, executor = bench_step._decoding(5, num_steps=40, depth=depth)
    before = core.stats().num_generated_tokens
    bench_step._time_steps(core, executor, 40)
    stats = core.stats()
    assert stats.num_generated_tokens - before == 5 * 40
    assert stats.num_running == 5 and stats.num_preemptions == 0


def test_the_executor_is_not_charged_to_the_core() -> None:
    core, executor = bench_step._decoding(2, num_steps=3, depth=1)
    submit = executor.submit

    def slow(plan: object) -> object:
        ready = submit(plan)  # type: ignore[arg-type]
        executor.spent_s += 1000.0
        return ready

    executor.submit = slow  # type: ignore[method-assign, assignment]
    assert max(bench_step._time_steps(core, executor, 3)) < 0.0


def test_figures_table_and_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--sequences", "2", "3", "--steps", "4", "--rounds", "2", "--save-result", "--result-dir", str(tmp_path)]
    assert main(["bench", "step", *words, "--result-filename", "step.json"]) == 0
    figures = json.loads((tmp_path / "step.json").read_text())["sequences"]
    assert list(figures) == ["2", "3"]
    assert all(found["median_us"] > 0 and found["mean_us"] > 0 for found in figures.values())
    assert "us per sequence" in capsys.readouterr().out


def test_no_steps_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "step", "--steps", "0"]) == 2
    assert "steps = 0" in capsys.readouterr().err


def test_a_step_costs_what_its_sequences_cost() -> None:
    """Linear in the batch: ten times the sequences take less than twenty times as long."""
    found = bench_step.measure((16, 160), steps=60, rounds=5)
    assert found["160"]["median_us"] < 20 * found["16"]["median_us"]
