"""Each damage to the books is seen, and said in words."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.core.engine_core import EngineCore
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from support.core_scripts import ScriptedExecutor, engine, request, spec


def busy() -> EngineCore:
    """One sequence mid-prompt and past its window, one decoding, one waiting, one row in quarantine."""
    executor = ScriptedExecutor(spec(4, (None, 5)), num_blocks=40)
    core = engine(executor, depth=2, max_num_batched_tokens=13, max_num_seqs=3)
    core.add(request(1, num_prompt=3, max_tokens=20))
    core.add(request(2, num_prompt=1, max_tokens=20))
    core.add(request(3, num_prompt=40, max_tokens=4))
    core.add(request(4, num_prompt=2, max_tokens=4))
    for _ in range(4):
        core.step(0.0)
    core.abort(2)
    return core


def running(core: EngineCore, request_id: int) -> Sequence:
    return core._scheduler.requests[request_id].sequences[0]


def free_held(core: EngineCore) -> None:
    core._pool.eviction.put(running(core, 1).block_tables[0][0])


def free_twice(core: EngineCore) -> None:
    core._pool.eviction.put(next(iter(core._pool.eviction)))


def free_null(core: EngineCore) -> None:
    core._pool.eviction.put(0)


def share(core: EngineCore) -> None:
    core._pool.ref_count[running(core, 1).block_tables[0][0]] += 1


def disown(core: EngineCore) -> None:
    core._pool.owner[running(core, 1).block_tables[0][0]] = None


def overcharge(core: EngineCore) -> None:
    running(core, 1).account.num_held_blocks += 1


def overpromise(core: EngineCore) -> None:
    running(core, 1).account.num_promised_blocks += 1


def promise_nobody(core: EngineCore) -> None:
    core._kv.num_promised_blocks += 1


def promise_too_much(core: EngineCore) -> None:
    core._kv.num_promised_blocks += 100


def lose_a_row(core: EngineCore) -> None:
    core._scheduler.free_rows.append(running(core, 1).row)


def announce_a_held_row(core: EngineCore) -> None:
    core._scheduler.released_rows.append(running(core, 1).row)


def forget_who_waits(core: EngineCore) -> None:
    core._scheduler.waiting.remove(running(core, 4))


def forget_a_request(core: EngineCore) -> None:
    del core._scheduler.requests[4]


def run_without_a_row(core: EngineCore) -> None:
    running(core, 1).row = NO_ROW


def run_past_the_end(core: EngineCore) -> None:
    running(core, 1).num_tokens += 100


def lose_slots(core: EngineCore) -> None:
    running(core, 1).num_slots += 4


def lose_a_column(core: EngineCore) -> None:
    running(core, 1).block_tables[1].pop()


def leave_the_window_early(core: EngineCore) -> None:
    running(core, 3).first_columns[1] += 1


def name_the_null_block(core: EngineCore) -> None:
    running(core, 1).block_tables[0][0] = 0


def wait_with_a_row(core: EngineCore) -> None:
    running(core, 4).row = 0


def wait_as_if_running(core: EngineCore) -> None:
    running(core, 4).status = SequenceStatus.RUNNING


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (free_held, "is free and held"),
        (free_twice, "is in the free order 2 times"),
        (free_null, "the null block was handed out"),
        (share, "is shared"),
        (share, "has reference count 2, and 1 names"),
        (disown, "has 1 references and owner None"),
        (free_held, "do not add up"),
        (overcharge, "is charged"),
        (overpromise, "promised blocks on its account"),
        (promise_nobody, "blocks are promised in all"),
        (promise_too_much, "blocks are promised and"),
        (lose_a_row, "has 2 owners"),
        (announce_a_held_row, "is not free"),
        (forget_who_waits, "is waiting and in 0 places"),
        (forget_a_request, "unknown, and in a queue"),
        (run_without_a_row, "runs in row -1"),
        (run_past_the_end, "at most"),
        (lose_slots, "slots for"),
        (lose_a_column, "columns in group 1"),
        (leave_the_window_early, "lacks blocks inside its window"),
        (name_the_null_block, "lacks blocks inside its window"),
        (wait_with_a_row, "waits and owns row 0"),
        (wait_as_if_running, "waits with status running"),
    ],
)
def test_damage_is_named(damage: Callable[[EngineCore], None], sentence: str) -> None:
    core = busy()
    assert core.audit() == []
    damage(core)
    broken = core.audit()
    assert any(sentence in found for found in broken), broken


def test_the_scene_has_everything_that_is_audited() -> None:
    core = busy()
    scheduler = core._scheduler
    assert len(scheduler.running) == 2 and len(scheduler.quarantine) == 1 and len(scheduler.waiting) == 1
    assert running(core, 3).first_columns[1] > 0
