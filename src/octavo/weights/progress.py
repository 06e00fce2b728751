"""Showing how far a download is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int], None]
"""Called now and then with the bytes that are there so far."""


@contextmanager
def progress_bar(title: str, total_bytes: int) -> Iterator[Progress]:
    """A bar on standard error, or one line where that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as RichProgress

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{title} ({total_bytes / 1e6:.0f} MB)", highlight=False)
        yield lambda done: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with RichProgress(*columns, TimeRemainingColumn(), console=console) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda done: bar.update(task, completed=min(done, total_bytes))
        bar.update(task, completed=total_bytes)
