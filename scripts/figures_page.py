"""Write docs/figures.md from the reports in docs/figures: `make paper`.

With folders that `octavo figures` wrote, their pictures, tables and reports replace those of docs/figures first.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import msgspec

from octavo.errors import ConfigError
from octavo.figures.catalogue import MODULES
from octavo.figures.figure import Report
from octavo.figures.files import read_report
from octavo.figures.make import SUMMARY, Summary
from octavo.figures.page import overview, section, sources

DOCS = Path(__file__).parents[1] / "docs"
FOLDER, PAGE = DOCS / "figures", DOCS / "figures.md"
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"
KINDS = ("svg", "csv", "json")


def take(folder: Path) -> None:
    """Copy what the page shows.

    Raises:
        ConfigError: If the figures are of the short form.
    """
    summary = read_summary(folder)
    if summary.is_short:
        raise ConfigError("folder", str(folder), "figures that were made without --short")
    FOLDER.mkdir(exist_ok=True)
    for name in MODULES:
        if (folder / f"{name}.json").exists():
            for kind in KINDS:
                shutil.copy(folder / f"{name}.{kind}", FOLDER)
    shutil.copy(folder / SUMMARY, FOLDER)


def read_summary(folder: Path) -> Summary:
    return msgspec.json.decode((folder / SUMMARY).read_bytes(), type=Summary)


def reports() -> list[Report]:
    """Of the figures in docs/figures, in the paper's order."""
    paths = [FOLDER / f"{name}.json" for name in MODULES]
    return [read_report(path) for path in paths if path.exists()]


def generated() -> str:
    """What stands between the markers."""
    summary, found = read_summary(FOLDER), reports()
    machine = summary.machine
    num_runs, compute_s = sum(report.num_jobs for report in found), sum(report.compute_s for report in found)
    made = (
        f"{num_runs} runs took {compute_s / 60:.0f} minutes of one core, on {summary.date} ({machine['cpu']}, Python "
        f"{machine['python']}). Sources of the paper's numbers: {sources()}."
    )
    return "\n".join([made, "", *overview(found), "", *map(section, found)])


def render() -> str:
    """The whole page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{generated()}\n{END}{after}"


def main() -> None:
    for folder in sys.argv[1:]:
        take(Path(folder))
    PAGE.write_text(render())


if __name__ == "__main__":
    main()
