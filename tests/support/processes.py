"""What the system says of a process."""

from __future__ import annotations

import os
import time
from pathlib import Path


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_gone(pid: int, timeout_s: float = 10) -> bool:
    """Whether the process ends in time."""
    until = time.monotonic() + timeout_s
    while is_running(pid):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def thread_names(pid: int) -> list[str]:
    """The system's names of a process's threads."""
    return [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]


def private_bytes(pid: int) -> int:
    """Memory that a process has written to and nobody else has, wherever it is: resident or swapped out."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon:", "VmSwap:")))
