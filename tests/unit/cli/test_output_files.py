"""Where results go is looked at before the work begins, and left as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from octavo.cli import bench_fit, bench_kernels, bench_step, simulate
from octavo.cli import main as cli
from octavo.cli.output_files import check_file, check_folder
from octavo.errors import ConfigError
from octavo.figures import make
from octavo.sim import planner
from support.paths import TINYSTORIES


def work(*_: object, **__: object) -> None:
    raise AssertionError("work began")


@pytest.fixture(autouse=True)
def _no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (simulate, "_simulate"), (planner, "search"), (make, "make"), (bench_fit, "load"), (bench_kernels, "_measure"),
        (bench_step, "measure"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, work)


PLAN = ["plan", "opt-13b", "--device", "h100", "--lengths", "64:8"]
COMMANDS = [
    (["simulate", "--rate", "1", "--json"], "json"),
    ([*PLAN, "--json"], "json"),
    ([*PLAN, "--plot"], "plot"),
    (["bench", "fit", str(TINYSTORIES), "--output"], "output"),
    (["bench", "kernels", "--json"], "json"),
    (["bench", "step", "--save-result", "--result-filename"], "result_filename"),
]


@pytest.mark.parametrize(("words", "field"), COMMANDS, ids=lambda x: " ".join(x) if isinstance(x, list) else x)
def test_a_folder_is_no_file(words: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "taken.svg"
    folder.mkdir()
    assert cli.main([*words, str(folder)]) == 2
    assert f"{field} = " in (said := capsys.readouterr().err)
    assert "must be a file, not a folder" in said


@pytest.mark.parametrize(("words", "field"), COMMANDS[:5], ids=lambda x: " ".join(x) if isinstance(x, list) else x)
def test_the_folder_must_exist(
    words: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, str(tmp_path / "none" / "x.svg")]) == 2
    assert f"{field} = " in (said := capsys.readouterr().err)
    assert "must be in a folder that exists" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (["figures", "2", "--out"], "out"),
        (["bench", "step", "--save-result", "--result-dir"], "result_dir"),
    ],
)
def test_a_file_is_no_folder(words: list[str], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "file"
    path.write_text("mine")
    for folder in (path, path / "below"):
        assert cli.main([*words, str(folder)]) == 2
        assert f"{field} = " in (said := capsys.readouterr().err)
        assert "is a file" in said
    assert path.read_text() == "mine"


def test_what_is_there_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "here.json"
    path.write_text("before")
    check_file("json", str(path))
    check_file("json", str(tmp_path / "new.json"))
    check_file("json", str(tmp_path / "made" / "new.json"), makes_folder=True)
    check_file("json", os.devnull)
    check_file("json", None)
    check_folder("out", str(tmp_path / "a" / "b"))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("check", [check_file, check_folder])
def test_an_empty_name_is_refused(check: object) -> None:
    with pytest.raises(ConfigError, match="out = ''"):
        check("out", "")  # type: ignore[operator]


def test_what_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "here.json"
    path.write_text("before")
    monkeypatch.setattr(os, "access", lambda *_: False)  # whoever runs the tests may be allowed everything
    with pytest.raises(ConfigError, match="a file that may be written"):
        check_file("json", str(path))
    with pytest.raises(ConfigError, match="in a folder that may be written to"):
        check_file("json", str(tmp_path / "new.json"))
    with pytest.raises(ConfigError, match="in a folder that may be written to"):
        check_folder("out", str(tmp_path / "new"))
