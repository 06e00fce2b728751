"""ModelRunner: what a plan does to blocks, in which order, and what becomes of it when the host tier fails."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np
import pytest

from octavo.backends.reference import ReferenceBackend
from octavo.core.step import StepPlan
from octavo.worker.batch_state import BatchState
from octavo.worker.model_runner import ModelRunner
from octavo.worker.tier_store import HostTier
from support.small_worker import Worker, admit, blocks_of


def pattern(worker: Worker, block: int) -> bytes:
    """Fill a block with bytes of its own."""
    data = np.random.default_rng(block).bytes(worker.kv.shape.bytes_per_block)
    worker.kv.import_block(block, data)
    return data


def test_a_plan_is_performed_in_the_order_of_the_contract() -> None:
    worker = Worker()
    worker.run({}, [], swap_out=[(5, 0), (6, 1)])
    worker.notes.clear()
    result = worker.run(
        {0: 3},
        [0],
        setups=[admit(0, [1, 2, 3])],
        table_growth=[(0, 0, 0, 5), (0, 0, 1, 6)],
        erases=[5, 6],
        copies=[(7, 8)],
        swap_out=[(9, 2)],
        swap_in=[(1, 10)],
        discards=[0],
    )
    # The table is written before the blocks are erased, and the forward pass comes last.
    assert worker.notes == [
        ("discard", 0),
        ("swap out", 9),
        ("erase", [5, 6], [5, 6]),
        ("copy", [(7, 8)]),
        ("swap in", 10),
        ("forward",),
    ]
    assert len(result.token_ids) == 1


def test_a_block_swapped_out_erased_copied_over_and_filled_again_in_one_plan() -> None:
    """Every step would give other bytes if it came at another time."""
    worker = Worker()
    was = {block: pattern(worker, block) for block in (1, 2, 3)}
    worker.run({}, [], swap_out=[(3, 7)])
    # 1 goes to the host and is erased; it takes 2's bytes, which go on to 4; 2 then takes 3's from the host.
    worker.run({}, [], swap_out=[(1, 0)], erases=[1, 4], copies=[(2, 1), (1, 4)], swap_in=[(7, 2)])
    export = worker.kv.export_block
    assert [export(block) for block in (1, 4, 2)] == [was[2], was[2], was[3]]
    worker.run({}, [], swap_in=[(0, 5)])
    assert export(5) == was[1]


def test_a_copy_of_an_erased_block_is_zeros() -> None:
    worker = Worker()
    pattern(worker, 1)
    pattern(worker, 2)
    worker.run({}, [], erases=[1], copies=[(1, 2)])
    assert worker.kv.export_block(2) == bytes(worker.kv.shape.bytes_per_block)


def test_a_slot_discarded_and_taken_in_one_plan_holds_the_new_block() -> None:
    worker = Worker()
    pattern(worker, 1)
    second = pattern(worker, 2)
    worker.run({}, [], swap_out=[(1, 0)])
    worker.run({}, [], discards=[0], swap_out=[(2, 0)])
    assert worker.run({}, [], swap_in=[(0, 3)]).failed_swap_in == []
    assert worker.kv.export_block(3) == second


def test_a_swapped_sequence_goes_on_as_if_nothing_had_happened() -> None:
    prompt = [3, 1, 4, 1, 5, 9]
    undisturbed, worker = Worker(num_groups=2), Worker(num_groups=2)
    growth = blocks_of(0, 3) + blocks_of(0, 3, group=1)
    answer: list[int] = []
    for w in (undisturbed, worker):
        answer = w.run({0: 6}, [0], setups=[admit(0, prompt)], table_growth=growth).token_ids
    expected = [undisturbed.run({0: 1}, [0]).token_ids[0] for _ in range(4)]
    used = [block for _, _, column, block in growth if column < 2]
    swapped = worker.run({}, [], released_rows=[0], swap_out=list(zip(used, range(4), strict=True)))
    assert swapped.failed_swap_out == []
    assert swapped.swap_s > 0
    assert swapped.forward_s == 0
    # Others' tokens lie in the old blocks meanwhile.
    worker.run({}, [], erases=used)
    elsewhere = [(g, 2, column, 40 + g * 3 + column) for g in range(2) for column in range(3)]
    new = [block for _, _, column, block in elsewhere if column < 2]
    back = worker.run(
        {},
        [],
        setups=[admit(2, [*prompt, *answer], num_prompt=6, seed=0)],
        table_growth=elsewhere,
        swap_in=list(zip(range(4), new, strict=True)),
    )
    assert back.failed_swap_in == []
    worker.state.num_computed[2] = 6
    assert [worker.run({2: 1}, [2]).token_ids[0] for _ in range(4)] == expected


def test_steps_that_swap_nothing_report_no_swap_time() -> None:
    result = Worker().run({0: 1}, [0], setups=[admit(0, [1])], table_growth=blocks_of(0))
    assert (result.swap_s, result.failed_swap_out, result.failed_swap_in) == (0.0, [], [])
    assert result.forward_s > 0


class FailingTier(HostTier):
    """A host tier that fails on some slots: `puts` and `gets` say with what; None means that bytes were damaged."""

    def __init__(self, puts: dict[int, Exception], gets: dict[int, Exception | None]) -> None:
        super().__init__(8, Worker().kv.shape.bytes_per_block)
        self._puts = puts
        self._gets = gets

    def put(self, key: int, fill: Any) -> None:
        if key in self._puts:
            raise self._puts[key]
        super().put(key, fill)

    def get(self, key: int, take: Any) -> bool:
        error = self._gets.get(key, ...)
        if error is None:
            return False
        if isinstance(error, Exception):
            raise error
        return super().get(key, take)

    def discard(self, key: int) -> None:
        if key in self._puts:
            raise OSError(errno.EIO, "the disk is gone")
        super().discard(key)


def test_a_failing_tier_is_survived_and_told(caplog: pytest.LogCaptureFixture) -> None:
    puts: dict[int, Exception] = {1: MemoryError(), 2: OSError(errno.ENOSPC, "disk full"), 3: BlockingIOError()}
    gets: dict[int, Exception | None] = {5: None, 6: TimeoutError("no answer")}
    worker = Worker(tier=FailingTier(puts, gets))
    was = {block: pattern(worker, block) for block in range(1, 8)}
    out = worker.run({}, [], swap_out=[(block, block) for block in was], discards=[2])
    assert out.failed_swap_out == [1, 2, 3]
    assert "1 of 1 blocks could not be discarded" in caplog.text
    assert "3 of 7 blocks could not be swapped out" in caplog.text
    back = worker.run({}, [], erases=list(was), swap_in=[(slot, slot + 10) for slot in was])
    assert back.failed_swap_in == [11, 12, 13, 15, 16]
    assert [worker.kv.export_block(block) for block in (14, 17)] == [was[4], was[7]]
    # The worker serves on.
    assert len(worker.run({0: 1}, [0], setups=[admit(0, [1])], table_growth=blocks_of(0)).token_ids) == 1


def test_a_fault_of_the_program_is_no_failure_of_the_tier() -> None:
    with pytest.raises(TypeError, match="planted"):
        Worker(tier=FailingTier({0: TypeError("planted")}, {})).run({}, [], swap_out=[(1, 0)])


def test_swaps_are_refused_where_there_is_no_tier() -> None:
    backend = ReferenceBackend("float32")
    kv = backend.allocate_kv(Worker().kv.shape)
    program = backend.compile(lambda ops: ops, kv, 1)
    runner = ModelRunner(backend, program, kv, BatchState(4, 64))
    with pytest.raises(IndexError, match="host slot 0: there are 0"):
        runner.execute(StepPlan(1, [], [], [], [], [], [], swap_out=[(1, 0)]))
