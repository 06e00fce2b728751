"""Figure 16: what rate the systems sustain when all prompts begin alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from octavo.figures import curves, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row, within_percent
from octavo.figures.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.PAGED, paper.ORACLE)
"""The paper compares with no other: what Orca (Oracle) does not sustain, the others do not either."""
DURATION_S = 1200.0
PERCENT = 20.0
"""How far a ratio may be from the paper's."""
SHARES = (0.4, 0.7, 0.9, 0.98, 1.03, 1.1)


class Panel(NamedTuple):
    """One length of the prefix."""

    title: str
    workload: str
    num_prefix_tokens: int
    knees: tuple[float, ...]
    """Of `SYSTEMS`: about the rates at which latencies rise; they only say where to run."""


PANELS: dict[str, Panel] = {
    "1-shot": Panel("(a) One example (80 tokens)", "shared-prefix-1shot", 80, (47, 27.3)),
    "5-shot": Panel("(b) Five examples (341 tokens)", "shared-prefix-5shot", 341, (35, 11.4)),
}


def plan(is_short: bool) -> list[Simulation]:
    if is_short:
        return _runs("5-shot", 10.0, lambda knee: curves.around(knee, (1.5, 5.0)))
    return [job for name in PANELS for job in _runs(name, DURATION_S, lambda knee: curves.around(knee, SHARES))]


def _runs(name: str, duration_s: float, rates: Callable[[float], curves.Rates]) -> list[Simulation]:
    panel = PANELS[name]
    return curves.runs(
        "llama-13b",
        panel.workload,
        duration_s,
        {system: rates(knee) for system, knee in zip(SYSTEMS, panel.knees, strict=True)},
        system_options={paper.PAGED: (("enable_prefix_caching", True),)},
    )


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for name, panel in PANELS.items():
        points = [(job, numbers) for job, numbers in results.items() if job.workload == panel.workload]
        if points:
            rows += curves.rows(name, points)
            comparisons += _compare(name, curves.sustained(rows, name))
    return Findings(rows, comparisons, [*_NOTES, *curves.notes(rows)])


def _compare(name: str, sustained: Mapping[str, float]) -> list[Comparison]:
    found = [
        Comparison(what=f"{name}: {paper.NAMES[system]}", ours=sustained[system], unit="requests/s")
        for system in SYSTEMS
        if system in sustained
    ]
    if len(found) == len(SYSTEMS):
        ours, what = sustained[paper.PAGED] / sustained[paper.ORACLE], f"{name}: paged over Orca (Oracle)"
        found.append(within_percent(what, ours, paper.FIG16_RATIOS[name], PERCENT, "x", _REASONS[name]))
    return found


_REASONS = {
    "1-shot": "",
    "5-shot": (
        "the model lets every sequence read the whole prefix from the card's memory in each step. A layer's prefix of "
        "341 tokens is 7 MB and stays in the A100's cache of 40 MB, from where it is read faster; that gain, which "
        "the paper's measurement has and which grows with the prefix, is left out."
    ),
}
_NOTES = [
    "Lengths are those of WMT's English-German news test of 2013 in LLaMA's tokens; the paper took the test of 2016.",
    "The paged system runs with prefix caching: the first request computes the prefix and all later ones share its "
    "blocks, of which only whole ones are the same, as in the artifact. Orca (Oracle) computes and keeps the prefix "
    "once for each request.",
]


def draw(findings: Findings) -> Picture:
    drawn = {row["panel"] for row in findings.rows}
    titles = {name: panel.title for name, panel in PANELS.items() if name in drawn}
    return curves.panels(findings.rows, titles)


FIGURE = Figure(
    name="fig16",
    title="Figure 16: a prefix that all requests share",
    caption=(
        "LLaMA-13B on one A100-40GB, translation from English to German. Every prompt begins with the same instruction "
        "and one or five examples. Mean latency per token of the answer over the rate of requests."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
