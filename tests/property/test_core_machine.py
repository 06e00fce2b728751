"""The core under random histories.

OCTAVO_SOAK multiplies the number of operations and makes the histories differ from run to run; `make soak` sets it.
"""

from __future__ import annotations

import os
import time
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from property.core_machine import CoreMachine, seen
from property.driver import drive, soak

SOAK = int(os.environ.get("OCTAVO_SOAK", "1"))
NUM_OPERATIONS = 200_000

MUST_HAPPEN = (
    "abort",
    "beam_tokens",
    "chunks",
    "copies",
    "erases",
    "failed_gets",
    "failed_puts",
    "follow_up",
    "forks",
    "idle_erases",
    "injected_row_errors",
    "mixed",
    "num_copy_faults",
    "num_errors",
    "num_evictions",
    "num_preemptions",
    "num_prefix_hit_tokens",
    "num_recompute_faults",
    "num_recomputed_tokens",
    "num_shared_waits",
    "num_swap_faults",
    "num_swap_preemptions",
    "num_takeovers",
    "num_wasted_slots",
    "partial_hits",
    "public_reads",
    "reset_blocks",
    "resume_elsewhere",
    "swap_ins",
    "rejected_drafts",
    "draft_columns_returned",
    "num_accepted_tokens",
    "swap_outs",
    "twins_sampled",
    "windows_left",
    "withdrawn",
)


def never(events: Counter[str]) -> list[str]:
    """What should have happened and did not."""
    return [name for name in MUST_HAPPEN if not events[name]]


@pytest.mark.timeout(300 * SOAK)
def test_any_history_keeps_tokens_and_blocks_right() -> None:
    report = drive(NUM_OPERATIONS) if SOAK == 1 else soak(NUM_OPERATIONS * SOAK, first_seed=time.time_ns())
    assert not never(report.events), f"no history did this: {never(report.events)}"


@pytest.mark.timeout(300 * SOAK)
def test_hypothesis_finds_no_history_that_breaks_it() -> None:
    seen.clear()
    histories = settings(
        max_examples=60 * SOAK,
        stateful_step_count=40,
        derandomize=SOAK == 1,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(CoreMachine, settings=histories)
    assert seen["operations"] > 1000
    assert seen["num_preemptions"] and seen["copies"] and seen["num_prefix_hit_tokens"]
