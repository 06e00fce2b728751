"""A standstill is noticed, and told from idleness and from work."""

from __future__ import annotations

from octavo.engine.loop import Batch
from octavo.engine.step_watch import StepWatch
from octavo.messages import EngineStats, TokenDelta


def test_steps_and_answers_end_a_standstill_and_reports_alone_do_not() -> None:
    watch = StepWatch()
    watch.begin(100.0)
    assert watch.stalled_s(103.0) == 3.0
    watch.see(Batch([], EngineStats(num_steps=1)), 104.0)
    assert watch.stalled_s(104.5) == 0.5
    watch.see(Batch([], EngineStats(num_steps=1)), 110.0)
    assert watch.stalled_s(110.0) == 6.0, "an engine that only reports makes no step"
    watch.see(Batch([TokenDelta(1, 0, [5])]), 111.0)
    assert watch.stalled_s(111.0) == 0.0
    watch.see(Batch([], EngineStats(num_steps=0)), 115.0)
    assert watch.stalled_s(115.0) == 0.0, "after a restart steps are counted anew"


def test_the_wait_begins_with_the_work() -> None:
    watch = StepWatch()
    watch.see(Batch([TokenDelta(1, 0, [5])]), 1.0)
    watch.begin(1000.0)
    assert watch.stalled_s(1000.0) == 0.0
    assert watch.stalled_s(999.0) == 0.0, "times of two threads may cross"
