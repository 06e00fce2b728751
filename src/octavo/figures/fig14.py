"""Figure 14: what rate the systems sustain when a request asks for several answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from octavo.figures import curves, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row, within_percent
from octavo.figures.simulation import Simulation
from octavo.traces.beams import BASE, CHAT

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.PAGED, paper.ORACLE, paper.POW2, paper.MAX)
DURATION_S = 600.0
"""Of arrivals: the artifact's."""
SHARES = (0.6, 0.85, 1.0, 1.15, 1.4)
"""Of the rate at which a curve is expected to turn: where to run."""
BEAM_SHARES = (0.6, 1.0, 1.1)
"""The same for beam searches, which take longest to simulate."""
JUDGED_SHARES = (0.6, 0.9, 1.0, 1.1)
PERCENT = 20.0
"""How far a ratio may be from the paper's."""
HOST_BLOCKS = 1638
"""20 GiB of OPT-13B's KV, the artifact's default. It swaps requests that have several sequences."""


class Panel(NamedTuple):
    """One way to ask for answers."""

    title: str
    """Empty for one that is not drawn."""
    workload: str
    options: tuple[tuple[str, int], ...]
    knees: tuple[float, ...]
    """Of the first `SYSTEMS`: about the rates at which latencies rise; they only say where to run."""
    shares: tuple[float, ...] = SHARES
    beams: str = BASE
    """Of `traces.beams`: whose searches are replayed."""


PANELS: dict[str, Panel] = {
    "basic": Panel("Basic sampling", "alpaca", (), (33, 24, 18, 4.1)),
    "parallel 2": Panel("(a) Parallel, 2 answers", "parallel", (("n", 2),), (19.8, 14.4, 10.8, 2.1)),
    "parallel 4": Panel("(b) Parallel, 4 answers", "parallel", (("n", 4),), (11.9, 8.2, 5.3, 1.05)),
    "parallel 6": Panel("(c) Parallel, 6 answers", "parallel", (("n", 6),), (8.1, 5.2, 3.2, 0.7)),
    "beam 2": Panel("(d) Beam search, width 2", "beam", (("beam_width", 2),), (21.5, 14.2, 10.8, 1.8), BEAM_SHARES),
    "beam 4": Panel("(e) Beam search, width 4", "beam", (("beam_width", 4),), (13, 7.8, 5.1, 0.57), BEAM_SHARES),
    "beam 6": Panel("(f) Beam search, width 6", "beam", (("beam_width", 6),), (9.5, 5.2, 3.5, 0.55), JUDGED_SHARES),
    "beam 6, of SmolLM2-135M-Instruct": Panel("", "beam", (("beam_width", 6),), (9.5, 5.2), JUDGED_SHARES[1:], CHAT),
}


def plan(is_short: bool) -> list[Simulation]:
    if is_short:
        return _runs("parallel 2", 40.0, lambda knee: curves.around(knee, (0.7, 1.6, 2.5)))
    return [
        job
        for name, panel in PANELS.items()
        for job in _runs(name, DURATION_S, partial(curves.around, shares=panel.shares))
    ]


def _runs(name: str, duration_s: float, rates: Callable[[float], curves.Rates]) -> list[Simulation]:
    panel = PANELS[name]
    swaps = (("preemption", "swap"), ("num_host_blocks", HOST_BLOCKS)) if panel.options else ()
    found = curves.runs(
        "opt-13b",
        panel.workload,
        duration_s,
        {system: rates(knee) for system, knee in zip(SYSTEMS, panel.knees, strict=False)},
        workload_options=panel.options,
        system_options={paper.PAGED: swaps},
    )
    return [msgspec.structs.replace(job, beams=panel.beams) for job in found]


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for name, panel in PANELS.items():
        points = [
            (job, numbers)
            for job, numbers in results.items()
            if (job.workload, job.workload_options, job.beams) == (panel.workload, panel.options, panel.beams)
        ]
        if points:
            rows += curves.rows(name, points)
            comparisons += _compare(name, curves.sustained(rows, name))
    return Findings(rows, comparisons, [_NOTE, *curves.notes(rows)])


_NOTE = (
    f"Requests arrive for {DURATION_S:g} s. Which beams survive is replayed from searches recorded on Gemma 3 270M, a "
    "base model, or on SmolLM2-135M-Instruct; the paper's are OPT-13B's."
)

_REASONS = {
    "beam 6": "both sustain more than the artifact's scripts try (8.5 and 4.5 requests/s at most), the baseline by "
    "more: what a search costs it besides the copies of KV is not known, and not charged"
}


def _compare(name: str, sustained: Mapping[str, float]) -> list[Comparison]:
    found = [
        Comparison(what=f"{name}: {paper.NAMES[system]}", ours=sustained[system], unit="requests/s")
        for system in SYSTEMS
        if system in sustained
    ]
    for system in SYSTEMS[1:]:
        if system not in sustained or paper.PAGED not in sustained:
            continue
        ours, what = sustained[paper.PAGED] / sustained[system], f"{name}: paged over {paper.NAMES[system]}"
        quoted = paper.FIG14_RATIOS.get(name.partition(",")[0]) if system == paper.ORACLE else None
        if quoted is None:
            found.append(Comparison(what=what, ours=ours, unit="x", low=1.0))
        else:
            found.append(within_percent(what, ours, quoted, PERCENT, "x", _REASONS.get(name, "")))
    return found


def draw(findings: Findings) -> Picture:
    drawn = {row["panel"] for row in findings.rows} - {"basic"}
    titles = {name: panel.title for name, panel in PANELS.items() if name in drawn and panel.title}
    return curves.panels(findings.rows, titles)


FIGURE = Figure(
    name="fig14",
    title="Figure 14: several answers to a prompt",
    caption=(
        "OPT-13B on one A100-40GB, Alpaca. Mean latency per token of an answer over the rate of requests, for parallel "
        "sampling and beam search. Paged answers share the blocks of their prompt, beams those of their common past; "
        "the baselines keep, and compute, everything once for each."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
