"""Figure 17: what rate the systems sustain in a chat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from octavo.figures import curves, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers, Row
from octavo.figures.simulation import SEED, Simulation
from octavo.traces.catalogue import workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.PAGED, paper.ORACLE, paper.POW2, paper.MAX)
DURATION_S = 1200.0
LARGEST_HALF_CHUNK = 1024
"""Tokens. Orca's chunks are powers of two: whoever needs more gets a chunk of 2048 whatever is known of the answer."""


class Panel(NamedTuple):
    """One mix of new and old conversations, the same for all systems."""

    title: str
    new_prob: float
    knees: tuple[float, ...]
    """Of `SYSTEMS`: about the rates at which latencies rise; they only say where to run."""


PANELS: dict[str, Panel] = {
    "0.1": Panel("(a) 10 % of arrivals are new", 0.1, (1.2, 0.84, 0.8, 0.7)),
    "0.5": Panel("(b) 50 % of arrivals are new", 0.5, (1.35, 0.93, 0.86, 0.73)),
}
"""The artifact's scripts run one mix with its own system, 0.5, and the other with the baselines."""


def plan(is_short: bool) -> list[Simulation]:
    if is_short:
        return _runs("0.1", 150.0, lambda knee: curves.around(knee, (0.8, 1.5, 2.5)))
    return [job for name in PANELS for job in _runs(name, DURATION_S, curves.around)]


def _runs(name: str, duration_s: float, rates: Callable[[float], curves.Rates]) -> list[Simulation]:
    panel = PANELS[name]
    return curves.runs(
        "opt-13b",
        "chat",
        duration_s,
        {system: rates(knee) for system, knee in zip(SYSTEMS, panel.knees, strict=True)},
        workload_options=(("new_prob", panel.new_prob),),
    )


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows: list[Row] = []
    comparisons: list[Comparison] = []
    for name, panel in PANELS.items():
        points = [
            (job, numbers) for job, numbers in results.items() if job.workload_options == (("new_prob", panel.new_prob),)
        ]
        if points:
            rows += curves.rows(name, points)
            reason = _reason(panel.new_prob, *_long(max(points, key=lambda point: point[0].rate)[0]))
            comparisons += _compare(panel, curves.sustained(rows, name), reason)
    return Findings(rows, comparisons, [*_NOTES, *curves.notes(rows)])


def _compare(panel: Panel, sustained: Mapping[str, float], reason: str) -> list[Comparison]:
    found = [
        Comparison(what=f"{panel.title}: {paper.NAMES[system]}", ours=sustained[system], unit="requests/s")
        for system in SYSTEMS
        if system in sustained
    ]
    if paper.PAGED not in sustained:
        return found
    quoted = paper.FIG17_RATIO
    return found + [
        Comparison(
            what=f"{panel.title}: paged over {paper.NAMES[system]}",
            ours=sustained[paper.PAGED] / sustained[system],
            paper=quoted.value,
            source=quoted.source,
            unit="x",
            reason=reason,
        )
        for system in SYSTEMS[1:]
        if system in sustained
    ]


def _long(job: Simulation) -> tuple[float, float]:
    """Per cent of the requests with a full prompt, and of those that need the largest chunk."""
    options = dict(job.workload_options)
    requests = workload(job.workload, job.rate, job.duration_s, SEED, arrivals=job.arrivals, **options)
    full = sum(len(request.token_ids) >= LARGEST_HALF_CHUNK for request in requests)
    long = sum(len(request.token_ids) + request.num_output_tokens > LARGEST_HALF_CHUNK for request in requests)
    return 100 * full / len(requests), 100 * long / len(requests)


def _reason(new_prob: float, full: float, long: float) -> str:
    return (
        "with a prompt of 1024 tokens every Orca sets a chunk of 2048 aside, whatever it knows of the answer; that "
        "makes the three alike, and in the paper most prompts are that long. Of ours, whose conversations come from a "
        f"version of ShareGPT that was cut into pieces of about 2,000 tokens, {full:.0f} % are (with new conversations "
        f"at {100 * new_prob:.0f} % of arrivals), and {long:.0f} % of the requests need more than 1024 tokens in all. "
        "For the others an Orca that knows the answer sets less aside, so the three are closer together than on "
        "ShareGPT's first rounds (Figure 12) but not alike. A third party's reading of the paper's own curves does not "
        "find the factor of 2 in them either."
    )


_NOTES = [
    "A prompt is the last 1024 tokens of a conversation; no KV is kept between rounds; answers have at most 1016 "
    "tokens. An arrival begins a conversation or goes on with one. All systems get the same requests, for either "
    "share of new conversations.",
]


def draw(findings: Findings) -> Picture:
    from octavo.figures import style

    drawn = {row["panel"] for row in findings.rows}
    titles = {name: panel.title for name, panel in PANELS.items() if name in drawn}
    return curves.panels(findings.rows, titles, num_columns=len(titles), height_in=2.0, width_in=style.COLUMN_IN)


FIGURE = Figure(
    name="fig17",
    title="Figure 17: chat",
    caption=(
        "OPT-13B on one A100-40GB, rounds of ShareGPT conversations. Mean latency per token of the answer over the rate "
        "of requests, for two shares of new conversations among the arrivals."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
