"""CPU time and memory of a process and everything it started, from Linux's /proc; elsewhere nothing is found."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from octavo.cli.machine import PROC

_PERIOD_S = 0.25
"""Between two looks at a tree's memory: seldom enough to cost the measured machine nothing."""


def tree(pid: int) -> list[int]:
    """The process and its descendants that are alive, itself first; empty when it is gone."""
    found, todo = [], [pid]
    while todo:
        one = todo.pop()
        try:
            children = [path.read_text() for path in (PROC / str(one) / "task").glob("*/children")]
        except OSError:
            continue
        if children:
            found.append(one)
        todo += [int(word) for text in children for word in text.split()]
    return found


def cpu_s(pid: int) -> float:
    """CPU seconds of the tree so far, children that have ended and were waited for included."""
    ticks = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            fields = (PROC / str(one) / "stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))  # user and system time, its own and its ended children's
    return ticks / os.sysconf("SC_CLK_TCK")


def rss_bytes(pid: int) -> int:
    """Resident bytes, summed over the tree: pages that two processes share count twice."""
    pages = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            pages += int((PROC / str(one) / "statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def pss_bytes(pid: int) -> int:
    """Resident bytes with shared pages divided among those who share them. Slow: the kernel walks every page."""
    total = 0
    for one in tree(pid):
        with contextlib.suppress(OSError):
            lines = (PROC / str(one) / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class Peak(msgspec.Struct):
    """The most that was seen, in bytes; 0 when nothing was."""

    rss_bytes: int = 0


@asynccontextmanager
async def watch_memory(pid: int | None) -> AsyncIterator[Peak]:
    """Look at the tree's memory now and then for as long as the context lasts."""
    peak = Peak()

    async def look() -> None:
        while pid is not None:
            peak.rss_bytes = max(peak.rss_bytes, rss_bytes(pid))
            await asyncio.sleep(_PERIOD_S)

    task = asyncio.create_task(look())
    try:
        yield peak
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        if pid is not None:
            peak.rss_bytes = max(peak.rss_bytes, rss_bytes(pid))
