"""Figure 15: how much KV memory sharing saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.figures import paper
from octavo.figures.fig14 import HOST_BLOCKS
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row, within_points
from octavo.figures.simulation import Simulation
from octavo.traces.beams import BASE, CHAT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

COUNTS = (2, 4, 6)
RATE = 20.0
KINDS = {"parallel": ("n", 2.0), "beam": ("beam_width", 6.0)}
"""Workload -> (its setting, points that the saving may be from the paper's)."""
TITLES = {"parallel": "Parallel sampling: answers", "beam": "Beam search: width"}
SEARCHERS = {"parallel": (BASE,), "beam": (BASE, CHAT)}
"""Workload -> whose searches are replayed; what is judged is the first's."""


def plan(is_short: bool) -> list[Simulation]:
    """The artifact's runs: 20 requests/s for 900 s, averages from 300 s on."""
    begin_s, end_s = (5.0, 14.0) if is_short else (300.0, 900.0)
    return [
        Simulation(
            model="opt-13b",
            system=paper.PAGED,
            workload=workload,
            workload_options=((setting, count),),
            system_options=(("preemption", "swap"), ("num_host_blocks", HOST_BLOCKS)),
            rate=RATE,
            duration_s=end_s,
            until_s=end_s,
            probe="sharing",
            window_s=(begin_s, end_s),
            beams=beams,
        )
        for workload, (setting, _) in KINDS.items()
        for beams in SEARCHERS[workload]
        for count in (COUNTS[::2] if is_short else COUNTS)
    ]


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for job, numbers in results.items():
        ((_, count),) = job.workload_options
        quoted = paper.FIG15[job.workload][int(count or 0)]
        saved, is_judged = 100 * (1 - 1 / numbers["factor"]), job.beams == BASE
        kind = job.workload if is_judged else f"{job.workload}, {job.beams}"
        rows.append({"kind": kind, "count": int(count or 0), "saved_percent": saved, "paper_percent": quoted.value})
        what, points = f"{TITLES[job.workload]} {count}", KINDS[job.workload][1]
        comparisons.append(
            within_points(what, saved, quoted, points)
            if is_judged
            else Comparison(what=f"{what}, of SmolLM2-135M-Instruct", ours=saved, unit="%")
        )
    return Findings(
        rows,
        comparisons,
        [
            "Which beams survive is replayed from searches recorded on Gemma 3 270M; the paper's are OPT-13B's. Both "
            "are base models. SmolLM2-135M-Instruct is tuned for conversations: its wide beams share more of their "
            "past."
        ],
    )


def draw(findings: Findings) -> Picture:
    """Bars, each with the paper's value as a line across it."""
    from octavo.figures import style

    picture = style.new_picture(style.COLUMN_IN, 1.9)
    look = style.Look("ours", style.BLUE, "o", "-")
    for axes, kind in zip(picture.subplots(1, 2), KINDS, strict=True):
        rows = [row for row in findings.rows if row["kind"] == kind]
        values = [float(row["saved_percent"] or 0.0) for row in rows]
        axes.bar(range(len(rows)), values, 0.6, label=look.label, **look.bar_style())
        style.label_bars(axes, values, [float(row["paper_percent"] or 0.0) for row in rows], 0.8)
        axes.set_xticks(range(len(rows)), [str(row["count"]) for row in rows])
        style.settle(axes, TITLES[kind], "")
    picture.axes[0].set_ylabel("KV memory saved (%)")
    style.bar_legend(picture, 2)
    return picture


FIGURE = Figure(
    name="fig15",
    title="Figure 15: memory saved by sharing",
    caption=(
        "OPT-13B on one A100-40GB, Alpaca at 20 requests/s. Blocks that sequences would need if they shared none, over "
        "those they do, averaged over the steps from 300 s to 900 s; the line across a bar is the paper's value."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
