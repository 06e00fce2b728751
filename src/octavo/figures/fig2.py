"""Figure 2: what KV memory holds while the systems are overloaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.figures import paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row, within_points
from octavo.figures.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.MAX, paper.POW2, paper.ORACLE, paper.PAGED)
"""In the paper's order."""
POINTS = 1.0
"""How far a cell may be from the paper's."""


def plan(is_short: bool) -> list[Simulation]:
    """The artifact's run: 4 requests/s for 900 s, averages from 300 s on. No system keeps up, so the queue never ends
    and the time that the batch needs to settle decides how short a run may be."""
    begin_s, end_s = (60.0, 150.0) if is_short else (300.0, 900.0)
    return [
        Simulation(
            model="opt-13b",
            system=system,
            workload="sharegpt",
            rate=4.0,
            duration_s=end_s,
            until_s=end_s,
            probe="memory",
            window_s=(begin_s, end_s),
        )
        for system in SYSTEMS
    ]


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    by_system = {job.system: numbers for job, numbers in results.items()}
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for system in SYSTEMS:
        quoted = paper.FIG2[system]
        for state in paper.MEMORY_STATES:
            ours = by_system[system][state]
            theirs = quoted.get(state)
            rows.append(
                {"system": system, "state": state, "percent": ours, "paper_percent": theirs.value if theirs else None}
            )
            if theirs is not None:
                comparisons.append(within_points(f"{paper.NAMES[system]}, {state}", ours, theirs, POINTS))
    return Findings(rows, comparisons)


def draw(findings: Findings) -> Picture:
    """A pair of bars for each system: ours, and under it the paper's."""
    from octavo.figures import style

    looks = {
        paper.TOKENS: (style.BLUE, ""),
        paper.RESERVED: (style.SKY, "////"),
        paper.INTERNAL: (style.ORANGE, "...."),
        paper.REST: (style.GREY, ""),
    }
    picture = style.new_picture(style.COLUMN_IN, 2.3)
    axes = picture.subplots()
    for place, system in enumerate(SYSTEMS):
        rows = [row for row in findings.rows if row["system"] == system]
        ours = [(str(row["state"]), float(row["percent"] or 0.0)) for row in rows]
        theirs = [(state, value.value) for state, value in paper.FIG2[system].items()]
        theirs += [(paper.REST, 100 - sum(value for _, value in theirs))] if system == paper.PAGED else []
        for parts, middle, height in ((ours, place - 0.14, 0.44), (theirs, place + 0.24, 0.22)):
            left = 0.0
            for state, value in parts:
                color, hatch = looks[state]
                label = state if place == 0 and parts is ours else "_nolegend_"
                axes.barh(
                    middle, value, height, left, color=color, hatch=hatch, edgecolor="white", linewidth=0.4, label=label
                )
                if parts is ours and value >= 8:
                    ink = "white" if state == paper.TOKENS else "black"
                    box = {"facecolor": color, "edgecolor": "none", "pad": 0.6} if hatch else None
                    axes.text(
                        left + value / 2, middle, f"{value:.1f}",
                        ha="center", va="center", color=ink, fontsize=6.5, bbox=box,
                    )  # fmt: skip
                left += value
        axes.text(101, place + 0.24, "paper", va="center", fontsize=5.5)
    axes.set_yticks(range(len(SYSTEMS)), [style.LOOKS[system].label for system in SYSTEMS])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    style.settle(axes, "Share of KV memory (%)", "", grid="")
    picture.legend(loc="outside upper center", ncols=2)
    return picture


FIGURE = Figure(
    name="fig2",
    title="Figure 2: what KV memory holds",
    caption=(
        "OPT-13B on one A100-40GB, ShareGPT at 4 requests/s, which no system keeps up with. Averages over the steps "
        "from 300 s to 900 s. Wide bars are ours, narrow ones the paper's. The baselines set memory aside when a "
        "request is admitted; the paged system binds a block when it is needed."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
