"""Figure 13: how many requests the systems batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from octavo.figures import paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row, within_percent
from octavo.figures.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.MAX, paper.POW2, paper.ORACLE, paper.PAGED)


class Panel(NamedTuple):
    """One data set at one rate."""

    title: str
    rate: float
    duration_s: float
    short_s: float
    percent: Mapping[str, float]
    """System -> how far it may be from the paper's."""


PANELS: dict[str, Panel] = {
    "sharegpt": Panel(
        "(a) ShareGPT, 2 requests/s", 2.0, 3600.0, 300.0,
        {paper.MAX: 3, paper.POW2: 3, paper.ORACLE: 3, paper.PAGED: 10},
    ),
    "alpaca": Panel("(b) Alpaca, 30 requests/s", 30.0, 900.0, 30.0, dict.fromkeys(SYSTEMS, 15)),
}  # fmt: skip


def plan(is_short: bool) -> list[Simulation]:
    """The last five sixths of an hour of ShareGPT, the last two thirds of a quarter of an hour of Alpaca, which is six
    times as many requests. Every run ends with its arrivals: what follows has no rate."""
    jobs = []
    for workload, panel in PANELS.items():
        end_s = panel.short_s if is_short else panel.duration_s
        begin_s = end_s / 6 if workload == "sharegpt" else end_s / 3
        jobs += [
            Simulation(
                model="opt-13b",
                system=system,
                workload=workload,
                rate=panel.rate,
                duration_s=end_s,
                until_s=end_s,
                probe="batch",
                window_s=(begin_s, end_s),
            )
            for system in SYSTEMS
        ]
    return jobs


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for workload, panel in PANELS.items():
        ours = {job.system: numbers["requests"] for job, numbers in results.items() if job.workload == workload}
        for system in SYSTEMS:
            quoted = paper.FIG13[workload][system]
            rows.append(
                {"workload": workload, "system": system, "requests": ours[system], "paper_requests": quoted.value}
            )
            what = f"{panel.title}: {paper.NAMES[system]}"
            comparisons.append(within_percent(what, ours[system], quoted, panel.percent[system], reason=""))
    return Findings(rows, comparisons)


def draw(findings: Findings) -> Picture:
    """Bars, each with the paper's value as a line across it."""
    from octavo.figures import style

    picture = style.new_picture(style.COLUMN_IN, 2.1)
    for axes, workload in zip(picture.subplots(1, 2), PANELS, strict=True):
        _draw_panel(axes, [row for row in findings.rows if row["workload"] == workload])
        axes.set_title(PANELS[workload].title)
    picture.axes[0].set_ylabel("Requests in a batch")
    style.bar_legend(picture, 3)
    return picture


def _draw_panel(axes: Axes, rows: list[Row]) -> None:
    from octavo.figures import style

    values = [float(row["requests"] or 0.0) for row in rows]
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        look = style.LOOKS[str(row["system"])]
        axes.bar(place, value, 0.72, label=look.label, **look.bar_style())
    style.label_bars(axes, values, [float(row["paper_requests"] or 0.0) for row in rows], 0.72)
    axes.set_xticks([])
    axes.grid(axis="y")


FIGURE = Figure(
    name="fig13",
    title="Figure 13: requests in a batch",
    caption=(
        "OPT-13B on one A100-40GB. Average number of requests in a step, over steps; the line across a bar is the "
        "paper's value. More requests in a batch means that the weights, which every step reads, serve more of them."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
