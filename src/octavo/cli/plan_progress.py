"""How far a plan is, on a terminal: what is being found out, and how many of its simulations have ended."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class PlanProgress:
    """One line of progress, with the time since the plan began.

    Args:
        bar: Of one task.
    """

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)

    def begin(self, what: str, num_jobs: int | None = None) -> None:
        """Say what is done now.

        Args:
            num_jobs: So many calls of `advance` will follow; None where nobody knows.
        """
        self._bar.update(self._task, description=what, total=num_jobs, completed=0)

    def advance(self) -> None:
        """One of the jobs has ended."""
        self._bar.advance(self._task)


@contextmanager
def plan_progress() -> Iterator[PlanProgress]:
    """Progress on stderr, gone when the plan is there; nothing is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    console, shows = Console(file=sys.stderr), sys.stderr.isatty()
    # Twice a second: a measurement of this machine goes on meanwhile.
    with Progress(*columns, console=console, transient=True, disable=not shows, refresh_per_second=2) as bar:
        yield PlanProgress(bar)
