"""The core under random histories, and proof that the histories would catch a fault.

OCTAVO_SOAK multiplies the number of histories and makes them differ from run to run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from octavo.core.block_pool import BlockPool
from octavo.core.engine_core import EngineCore
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Sequence, SequenceStatus
from octavo.core.scheduler import ScheduledStep, Scheduler
from property.core_machine import CoreMachine, seen

SOAK = int(os.environ.get("OCTAVO_SOAK", "1"))

HISTORIES = settings(
    max_examples=120 * SOAK,
    stateful_step_count=40,
    derandomize=SOAK == 1,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(
    HISTORIES, max_examples=300, derandomize=True, database=None, phases=[Phase.generate], report_multiple_bugs=False
)
"""For planted faults: stop at the first failure, do not shrink it."""


@pytest.mark.timeout(120 * SOAK)
def test_any_history_keeps_tokens_and_blocks_right() -> None:
    seen.clear()
    run_state_machine_as_test(CoreMachine, settings=HISTORIES)
    never = [
        name
        for name in (
            "num_preemptions",
            "num_recomputed_tokens",
            "num_recompute_faults",
            "num_wasted_slots",
            "num_errors",
            "aborts",
            "chunks",
            "mixed",
            "windows_left",
        )
        if not seen.get(name)
    ]
    assert not never, f"no history did this: {never}"


Plant = Callable[[pytest.MonkeyPatch], None]


def double_release(patch: pytest.MonkeyPatch) -> None:
    release = BlockPool.release

    def twice(pool: BlockPool, block_ids: list[int]) -> None:
        release(pool, block_ids)
        for block_id in block_ids[:1]:
            pool.eviction.put(block_id)

    patch.setattr(BlockPool, "release", twice)


def stale_row(patch: pytest.MonkeyPatch) -> None:
    """A reused row keeps the table of the sequence that had it before."""
    set_up = KVCacheManager.admit

    def without_growth(kv: KVCacheManager, sequence: Sequence, end: int, growth: Any) -> bool:
        used = sequence.row in getattr(kv, "rows_used", set())
        kv.__dict__.setdefault("rows_used", set()).add(sequence.row)
        return set_up(kv, sequence, end, [] if used else growth)

    patch.setattr(KVCacheManager, "admit", without_growth)


def unannounced_row(patch: pytest.MonkeyPatch) -> None:
    """The worker is not told that a row was released."""
    free = Scheduler._free

    def quietly(scheduler: Scheduler, row: int, block_ids: list[int]) -> None:
        free(scheduler, row, block_ids)
        scheduler.released_rows.remove(row)

    patch.setattr(Scheduler, "_free", quietly)


def lost_chunk(patch: pytest.MonkeyPatch) -> None:
    """A chunk counts as computed and is not in the plan."""
    advance = ScheduledStep.advance

    def lossy(step: ScheduledStep) -> None:
        advance(step)
        plan = step.plan
        for i, row in enumerate(plan.rows):
            if row not in plan.sample_rows and len(plan.rows) > 1:
                del plan.rows[i], plan.num_new_tokens[i], step.sequences[i]
                return

    patch.setattr(ScheduledStep, "advance", lossy)


def forgotten_abort(patch: pytest.MonkeyPatch) -> None:
    """An abort forgets the request and leaves its sequences where they are."""

    def forget(core: EngineCore, request_id: int, index: int | None = None) -> None:
        core._scheduler.requests.pop(request_id, None)

    patch.setattr(EngineCore, "abort", forget)


def block_in_two_states(patch: pytest.MonkeyPatch) -> None:
    """A released block can be taken again and still counts as held."""

    def half(pool: BlockPool, block_ids: list[int]) -> None:
        for block_id in block_ids:
            pool.eviction.put(block_id)

    patch.setattr(BlockPool, "release", half)


def preempted_not_resumed(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def forget(scheduler: Scheduler, sequence: Sequence) -> None:
        preempt(scheduler, sequence)
        scheduler.waiting.remove(sequence)

    patch.setattr(Scheduler, "_preempt", forget)


def no_quarantine(patch: pytest.MonkeyPatch) -> None:
    """Rows and blocks that a plan in flight names are handed out at once."""

    def leave(scheduler: Scheduler, sequence: Sequence) -> None:
        row, sequence.row = sequence.row, -1
        del scheduler.running[row]
        scheduler._free(row, scheduler.kv.detach(sequence))

    patch.setattr(Scheduler, "_leave_row", leave)


def window_left_early(patch: pytest.MonkeyPatch) -> None:
    """Blocks leave a window one block too soon."""
    dead = KVCacheManager._dead_columns

    def early(kv: KVCacheManager, sequence: Sequence) -> list[tuple[int, int, int]]:
        return [
            (group, first, min(end + 1, len(sequence.block_tables[group]))) for group, first, end in dead(kv, sequence)
        ]

    patch.setattr(KVCacheManager, "_dead_columns", early)


def token_sampled_twice(patch: pytest.MonkeyPatch) -> None:
    """A preempted sequence forgets the token that a plan in flight samples for it."""
    preempt = Scheduler._preempt

    def forget(scheduler: Scheduler, sequence: Sequence) -> None:
        preempt(scheduler, sequence)
        sequence.num_tokens = len(sequence.source.token_ids) + len(sequence.answer)

    patch.setattr(Scheduler, "_preempt", forget)


def promise_not_kept(patch: pytest.MonkeyPatch) -> None:
    """Blocks promised to a prompt are given to whoever comes first."""
    patch.setattr(KVCacheManager, "num_available_blocks", property(lambda kv: kv.pool.num_free))


def finished_row_applied(patch: pytest.MonkeyPatch) -> None:
    """The slot that a finished sequence wastes at depth 2 is taken for a token."""
    append = Scheduler._append_tokens

    def undead(scheduler: Scheduler, step: ScheduledStep, result: Any, deltas: list[Any]) -> None:
        for sequence in step.sampled:
            if sequence.status is SequenceStatus.FINISHED:
                sequence.status = SequenceStatus.RUNNING
        append(scheduler, step, result, deltas)

    patch.setattr(Scheduler, "_append_tokens", undead)


@pytest.mark.parametrize(
    "plant",
    [
        double_release,
        stale_row,
        unannounced_row,
        lost_chunk,
        forgotten_abort,
        block_in_two_states,
        preempted_not_resumed,
        no_quarantine,
        window_left_early,
        token_sampled_twice,
        promise_not_kept,
        finished_row_applied,
    ],
)
def test_a_planted_fault_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(Exception) as caught:
        run_state_machine_as_test(CoreMachine, settings=HUNT)
    assert caught.value.args, "a failure must say what is wrong"
