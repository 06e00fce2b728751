"""What the machine can do at this moment: taken right beside each timing, because it changes from minute to minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo import _native

PEAKS: dict[str, Callable[[_native.ThreadPool, str], float]] = {
    "float32": lambda pool, isa: _native.dot_peak(pool, isa, "float32"),
    "bfloat16": lambda pool, isa: _native.dot_peak(pool, isa, "bfloat16"),
    "int8": lambda pool, isa: _native.dot_peak(pool, isa, "int8"),
    "int4": lambda pool, isa: _native.dot_peak(pool, isa, "int4"),
}
"""Arithmetic -> Gop/s of all threads on operands in registers, with the instruction that kernels of it use."""

_FORK_JOINS = 200


@dataclass(frozen=True)
class Probe:
    """One look at the machine."""

    bandwidth_gb_per_s: float
    """Reading memory that no cache holds."""
    peak_gop_per_s: float | None
    """Of the arithmetic that was asked for; None when none was."""
    fork_join_us: float
    """An empty parallel loop: what a kernel spends at least on waking the threads and waiting for the last."""

    def floor_s(self, num_bytes: float, num_ops: float) -> float:
        """Seconds that nothing can beat: all bytes at full bandwidth, or all operations at the peak."""
        by_ops = num_ops / self.peak_gop_per_s / 1e9 if self.peak_gop_per_s else 0.0
        return max(num_bytes / self.bandwidth_gb_per_s / 1e9, by_ops)


def probe(pool: _native.ThreadPool, isa: str, arithmetic: str | None) -> Probe:
    """Measure, in some 0.2 s."""
    return Probe(
        bandwidth_gb_per_s=_native.read_bandwidth(pool),
        peak_gop_per_s=PEAKS[arithmetic](pool, isa) if arithmetic else None,
        fork_join_us=_native.fork_join(pool, _FORK_JOINS) * 1e6,
    )
