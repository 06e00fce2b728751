"""Figure 19b: swapping or computing again, end to end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.figures import paper
from octavo.figures.fig18b import SHORT_SIZES, SIZES, log_axes
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.figures.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

RATE, DURATION_S, SHORT_S = 2.01, 600.0, 80.0
"""The artifact's."""
HOST_TOKENS = 26_208
"""20 GiB of OPT-13B's KV, the artifact's default."""
WAYS = ("swap", "recompute")


def plan(is_short: bool) -> list[Simulation]:
    return [
        Simulation(
            model="opt-13b",
            system=paper.PAGED,
            workload="sharegpt",
            rate=RATE,
            duration_s=SHORT_S if is_short else DURATION_S,
            system_options=(
                ("block_size", size),
                ("slow_small_blocks", True),
                ("preemption", way),
                ("num_host_blocks", HOST_TOKENS // size if way == "swap" else 0),
            ),
        )
        for size in (SHORT_SIZES if is_short else SIZES)
        for way in WAYS
    ]


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    for job, numbers in results.items():
        options = dict(job.system_options)
        rows.append(
            {
                "block_size": int(options["block_size"] or 0),
                "preemption": str(options["preemption"]),
                "latency_s_per_token": numbers["latency_s"],
                "num_preemptions": int(numbers["num_preemptions"]),
            }
        )
    swap, recompute = (by_size(rows, way) for way in WAYS)
    comparisons = [
        Comparison(
            what=f"recomputing over swapping, blocks of {size}",
            ours=recompute[size] / swap[size],
            unit="x",
            said="comparable [P]" if size in paper.FIG19_COMPARABLE else "",
        )
        for size in swap
    ]
    return Findings(rows, comparisons, list(_NOTES))


def by_size(rows: list[Row], way: str) -> dict[int, float]:
    """Block size -> seconds per token of one way to preempt."""
    return {
        int(row["block_size"] or 0): float(row["latency_s_per_token"] or 0.0)
        for row in rows
        if row["preemption"] == way
    }


_NOTES = [
    "Small blocks slow the kernel as assumed for Figure 18b, in both ways alike.",
    "With large blocks swapping is the slower one here: while somebody is swapped out nobody new is admitted, and it "
    "needs room for a request's blocks at once to bring it back.",
]


def draw(findings: Findings) -> Picture:
    from octavo.figures import style

    picture = style.new_picture(style.COLUMN_IN, 1.9)
    axes = picture.subplots()
    for way, color, marker, line in (("swap", style.VERMILION, "^", "--"), ("recompute", style.BLUE, "o", "-")):
        points = by_size(findings.rows, way)
        label = "swap" if way == "swap" else "recompute"
        axes.plot(list(points), list(points.values()), color=color, marker=marker, linestyle=line, label=label)
    log_axes(axes, [float(row["latency_s_per_token"] or 0.0) for row in findings.rows])
    style.settle(axes, "Block size (tokens)", "Normalised latency (s/token)")
    axes.legend()
    return picture


FIGURE = Figure(
    name="fig19b",
    title="Figure 19b: swap or recompute, end to end",
    caption=(
        "OPT-13B on one A100-40GB, ShareGPT at 2.01 requests/s: a rate at which memory runs out now and then. Whoever "
        "has to make room is swapped to host memory in one curve, and computed again in the other."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
