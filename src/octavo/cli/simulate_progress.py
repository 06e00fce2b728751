"""How far a simulation is, on a terminal, once it has run for some seconds."""

from __future__ import annotations

import sys
import time
from bisect import bisect_right
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from octavo.core.engine_core import EngineCore
    from octavo.sim.cost_model import StepWork
    from octavo.sim.request import TimedRequest

AFTER_S = 2.0
"""Shorter runs show nothing."""
EVERY_S = 0.2


class SimulationProgress:
    """A probe (`octavo.sim.simulator.Probe`) that shows requests answered and simulated time on stderr.

    Args:
        label: Of the run.
        requests: In order of arrival.
    """

    def __init__(self, label: str, requests: Sequence[TimedRequest]) -> None:
        self._label = label
        self._arrivals_s = [request.arrival_s for request in requests]
        self._next_s = time.monotonic() + AFTER_S
        self._num_answered = 0
        self._bar: Any = None

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        if time.monotonic() < self._next_s:
            return
        self._next_s = time.monotonic() + EVERY_S
        if self._bar is None:
            self._bar = self._new_bar()
            self._bar.start()
        # One that arrived just as the step began may be missed, for the difference is rounded: never count back.
        num_arrived = bisect_right(self._arrivals_s, now_s - duration_s)
        self._num_answered = max(self._num_answered, num_arrived - len(core.scheduler.requests))
        text = f"{self._label}, {now_s:.0f} s simulated"
        self._bar.update(self._bar.task_ids[0], completed=self._num_answered, description=text)

    def __enter__(self) -> SimulationProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _new_bar(self) -> Any:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        bar = Progress(*columns, console=Console(file=sys.stderr), transient=True)
        bar.add_task(self._label, total=len(self._arrivals_s))
        return bar
