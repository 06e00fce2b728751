"""Figures from beginning to end: all their runs in one pool, then each derived, drawn and written."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.figures import files
from octavo.figures.figure import AnyFigure, Job, Report
from octavo.figures.pool import Done, Watcher, run_jobs

SUMMARY = "summary.json"


class Summary(msgspec.Struct, kw_only=True):
    """How the figures of a folder were made."""

    date: str
    command: str
    num_workers: int
    num_jobs: int
    wall_s: float
    is_short: bool
    machine: dict[str, Any]
    """Its fingerprint; see `octavo.cli.machine`."""


def check_drawing() -> None:
    """See that pictures can be drawn, before an hour of work is done for them.

    Raises:
        ConfigError: If matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise ConfigError("figures", "matplotlib", "installed: pip install 'octavo[figures]'") from None


def plan(figures: Sequence[AnyFigure], is_short: bool) -> dict[str, list[Job]]:
    """The runs of each figure, by its name. Figures may share runs: equal ones are run once."""
    return {figure.name: figure.plan(is_short) for figure in figures}


def make(
    figures: Sequence[AnyFigure],
    folder: Path,
    *,
    num_workers: int,
    is_short: bool = False,
    origin: str = "",
    watch: Watcher = lambda job, done: None,
    tell: Callable[[Report], None] = lambda report: None,
) -> list[Report]:
    """Make figures and write their files into a folder. Nothing is taken from an earlier call: every run is run.

    Args:
        figures: Each is drawn even if one before it missed the paper's numbers; that is what reports are for.
        folder: Made if it is not there.
        num_workers: Processes for the runs.
        is_short: Make the short form.
        origin: A sentence on machine, date, version and command, which goes with every figure that measures time.
        watch: Told of each run that is done.
        tell: Told of each figure that is written.

    Raises:
        ConfigError: If matplotlib is not installed.
        OctavoError: If a run failed.
    """
    check_drawing()
    jobs = plan(figures, is_short)
    results = run_jobs([job for of_figure in jobs.values() for job in of_figure], num_workers, watch)
    reports = []
    for figure in figures:
        report = _finish(figure, {job: results[job] for job in jobs[figure.name]}, folder, is_short, origin)
        tell(report)
        reports.append(report)
    return reports


def _finish(figure: AnyFigure, results: dict[Job, Done], folder: Path, is_short: bool, origin: str) -> Report:
    findings = figure.derive({job: done.numbers for job, done in results.items()})
    if origin and any(job.is_alone for job in results):
        findings.notes.append(origin)
    if is_short:  # what was agreed on was agreed for the whole runs
        findings.comparisons = [msgspec.structs.replace(c, low=None, high=None) for c in findings.comparisons]
    report = Report(
        name=figure.name,
        title=figure.title,
        caption=figure.caption,
        is_short=is_short,
        num_jobs=len(results),
        compute_s=round(sum(done.seconds for done in results.values()), 1),
        comparisons=findings.comparisons,
        notes=findings.notes,
    )
    files.write(figure, findings, report, folder)
    return report


def write_summary(
    folder: Path,
    *,
    command: str,
    num_workers: int,
    num_jobs: int,
    wall_s: float,
    is_short: bool,
    machine: dict[str, Any],
) -> None:
    """Write how the figures were made, beside them."""
    summary = Summary(
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        command=command,
        num_workers=num_workers,
        num_jobs=num_jobs,
        wall_s=round(wall_s, 1),
        is_short=is_short,
        machine=machine,
    )
    (folder / SUMMARY).write_bytes(msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n")
