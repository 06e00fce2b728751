"""Latency over rate: curves of several systems side by side, and the rate that each sustains."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from octavo.figures import paper
from octavo.figures.figure import Numbers, Row
from octavo.figures.simulation import Simulation
from octavo.sim.capacity import LIMIT_S_PER_TOKEN, crossing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Picture

MOST_DURATIONS = 4.0
"""A run stops after so many times the span in which requests arrive. A curve is far above the limit by then; who is not
answered counts as answered at that moment, so such a point says what the latency is at least."""
CUT_S_PER_TOKEN = 1.0
"""Where the paper's axes end."""

Rates = tuple[float, ...]


def runs(
    model: str,
    workload: str,
    duration_s: float,
    rates: Mapping[str, Rates],
    *,
    workload_options: tuple[tuple[str, int], ...] = (),
    system_options: Mapping[str, tuple[tuple[str, int | str | bool], ...]] | None = None,
) -> list[Simulation]:
    """Every system at each of its rates.

    Args:
        model, workload, duration_s, workload_options: As in `Simulation`.
        rates: System -> requests per second.
        system_options: System -> as in `Simulation`, where a system has any.
    """
    return [
        Simulation(
            model=model,
            system=system,
            workload=workload,
            rate=rate,
            duration_s=duration_s,
            until_s=MOST_DURATIONS * duration_s,
            workload_options=workload_options,
            system_options=(system_options or {}).get(system, ()),
        )
        for system, its_rates in rates.items()
        for rate in its_rates
    ]


SHARES = (0.4, 0.8, 0.95, 1.05, 1.2)
"""Of the rate at which a curve is expected to turn: where to run."""


def around(knee: float, shares: Sequence[float] = SHARES) -> Rates:
    """Rates about the one at which a curve is expected to turn; a curve that turns elsewhere is reported as such."""
    return tuple(float(f"{knee * share:.3g}") for share in shares)


def rows(panel: str, results: Iterable[tuple[Simulation, Numbers]]) -> list[Row]:
    """A row for each point of a panel."""
    return [
        {
            "panel": panel,
            "model": job.model,
            "system": job.system,
            "rate": job.rate,
            "latency_s_per_token": numbers["least_latency_s"],
            "num_requests": int(numbers["num_requests"]),
            "num_unfinished": int(numbers["num_unfinished"]),
        }
        for job, numbers in results
    ]


def sustained(points: Iterable[Row], panel: str) -> dict[str, float]:
    """System -> requests per second at `LIMIT_S_PER_TOKEN`, by interpolation; of those whose curve crosses it."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for row in points:
        if row["panel"] == panel:
            curves.setdefault(str(row["system"]), []).append(
                (_number(row, "rate"), _number(row, "latency_s_per_token"))
            )
    found = {system: crossing(curve) for system, curve in curves.items()}
    return {system: rate for system, rate in found.items() if rate is not None}


def _number(row: Row, name: str) -> float:
    value = row[name]
    assert isinstance(value, int | float)
    return float(value)


def notes(points: Iterable[Row]) -> list[str]:
    """What a reader must know about these points."""
    cut = [row for row in points if row["num_unfinished"]]
    text = (
        f"Requests are served to the end; a run stops after {MOST_DURATIONS:g} times the span of arrivals, "
        "and who is not answered then counts as answered at that moment. "
    )
    return [text + (f"{len(cut)} points are such: their latency is at least what is drawn." if cut else "None was.")]


def panels(points: Sequence[Row], titles: Mapping[str, str], num_columns: int = 3) -> Picture:
    """One plot for each panel, the legend above all of them; a single one is a column wide.

    Args:
        points: As `rows` makes them.
        titles: Panel -> what stands above it, in order.
        num_columns: Plots in a row.
    """
    from octavo.figures import style

    num_columns = min(num_columns, len(titles))
    num_rows = -(-len(titles) // num_columns)
    is_wide = num_columns > 1
    picture = style.new_picture(style.PAGE_IN if is_wide else style.COLUMN_IN, 0.4 + 1.75 * num_rows)
    grid = picture.subplots(num_rows, num_columns, squeeze=False)
    flat = [axes for line in grid for axes in line]
    for axes, panel in zip(flat, titles, strict=True):
        _draw_panel(axes, [row for row in points if row["panel"] == panel])
        axes.set_title(titles[panel])
        axes.grid(axis="y")
    for line in grid:
        line[0].set_ylabel("Normalised latency\n(s/token)")
    for axes in grid[-1]:
        axes.set_xlabel("Request rate (requests/s)")
    handles, labels = flat[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside upper center", ncols=len(labels) if is_wide else 2)
    return picture


def _draw_panel(axes: Axes, points: list[Row]) -> None:
    from octavo.figures import style

    for system in paper.SYSTEMS:
        curve = sorted(
            (_number(row, "rate"), _number(row, "latency_s_per_token")) for row in points if row["system"] == system
        )
        if curve:
            axes.plot(*zip(*curve, strict=True), **style.LOOKS[system].line_style())
    shown = [_number(row, "rate") for row in points if _number(row, "latency_s_per_token") < CUT_S_PER_TOKEN]
    axes.axhline(LIMIT_S_PER_TOKEN, color=style.GREY, linewidth=0.6)
    axes.set_xlim(0, 1.1 * max(shown, default=1.0))
    axes.set_ylim(0, CUT_S_PER_TOKEN)
