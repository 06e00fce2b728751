"""A figure's files: picture, numbers, report."""

from __future__ import annotations

import csv
from pathlib import Path

import msgspec

from octavo.figures.figure import AnyFigure, Findings, Report, Row


def write(figure: AnyFigure, findings: Findings, report: Report, folder: Path) -> list[Path]:
    """Write NAME.png, NAME.svg, NAME.csv and NAME.json; returns their paths. Needs matplotlib."""
    from octavo.figures.style import settings

    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / figure.name
    png, svg = stem.with_suffix(".png"), stem.with_suffix(".svg")
    with settings():
        picture = figure.draw(findings)
        picture.savefig(png, metadata={"Software": None})
        picture.savefig(svg, metadata={"Date": None, "Creator": None, "Title": figure.title})
    table = stem.with_suffix(".csv")
    write_csv(table, findings.rows)
    words = stem.with_suffix(".json")
    words.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    return [png, svg, table, words]


def write_csv(path: Path, rows: list[Row]) -> None:
    """One line per row under the names of the columns; numbers with six digits, nothing where there is no number."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow({name: f"{cell:.6g}" if isinstance(cell, float) else cell for name, cell in row.items()})


def read_report(path: Path) -> Report:
    """A report that `write` wrote."""
    return msgspec.json.decode(path.read_bytes(), type=Report)
