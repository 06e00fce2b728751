"""Figure 17: what rate the systems sustain in a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from octavo.figures import curves, paper
from octavo.figures.figure import Comparison, Figure, Findings, Numbers
from octavo.figures.simulation import SEED, Simulation
from octavo.traces.catalogue import workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

SYSTEMS = (paper.PAGED, paper.ORACLE, paper.POW2, paper.MAX)
DURATION_S = 1200.0
SHARES = (0.4, 0.6, 0.8, 0.9, 1.0, 1.1, 1.25)
LARGEST_HALF_CHUNK = 1024
"""Tokens. Orca's chunks are powers of two: whoever needs more gets a chunk of 2048 whatever is known of the answer."""


KNEES = (0.95, 0.62, 0.58, 0.55)
"""Of `SYSTEMS`: about the rates at which latencies rise; they only say where to run."""


def plan(is_short: bool) -> list[Simulation]:
    duration_s, shares = (100.0, (1.0, 3.0)) if is_short else (DURATION_S, SHARES)
    at = {system: curves.around(knee, shares) for system, knee in zip(SYSTEMS, KNEES, strict=True)}
    return curves.runs("opt-13b", "chat", duration_s, at)


def derive(results: Mapping[Simulation, Numbers]) -> Findings:
    rows = curves.rows("chat", results.items())
    longest = max(results, key=lambda job: job.rate * job.duration_s)
    comparisons = _compare(curves.sustained(rows, "chat"), _reason(*_long(longest)))
    return Findings(rows, comparisons, [*_NOTES, *curves.notes(rows)])


def _compare(sustained: Mapping[str, float], reason: str) -> list[Comparison]:
    found = [
        Comparison(what=paper.NAMES[system], ours=sustained[system], unit="requests/s")
        for system in SYSTEMS
        if system in sustained
    ]
    if paper.PAGED not in sustained:
        return found
    return found + [
        Comparison(
            what=f"paged over {paper.NAMES[system]}",
            ours=sustained[paper.PAGED] / sustained[system],
            paper=paper.FIG17_RATIO.value,
            source=paper.FIG17_RATIO.source,
            unit="x",
            reason=reason if system == SYSTEMS[1] else "",
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


def _reason(full: float, long: float) -> str:
    return (
        "who needs more than 1024 tokens gets a chunk of 2048 from every Orca, whatever it knows of the answer; that "
        "makes the three alike, and in the paper most prompts alone have 1024. Our conversations are from a version of "
        f"ShareGPT that was cut into pieces of about 2,000 tokens: {full:.0f} % of the prompts have 1024 tokens, and "
        f"{long:.0f} % of the requests need more in all. For the others Orca (Oracle) sets less aside. So the three "
        "are closer to each other than on ShareGPT's first rounds (Figure 12), but not the same. A third party's check "
        "does not find the factor of 2 in the paper's own curves either."
    )


_NOTES = [
    "A prompt is the last 1024 tokens of a conversation; no KV is kept between rounds; answers have at most 1016 "
    "tokens. All systems get the same requests: the artifact's scripts begin new conversations with probability 0.5 "
    "for its own system and 0.1 for the baselines, here it is 0.1 for all. Each rate has a draw of its own, so curves "
    "are not smooth.",
]


def draw(findings: Findings) -> Picture:
    return curves.panels(findings.rows, {"chat": "OPT-13B, chat"})


FIGURE = Figure(
    name="fig17",
    title="Figure 17: chat",
    caption=(
        "OPT-13B on one A100-40GB, rounds of ShareGPT conversations. Mean latency per token of the answer over the "
        "rate of requests."
    ),
    plan=plan,
    derive=derive,
    draw=draw,
)
