"""Simulated time."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the start of a simulation. Time moves when a simulated step ends, or when nobody has work."""

    __slots__ = ("now_s",)

    def __init__(self) -> None:
        self.now_s = 0.0

    def advance_to(self, time_s: float) -> None:
        """Move to a time, unless it has passed."""
        if time_s > self.now_s:
            self.now_s = time_s
