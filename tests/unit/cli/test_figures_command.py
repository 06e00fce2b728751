"""`octavo figures`: names, lists, and an end when it is told to end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo.cli import main as cli
from octavo.figures.catalogue import MODULES


def test_the_list_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figures", "--list", "--out", str(tmp_path / "new")]) == 0
    shown = capsys.readouterr().out
    assert [line.split()[0] for line in shown.splitlines()] == list(MODULES)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fig99"], "octavo figures: error: figure = 'fig99': must be one of fig2, "),
        (["2", "--jobs", "0"], "octavo figures: error: jobs = 0: must be at least 1"),
    ],
)
def test_mistakes_are_answered(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["figures", *words]) == 2
    assert message in capsys.readouterr().err


def workers_of(pid: int) -> list[int]:
    """Processes that run jobs. Python's own tracker of resources ends by itself, a little later."""
    found = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ctrl_c_ends_it_and_its_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "octavo.cli.main", "figures", "12", "--jobs", "2", "--out", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        deadline = time.monotonic() + 60
        while len(workers := workers_of(process.pid)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, err) == ("", ""), "no traceback"
    assert len(workers) == 2 and not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert list(tmp_path.iterdir()) == []
