"""What else went on: memory bandwidth of the moment, and CPU time that belongs to nobody in the comparison."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

from octavo.cli.process_tree import cpu_s

HERE = Path(__file__).parent
_CLOCK = os.sysconf("SC_CLK_TCK")


class Triad:
    """GB/s of STREAM's triad on two threads, the probe that the reference figures were taken with."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._program = folder / "triad"
        source = HERE / "triad.c"
        if not self._program.exists() or self._program.stat().st_mtime < source.stat().st_mtime:
            options = ["-O3", "-march=native", "-fopenmp"]
            subprocess.run(["cc", *options, str(source), "-o", str(self._program)], check=True)

    def measure(self) -> float:
        environment = {**os.environ, "OMP_NUM_THREADS": "2"}
        done = subprocess.run([str(self._program)], env=environment, capture_output=True, text=True, check=True)
        return float(done.stdout)


def busy_s() -> float:
    """CPU seconds that all processors together have worked, or were denied by a hypervisor, since they started."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _CLOCK


class Shares:
    """CPU time from its making to `taken`, told apart: the server's tree, this process, and everybody else."""

    def __init__(self, server: int) -> None:
        self._server = server
        self._start = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        return time.perf_counter(), busy_s(), cpu_s(self._server), time.process_time()

    def taken(self) -> dict[str, float]:
        """Cores' worth of time: `server_cpu`, `client_cpu`, `other_cpu`."""
        elapsed, busy, server, client = (b - a for a, b in zip(self._start, self._now(), strict=True))
        other = max(0.0, busy - server - client)
        named = {"server_cpu": server, "client_cpu": client, "other_cpu": other}
        return {name: round(seconds / elapsed, 3) for name, seconds in named.items()}


def wait_until_idle(limit_s: float, *, look_s: float = 1.0, least_idle: float = 0.9) -> bool:
    """Whether the machine came to rest: `least_idle` of its processors idle for `look_s` seconds."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        before = busy_s()
        time.sleep(look_s)
        if (busy_s() - before) / (look_s * (os.cpu_count() or 1)) < 1 - least_idle:
            return True
    return False
