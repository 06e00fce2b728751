"""What a figure is: the runs it needs, the numbers it draws from them, how it is drawn, and what the paper says."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from octavo.figures.paper import Quoted

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

Numbers = dict[str, float]
"""What came out of a run, by name."""
Cell = str | int | float | None
Row = dict[str, Cell]


class Job(Hashable, Protocol):
    """A run as data: it says what to do, can be sent to another process, and equals whatever does the same."""

    @property
    def label(self) -> str:
        """In a few words, for people who wait for it."""
        ...

    @property
    def is_alone(self) -> bool:
        """Whether it measures time, so that nothing else may run beside it."""
        ...

    @property
    def weight(self) -> float:
        """About how long it takes, in any unit that its like share; the long ones start first."""
        ...

    def run(self) -> Numbers: ...


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A number of ours beside the paper's."""

    what: str
    ours: float
    paper: float | None = None
    """None where the paper gives no single number; `said` then has what it gives."""
    said: str = ""
    unit: str = ""
    """Of both: "%", "x", "s", or none. Percentages are compared by points, everything else by ratio."""
    source: str = ""
    """Where the paper's number is from; see `figures.paper`."""
    low: float | None = None
    high: float | None = None
    """What was agreed on before the run: ours must lie between."""
    reason: str = ""
    """Why they differ, where they do."""

    @property
    def holds(self) -> bool | None:
        """Whether ours lies where it was agreed to lie; None where nothing was agreed."""
        if self.low is None and self.high is None:
            return None
        return (self.low is None or self.ours >= self.low) and (self.high is None or self.ours <= self.high)

    @property
    def deviation(self) -> str:
        """Ours less the paper's, as text."""
        if self.paper is None:
            return ""
        if self.unit == "%":
            return f"{self.ours - self.paper:+.1f} points"
        return "" if self.paper == 0 else f"{100 * (self.ours / self.paper - 1):+.1f} %"


def within_points(what: str, ours: float, paper: Quoted, points: float, reason: str = "") -> Comparison:
    """Two percentages that may differ by so many points."""
    value = paper.value
    return Comparison(
        what=what, ours=ours, paper=value, unit="%", source=paper.source,
        low=value - points, high=value + points, reason=reason,
    )  # fmt: skip


def within_percent(
    what: str, ours: float, paper: Quoted, percent: float, unit: str = "", reason: str = ""
) -> Comparison:
    """Two numbers whose ratio may differ from one by so many per cent."""
    value = paper.value
    return Comparison(
        what=what, ours=ours, paper=value, unit=unit, source=paper.source,
        low=value * (1 - percent / 100), high=value * (1 + percent / 100), reason=reason,
    )  # fmt: skip


@dataclass(slots=True)
class Findings:
    """What a figure shows: drawn, written as CSV and compared, all three from here."""

    rows: list[Row]
    """All with the same keys: the columns."""
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What a reader must know about how the numbers were made, whole sentences."""


AnyJob = TypeVar("AnyJob", bound=Job)


@dataclass(frozen=True, slots=True)
class Figure(Generic[AnyJob]):
    """A figure of the paper. Everything about it stands in the module that makes this object."""

    name: str
    """On the command line and of its files: "fig2"."""
    title: str
    caption: str
    """What is shown, for the page: setting, axes, what to look for."""
    plan: Callable[[bool], list[AnyJob]]
    """The runs it needs; with True those of the short form, which takes seconds and shows the same thing roughly."""
    derive: Callable[[Mapping[AnyJob, Numbers]], Findings]
    draw: Callable[[Findings], Picture]


AnyFigure = Figure[Any]


class Report(msgspec.Struct, kw_only=True):
    """A figure's outcome as written beside its picture; the page is made from these."""

    name: str
    title: str
    caption: str
    is_short: bool
    num_jobs: int
    compute_s: float
    """Processor seconds of its runs; runs that several figures need count for each."""
    comparisons: list[Comparison]
    notes: list[str]
