"""Notices an engine that has work and makes no steps: hung, or turning without computing anything."""

from __future__ import annotations

from octavo.engine.loop import Batch


class StepWatch:
    """Since when an engine has stood still. Times are seconds on one monotonic clock.

    One thread may say what was queued while another says what was seen.
    """

    def __init__(self) -> None:
        self._since_s = 0.0
        self._num_steps = 0

    def begin(self, now_s: float) -> None:
        """Work was queued while there was none: the wait for a step begins now."""
        self._since_s = now_s

    def see(self, batch: Batch, now_s: float) -> None:
        """The engine has sent something. Reports alone are no steps: their counter must have moved."""
        num_steps = self._num_steps if batch.stats is None else batch.stats.num_steps
        if batch.deltas or num_steps != self._num_steps:  # it begins again at 0 after a restart
            self._since_s = now_s
        self._num_steps = num_steps

    def stalled_s(self, now_s: float) -> float:
        """Seconds without a step, if there has been work all the time."""
        return max(0.0, now_s - self._since_s)
