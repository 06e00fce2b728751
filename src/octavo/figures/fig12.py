"""Figure 12: what rate each system sustains, three models on two data sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from octavo.figures import curves, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.figures.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture


class Panel(NamedTuple):
    """One of the six."""

    title: str
    model: str
    workload: str
    duration_s: float
    knees: dict[str, float]
    """System -> about the rate at which its latency rises; only says where to run."""
    shares: tuple[float, ...] = curves.SHARES
    """Of those rates: where to run."""


PANELS: dict[str, Panel] = {
    "a": Panel(
        "(a) OPT-13B, ShareGPT", "opt-13b", "sharegpt", 1200,
        {paper.PAGED: 2.15, paper.ORACLE: 1.15, paper.POW2: 0.87, paper.MAX: 0.68, paper.FASTER_TRANSFORMER: 0.18},
    ),
    "b": Panel(
        "(b) OPT-66B, ShareGPT", "opt-66b", "sharegpt", 1800,
        {paper.PAGED: 1.17, paper.ORACLE: 0.47, paper.POW2: 0.355, paper.MAX: 0.255, paper.FASTER_TRANSFORMER: 0.07},
    ),
    "c": Panel(
        "(c) OPT-175B, ShareGPT", "opt-175b", "sharegpt", 900,
        {paper.PAGED: 2.95, paper.ORACLE: 2.2, paper.POW2: 1.8, paper.MAX: 1.43, paper.FASTER_TRANSFORMER: 0.13},
        (0.4, 0.8, 0.95, 0.98, 1.01, 1.04, 1.2),  # steep curves: the straight line between two rates is too low
    ),
    "d": Panel(
        "(d) OPT-13B, Alpaca", "opt-13b", "alpaca", 600,
        {paper.PAGED: 33, paper.ORACLE: 24, paper.POW2: 18, paper.MAX: 4.1, paper.FASTER_TRANSFORMER: 1.35},
    ),
    "e": Panel(
        "(e) OPT-66B, Alpaca", "opt-66b", "alpaca", 600,
        {paper.PAGED: 23.5, paper.ORACLE: 12.6, paper.POW2: 7.8, paper.MAX: 1.5, paper.FASTER_TRANSFORMER: 0.63},
    ),
    "f": Panel(
        "(f) OPT-175B, Alpaca", "opt-175b", "alpaca", 600,
        {paper.PAGED: 25.5, paper.ORACLE: 23.5, paper.POW2: 20.5, paper.MAX: 8.5, paper.FASTER_TRANSFORMER: 1.2},
    ),
}  # fmt: skip

EXACT: dict[str, dict[str, tuple[float, float]]] = {
    "a": {paper.ORACLE: (1.7, 2.1), paper.MAX: (2.7, 3.7)},
    "b": {paper.ORACLE: (2.1, 2.8), paper.MAX: (3.8, 5.2)},
    "c": {paper.ORACLE: (1.3, 1.7), paper.MAX: (1.9, 2.5)},
}
"""Panel -> system -> between what the paged system's rate over its own was agreed to lie."""
MAY_TIE = {"f": (paper.PAGED, paper.ORACLE, paper.POW2)}
"""The paper: here arithmetic, not memory, is what runs out, so these are close together."""


def plan(is_short: bool) -> list[Simulation]:
    if not is_short:
        return [job for panel in PANELS.values() for job in _runs(panel)]
    return _runs(PANELS["a"]._replace(duration_s=150.0, shares=(0.8, 1.2, 1.8)))


def _runs(panel: Panel) -> list[Simulation]:
    at = {system: curves.around(knee, panel.shares) for system, knee in panel.knees.items()}
    return curves.runs(panel.model, panel.workload, panel.duration_s, at)


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for name, panel in PANELS.items():
        points = [
            (job, numbers)
            for job, numbers in results.items()
            if (job.model, job.workload) == (panel.model, panel.workload)
        ]
        if points:
            rows += curves.rows(name, points)
            comparisons += _compare(name, panel, curves.sustained(rows, name))
    return Findings(rows, comparisons, curves.notes(rows))


def _compare(name: str, panel: Panel, sustained: Mapping[str, float]) -> list[Comparison]:
    found = [_rate(name, panel, system, sustained) for system in paper.SYSTEMS if system in sustained]
    if paper.PAGED in sustained:
        found += [
            _ratio(name, panel, system, sustained[paper.PAGED] / sustained[system])
            for system in paper.SYSTEMS[1:]
            if system in sustained
        ]
    return [*found, *_ranking(name, panel, sustained)]


def _rate(name: str, panel: Panel, system: str, sustained: Mapping[str, float]) -> Comparison:
    quoted = paper.FIG12_KNEES.get(name, {}).get(system)
    return Comparison(
        what=f"{panel.title}: {paper.NAMES[system]}",
        ours=sustained[system],
        paper=None if quoted is None else quoted.value,
        source="" if quoted is None else quoted.source,
        unit="requests/s",
    )


def _ratio(name: str, panel: Panel, system: str, ours: float) -> Comparison:
    low, high = EXACT.get(name, {}).get(system, (None, None))
    said = ""
    if panel.workload == "sharegpt" and system in paper.FIG12_RATIOS:
        said = paper.FIG12_RATIOS[system].words("x") + " over the three models"
    what = f"{panel.title}: paged over {paper.NAMES[system]}"
    found = Comparison(what=what, ours=ours, said=said, unit="x", low=low, high=high)
    return found if found.holds is not False else msgspec.structs.replace(found, reason=REASON)


REASON = (
    "a curve crosses the line between two of our rates, and is taken to be straight there. For OPT-175B a third party "
    "reads less than 1.7x from the paper's own curves, too"
)


def _ranking(name: str, panel: Panel, sustained: Mapping[str, float]) -> list[Comparison]:
    """The smallest step between neighbours in the paper's ranking; above 1 where ours is the same."""
    tied = MAY_TIE.get(name, ())
    systems = [system for system in paper.SYSTEMS if system in sustained]
    steps = {
        (better, worse): sustained[better] / sustained[worse]
        for i, better in enumerate(systems)
        for worse in systems[i + 1 :]
        if not (better in tied and worse in tied)
    }
    if not steps:
        return []
    (better, worse), step = min(steps.items(), key=lambda item: item[1])
    what = f"{panel.title}: smallest step in the paper's ranking ({paper.NAMES[better]} over {paper.NAMES[worse]})"
    return [Comparison(what=what, ours=step, unit="x", low=1.0)]


def draw(findings: Findings) -> Picture:
    titles = {name: panel.title for name, panel in PANELS.items() if any(row["panel"] == name for row in findings.rows)}
    return curves.panels(findings.rows, titles)


FIGURE = Figure(
    name="fig12",
    title="Figure 12: what rate the systems sustain",
    caption=(
        "Mean latency per token of the answer, from arrival to the end, over the rate of requests. OPT-13B on one "
        "A100-40GB, OPT-66B on four, OPT-175B on eight A100-80GB. The line at 0.5 s/token is where rates are compared; "
        "the paper compares them where curves turn and names no number."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
