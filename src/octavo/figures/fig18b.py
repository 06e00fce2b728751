"""Figure 18b: which block size serves best."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from octavo.figures import paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.figures.simulation import Simulation
from octavo.sim.capacity import LIMIT_S_PER_TOKEN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SHORT_SIZES = (4, 16, 256)
UNSLOWED_FROM = 16
"""From this block size on the kernel is taken to be as fast as it can be."""
SLOWED, UNSLOWED = "slowed", "not slowed"
BUSIER_RATE, BUSIER_SIZES = 32.0, (16, 32, 64, 128)
"""Alpaca once more, where our system has as little room left as the paper's had at its rate."""
MUCH_WORSE = 2.0
"""Times the latency of the slowest block size among the paper's best."""


class Panel(NamedTuple):
    """One data set at one rate."""

    title: str
    rate: float
    duration_s: float
    short_s: float


PANELS: dict[str, Panel] = {
    "sharegpt": Panel("(a) ShareGPT, 2.01 requests/s", 2.01, 600.0, 80.0),
    "alpaca": Panel("(b) Alpaca, 30.1 requests/s", 30.1, 600.0, 15.0),
}
"""The artifact's rates: 30.1 for this figure, 2.01 for Figure 19b."""


def plan(is_short: bool) -> list[Simulation]:
    jobs = [
        _run(workload, panel.rate, panel.short_s if is_short else panel.duration_s, size, is_slowed)
        for workload, panel in PANELS.items()
        for size in (SHORT_SIZES if is_short else SIZES)
        for is_slowed in ((True, False) if size < UNSLOWED_FROM else (True,))
    ]
    if not is_short:
        jobs += [_run("alpaca", BUSIER_RATE, PANELS["alpaca"].duration_s, size, True) for size in BUSIER_SIZES]
    return jobs


def _run(workload: str, rate: float, duration_s: float, block_size: int, is_slowed: bool) -> Simulation:
    return Simulation(
        model="opt-13b",
        system=paper.PAGED,
        workload=workload,
        rate=rate,
        duration_s=duration_s,
        system_options=(("block_size", block_size), ("slow_small_blocks", is_slowed)),
    )


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    for job, numbers in results.items():
        options = dict(job.system_options)
        rows.append(
            {
                "workload": job.workload,
                "rate": job.rate,
                "block_size": int(options["block_size"] or 0),
                "kernel": SLOWED if options["slow_small_blocks"] else UNSLOWED,
                "latency_s_per_token": numbers["latency_s"],
                "mean_running": numbers["mean_running"],
                "num_preemptions": int(numbers["num_preemptions"]),
            }
        )
    comparisons = [comparison for workload in PANELS for comparison in _compare(workload, rows)]
    return Findings(rows, comparisons + _busier(rows), list(_NOTES))


def latencies(rows: list[Row], workload: str, rate: float, kernel: str = SLOWED) -> dict[int, float]:
    """Block size -> seconds per token, ascending. Large blocks are as fast with either kernel."""
    return {
        int(row["block_size"] or 0): float(row["latency_s_per_token"] or 0.0)
        for row in sorted(rows, key=lambda row: int(row["block_size"] or 0))
        if (row["workload"], row["rate"]) == (workload, rate)
        and (row["kernel"] == kernel or int(row["block_size"] or 0) >= UNSLOWED_FROM)
    }


def _compare(workload: str, rows: list[Row]) -> list[Comparison]:
    panel, good = PANELS[workload], paper.FIG18B_BEST[workload]
    by_size = latencies(rows, workload, panel.rate)
    best = min(by_size, key=lambda size: by_size[size])
    slowest = max(latency for size, latency in by_size.items() if size in good)
    words = f"{good[0]} to {good[-1]}"
    return [
        Comparison(
            what=f"{panel.title}: best block size",
            ours=best,
            unit="tokens",
            said=f"{words} [P]",
            low=good[0],
            high=good[-1],
        ),
        Comparison(
            what=f"{panel.title}: slowest of {words}",
            ours=slowest,
            unit="s/token",
            said="among the best [P]",
            high=LIMIT_S_PER_TOKEN,
        ),
        *(
            _worse(panel, words, size, latency / slowest, good[-1])
            for size, latency in by_size.items()
            if size not in good
        ),
    ]


def _worse(panel: Panel, words: str, size: int, ratio: float, largest_good: int) -> Comparison:
    """What is above the paper's best must be worse than all of them, and the largest much worse. What is below it is
    not judged: there our own assumption about the kernel decides."""
    low = None if size < largest_good else MUCH_WORSE if size == SIZES[-1] and largest_good < 128 else 1.0
    return Comparison(
        what=f"{panel.title}: blocks of {size} over the slowest of {words}",
        ours=ratio,
        unit="x",
        said="worse [P]",
        low=low,
        reason=_BELOW if size < largest_good and ratio < 1 else "",
    )


def _busier(rows: list[Row]) -> list[Comparison]:
    by_size = latencies(rows, "alpaca", BUSIER_RATE)
    good = paper.FIG18B_BEST["alpaca"]
    slowest = max((latency for size, latency in by_size.items() if size in good), default=0.0)
    return [
        Comparison(
            what=f"Alpaca, {BUSIER_RATE:g} requests/s: blocks of {size} over the slowest of {good[0]} to {good[-1]}",
            ours=latency / slowest,
            unit="x",
            reason=_BUSIER,
        )
        for size, latency in by_size.items()
        if size not in good
    ]


_BELOW = (
    "how much a small block slows the kernel is our assumption, and near the rate that is sustained a block of 128 "
    "costs more in wasted memory than that."
)
_BUSIER = (
    "at 30.1 requests/s our system has some room left, because its steps are a little shorter than the paper's: its "
    "batch is smaller at the same rate (Figure 13b). Blocks of 64 waste about as much memory as there is to spare, so "
    "they are hardly worse there, and much worse at a rate a little higher."
)
_NOTES = [
    "What large blocks cost is simulated exactly: the unfilled end of a sequence's last block is memory that holds "
    "nobody, so fewer requests fit and more of them wait or are computed again.",
    "What small blocks cost the kernel is an assumption: its time to read KV is taken to be 4, 2.5, 1.6 and 1.15 times "
    "as long for blocks of 1, 2, 4 and 8 tokens, because such blocks leave lanes of a GPU's warp idle. The dashed "
    "curve leaves it out: to the simulator alone small blocks are never worse. Our own CPU kernel is slower with small "
    "blocks too (Figure 18a).",
    "Near the rate that a system sustains, latency rises steeply with every block that is wasted, so ratios of "
    "latencies are much larger than those of what is wasted.",
]


def draw(findings: Findings) -> Picture:
    from octavo.figures import style

    picture = style.new_picture(style.COLUMN_IN, 2.2)
    both = picture.subplots(1, 2, sharey=True)
    for axes, (workload, panel) in zip(both, PANELS.items(), strict=True):
        _draw_panel(axes, findings.rows, workload)
        axes.set_title(panel.title.replace(" requests/s", "/s"))
        style.settle(axes, "Block size (tokens)", "")
    both[0].set_ylabel("Normalised latency (s/token)")
    by_label = {label: handle for axes in both for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    picture.legend(by_label.values(), by_label.keys(), loc="outside upper center", ncols=2)
    return picture


def _draw_panel(axes: Axes, rows: list[Row], workload: str) -> None:
    from octavo.figures import style

    good, rate = paper.FIG18B_BEST[workload], PANELS[workload].rate
    axes.axvspan(good[0] / 1.3, good[-1] * 1.3, color=style.YELLOW, alpha=0.35, linewidth=0, label="the paper's best")
    unslowed, slowed = latencies(rows, workload, rate, UNSLOWED), latencies(rows, workload, rate)
    busier = latencies(rows, workload, BUSIER_RATE)
    axes.plot(
        list(unslowed), list(unslowed.values()),
        color=style.SKY, linestyle="--", marker="s", label="kernel not slowed",
    )  # fmt: skip
    axes.plot(list(slowed), list(slowed.values()), color=style.BLUE, marker="o", label="kernel slowed")
    if busier:
        axes.plot(
            list(busier), list(busier.values()),
            color=style.VERMILION, linestyle=":", marker="^", label=f"the same at {BUSIER_RATE:g}/s",
        )  # fmt: skip
    log_axes(axes, [latency for curve in (unslowed, slowed, busier) for latency in curve.values()])


def log_axes(axes: Axes, latencies: list[float]) -> None:
    """Block sizes across and latencies up, both in logarithms, with plain numbers at the ticks."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.set_yscale("log")
    ticks = [tick for tick in _TICKS if min(latencies) / 2 <= tick <= max(latencies) * 2]
    axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


_TICKS = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20)


FIGURE = Figure(
    name="fig18b",
    title="Figure 18b: latency by block size",
    caption=(
        "OPT-13B on one A100-40GB, mean latency per token of the answer at a fixed rate of requests, by tokens per "
        "block. Small blocks slow the kernel, which the dashed curve leaves out; large ones waste memory."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
