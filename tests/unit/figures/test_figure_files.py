"""From jobs to files: workers, reports, pictures that a paper can print."""

from __future__ import annotations

import csv
import os
import re
import sys
from pathlib import Path

import msgspec
import pytest

from octavo.errors import ConfigError, OctavoError
from octavo.figures import catalogue, make, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, within_percent, within_points
from octavo.figures.files import read_report
from octavo.figures.page import lines, section
from octavo.figures.pool import Done, run_jobs
from octavo.figures.style import COLUMN_IN, LOOKS, PALETTE, new_picture, settle


class Squared(msgspec.Struct, frozen=True):
    """A job that says where it ran."""

    value: float
    is_alone: bool = False
    fault: str = ""

    @property
    def label(self) -> str:
        return f"the square of {self.value:g}"

    @property
    def weight(self) -> float:
        return self.value

    def run(self) -> Numbers:
        if self.fault == "die":
            os._exit(3)
        if self.fault:
            raise ConfigError("fault", self.fault, "absent")
        return {"square": self.value**2, "process": os.getpid()}


def draw(findings: Findings):  # type: ignore[no-untyped-def]
    picture = new_picture(COLUMN_IN, 2.2)
    axes = picture.subplots()
    for name, look in LOOKS.items():
        axes.plot([row["x"] for row in findings.rows], [row["y"] for row in findings.rows], **look.line_style())
        assert name in paper.SYSTEMS
    settle(axes, "value (units)", "square (units²)")
    axes.legend()
    return picture


FIGURE = Figure(
    name="squares",
    title="Squares",
    caption="Values and their squares.",
    plan=lambda is_short: [Squared(x) for x in range(2 if is_short else 5)],
    derive=lambda results: Findings(
        rows=[{"x": job.value, "y": numbers["square"], "why": None} for job, numbers in results.items()],
        comparisons=[within_percent("largest", max(n["square"] for n in results.values()), paper.Quoted(15, "P"), 10)],
        notes=["Made of whole numbers."],
    ),
    draw=draw,
)


def test_jobs_run_once_each_and_in_workers() -> None:
    jobs = [Squared(1), Squared(2), Squared(2), Squared(3, is_alone=True)]
    seen: list[str] = []
    results = run_jobs(jobs, 2, lambda job, done: seen.append(job.label))
    assert {job.value: done.numbers["square"] for job, done in results.items()} == {1: 1, 2: 4, 3: 9}
    assert sorted(seen) == ["the square of 1", "the square of 2", "the square of 3"]
    assert results[jobs[0]].numbers["process"] != os.getpid()
    assert results[jobs[3]].numbers["process"] == os.getpid(), "what measures time runs here, alone"
    assert seen[-1] == "the square of 3", "and when nobody else runs"


@pytest.mark.parametrize(
    ("fault", "message"), [("raise", "the square of 2 failed:.*fault = 'raise'"), ("die", "the square of 2 died")]
)
def test_a_job_that_fails_is_named(fault: str, message: str) -> None:
    with pytest.raises(OctavoError, match=re.compile(message, re.DOTALL)):
        run_jobs([Squared(1), Squared(2, fault=fault)], 2)


def test_files_are_fit_for_a_paper(tmp_path: Path) -> None:
    (report,) = make.make([FIGURE], tmp_path, num_workers=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"squares.{kind}" for kind in ("csv", "json", "png", "svg")
    ]
    assert (tmp_path / "squares.png").read_bytes().startswith(b"\x89PNG")

    svg = (tmp_path / "squares.svg").read_text()
    words = re.findall(r"<text[^>]*>(?:<[^>]*>)*([^<]+)", svg)
    assert {"value (units)", "Orca (Oracle)"} <= set(words), "text is text"
    used = {color.upper() for color in re.findall(r"(?:stroke|fill): (#[0-9a-f]{6})", svg)}
    assert used - {"#FFFFFF", "#DDDDDD"} <= set(PALETTE), "only colours that everyone can tell apart"
    assert len({look.marker for look in LOOKS.values()}) == len({look.line for look in LOOKS.values()}) == len(LOOKS)

    with (tmp_path / "squares.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert rows[3] == {"x": "3", "y": "9", "why": ""} and len(rows) == 5
    assert read_report(tmp_path / "squares.json") == report
    assert (report.num_jobs, report.is_short) == (5, False)
    assert make.make([FIGURE], tmp_path, num_workers=1, is_short=True)[0].is_short


def test_equal_numbers_make_equal_files(tmp_path: Path) -> None:
    for name in "ab":
        make.make([FIGURE], tmp_path / name, num_workers=1)
    for kind in ("svg", "png", "csv"):
        assert (tmp_path / "a" / f"squares.{kind}").read_bytes() == (tmp_path / "b" / f"squares.{kind}").read_bytes()


def test_a_report_says_what_differs_and_what_was_agreed() -> None:
    near = within_points("share", 20.9, paper.Quoted(20.0, "P"), 1)
    far = within_percent("ratio", 3.0, paper.Quoted(2.0, "F"), 20, unit="x", reason="another machine")
    free = Comparison(what="said", ours=2.5)
    assert (near.holds, far.holds, free.holds) == (True, False, None)
    assert (near.deviation, far.deviation, free.deviation) == ("+0.9 points", "+50.0 %", "")
    report = _report([near, far, free])
    text = "\n".join(lines(report))
    assert "share: 20.9 % against the paper's 20.0 % (+0.9 points); agreed: 19.0 % to 21.0 %, held" in text
    assert "ratio: 3.00x against the paper's 2.00x (+50.0 %); agreed: 1.60x to 2.40x, NOT HELD" in text
    assert "because: another machine" in text
    page = section(report)
    assert "| ratio | 3.00x | 2.00x [F] | +50.0 % | 1.60x to 2.40x | **not held** |" in page
    assert "* **ratio**: another machine" in page and "* A note." in page


def _report(comparisons: list[Comparison]):  # type: ignore[no-untyped-def]
    from octavo.figures.figure import Report

    return Report(
        name="squares", title="Squares", caption="", is_short=False, num_jobs=1, compute_s=1.0,
        comparisons=comparisons, notes=["A note."],
    )  # fmt: skip


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    ran: list[Done] = []
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[figures\]'"):
        make.make([FIGURE], tmp_path, num_workers=1, watch=lambda job, done: ran.append(done))
    assert not ran, "said before any work is done"


def test_unknown_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="figure = 'fig99': must be one of"):
        catalogue.load(["fig99"])
