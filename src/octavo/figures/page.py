"""Reports as words: lines for the terminal, and the tables of docs/paper.md."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.figures.figure import Comparison, Report

_MARKS = {
    "P": "the paper",
    "F": "a transcription of the paper's picture",
    "AE": "the authors' artifact",
    "V": "a third party's check",
}


def lines(report: Report) -> list[str]:
    """What to print of a report: a line for each comparison, and the reasons under those that have one."""
    out = [f"{report.name}: {report.title}" + (" (short form)" if report.is_short else "")]
    for comparison in report.comparisons:
        out.append("  " + _line(comparison))
        if comparison.reason:
            out.append(f"    because: {comparison.reason}")
    return out


def _line(c: Comparison) -> str:
    text = f"{c.what}: {number(c.ours, c.unit)}"
    if c.paper is not None:
        text += f" against the paper's {number(c.paper, c.unit)}"
        if c.deviation:
            text += f" ({c.deviation})"
    elif c.said:
        text += f" (the paper: {c.said})"
    agreed = _agreed(c)
    if agreed:
        text += f"; agreed: {agreed}, {'held' if c.holds else 'NOT HELD'}"
    return text


def overview(reports: Iterable[Report]) -> list[str]:
    """A table of the figures: how many of the agreed numbers hold in each."""
    out = ["| figure | agreed on before | held |", "|---|---|---|"]
    for report in reports:
        verdicts = [c.holds for c in report.comparisons if c.holds is not None]
        out.append(f"| [{report.title}](#{_anchor(report.title)}) | {len(verdicts)} | {sum(verdicts)} |")
    return out


def _anchor(title: str) -> str:
    """The link to a heading, as renderers of Markdown make it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -")
    return kept.replace(" ", "-")


def section(report: Report) -> str:
    """A report as a section of the page, with its picture and its table; no reason stands twice."""
    out = [f"## {report.title}", "", f"![{report.title}](figures/{report.name}.svg)", "", report.caption, ""]
    if report.comparisons:
        out += [*_table(report.comparisons), ""]
    out += [f"* {text}" for text in dict.fromkeys([*_reasons(report.comparisons), *report.notes])]
    out += ["", f"[CSV](figures/{report.name}.csv) · {report.num_jobs} runs, {report.compute_s:.0f} s of one core", ""]
    return "\n".join(out)


def _table(comparisons: Iterable[Comparison]) -> list[str]:
    out = ["| | ours | paper | deviation | agreed before | |", "|---|---|---|---|---|---|"]
    for c in comparisons:
        quoted = c.said if c.paper is None else f"{number(c.paper, c.unit)} [{c.source}]"
        verdict = {None: "", True: "held", False: "**not held**"}[c.holds]
        out.append(f"| {c.what} | {number(c.ours, c.unit)} | {quoted} | {c.deviation} | {_agreed(c)} | {verdict} |")
    return out


def _reasons(comparisons: Iterable[Comparison]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for c in comparisons:
        if c.reason:
            by_reason.setdefault(c.reason, []).append(c.what)
    return [f"**{_few(whats)}**: {reason}" for reason, whats in by_reason.items()]


def _few(whats: list[str]) -> str:
    return "; ".join(whats) if len(whats) < 5 else f"{whats[0]} and {len(whats) - 1} more"


def _agreed(c: Comparison) -> str:
    if c.low is not None and c.high is not None:
        return f"{number(c.low, c.unit)} to {number(c.high, c.unit)}"
    if c.low is not None:
        return f"at least {number(c.low, c.unit)}"
    return "" if c.high is None else f"at most {number(c.high, c.unit)}"


def number(value: float, unit: str) -> str:
    """A number with its unit, in three or four digits."""
    if unit == "%":
        return f"{value:.1f} %"
    if unit == "tokens":
        return f"{value:g} tokens"
    digits = 0 if abs(value) >= 1000 else 1 if abs(value) >= 100 else 2 if abs(value) >= 0.1 else 4
    text = f"{value:.{digits}f}"
    return f"{text}{unit}" if unit == "x" else f"{text} {unit}".rstrip()


def sources() -> str:
    """What the marks in the tables mean."""
    return "; ".join(f"[{mark}] {meaning}" for mark, meaning in _MARKS.items())
