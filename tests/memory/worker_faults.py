"""Faults to plant in the worker, beside those of the core in `property.faults`: switches that exist only in tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from pytest import MonkeyPatch

from octavo.core.step import RowFork, StepPlan
from octavo.worker import model_runner
from octavo.worker.batch_state import BatchState
from octavo.worker.beam_candidates import beam_candidates
from octavo.worker.model_runner import ModelRunner
from octavo.worker.swapper import Swapper
from octavo.worker.tier_store import ByteArray, HostTier

Fault = Callable[[MonkeyPatch], None]
WORKER_FAULTS: dict[str, Fault] = {}


def fault(plant: Fault) -> Fault:
    WORKER_FAULTS[plant.__name__] = plant
    return plant


def moving(patch: MonkeyPatch, **without: Any) -> None:
    """Let the worker move blocks by a plan in which some fields read otherwise."""
    move = ModelRunner._move_blocks
    patch.setattr(
        ModelRunner, "_move_blocks", lambda runner, plan: move(runner, msgspec.structs.replace(plan, **without))
    )


@fault
def worker_skips_copies(patch: MonkeyPatch) -> None:
    moving(patch, copies=[])


@fault
def worker_skips_erases(patch: MonkeyPatch) -> None:
    moving(patch, erases=[])


@fault
def worker_skips_swaps_out(patch: MonkeyPatch) -> None:
    moving(patch, swap_out=[])


@fault
def worker_erases_last(patch: MonkeyPatch) -> None:
    """Freed blocks are zeroed after copies and swaps, when somebody has them again."""
    move = ModelRunner._move_blocks

    def late(runner: ModelRunner, plan: StepPlan) -> Any:
        moved = move(runner, msgspec.structs.replace(plan, erases=[]))
        runner._kv.erase_blocks(plan.erases)
        return moved

    patch.setattr(ModelRunner, "_move_blocks", late)


@fault
def worker_discards_last(patch: MonkeyPatch) -> None:
    """A slot that is discarded and used again by one plan loses its new block."""
    move = ModelRunner._move_blocks

    def late(runner: ModelRunner, plan: StepPlan) -> Any:
        moved = move(runner, msgspec.structs.replace(plan, discards=[]))
        runner._swapper.discard(plan.discards)
        return moved

    patch.setattr(ModelRunner, "_move_blocks", late)


@fault
def discarded_slot_keeps_its_bytes(patch: MonkeyPatch) -> None:
    patch.setattr(HostTier, "_wipe", lambda tier, slot: None)


@fault
def failed_put_passes_for_good(patch: MonkeyPatch) -> None:
    """A slot that did not take its block is not named as failed, and gives what it happens to hold."""
    swap_out = Swapper.swap_out

    def silent(swapper: Swapper, pairs: Sequence[tuple[int, int]]) -> list[int]:
        swap_out(swapper, pairs)
        return []

    def get(tier: HostTier, key: int, take: Callable[[ByteArray], None]) -> bool:
        take(tier._slot(key))
        return True

    patch.setattr(Swapper, "swap_out", silent)
    patch.setattr(HostTier, "get", get)


@fault
def block_comes_back_in_part(patch: MonkeyPatch) -> None:
    """The last quarter of a block is lost on the way."""

    def get(swapper: Swapper, pair: tuple[int, int]) -> bool:
        slot, block = pair

        def take(memory: ByteArray) -> None:
            part = memory.copy()
            part[-len(part) // 4 :] = 0
            swapper._kv.swap_in(part, block)

        return swapper._tier.get(slot, take)

    patch.setattr(Swapper, "_get", get)


@fault
def forked_row_without_table(patch: MonkeyPatch) -> None:
    """A twin's row has the tokens of its source and not its blocks."""
    change = ModelRunner._change_rows

    def bare(runner: ModelRunner, plan: StepPlan) -> None:
        tables = runner._kv.block_tables
        before = {fork.row: tables[:, fork.row].copy() for fork in plan.forks}
        change(runner, plan)
        told = {(g, row, column) for g, row, column, _ in plan.table_growth}
        for row, old in before.items():
            for (g, column), block in np.ndenumerate(old):
                if (g, row, column) not in told:
                    tables[g, row, column] = block

    patch.setattr(ModelRunner, "_change_rows", bare)


@fault
def forked_row_forgets_wishes(patch: MonkeyPatch) -> None:
    """A twin has no penalties, no bias and no banned tokens."""
    fork_row = BatchState.fork

    def forget(state: BatchState, fork: RowFork) -> None:
        fork_row(state, fork)
        state.has_penalties[fork.row] = False
        for wishes in (state.bias, state.stop_ids):
            wishes.pop(fork.row, None)

    patch.setattr(BatchState, "fork", forget)


@fault
def forked_row_keeps_its_index(patch: MonkeyPatch) -> None:
    """A twin draws the noise of its source."""
    fork_row = BatchState.fork

    def same(state: BatchState, fork: RowFork) -> None:
        fork_row(state, fork)
        state.sequence_index[fork.row] = state.sequence_index[fork.source_row]

    patch.setattr(BatchState, "fork", same)


@fault
def released_row_keeps_its_wishes(patch: MonkeyPatch) -> None:
    """Penalties, bias and bans reach the next sequence of the row."""
    set_up = BatchState.set_up

    def unclean(state: BatchState, setup: Any) -> None:
        row = setup.row
        bias, bans = state.bias.get(row), state.stop_ids.get(row)
        least = int(state.min_tokens[row])
        set_up(state, setup)
        if bias is not None and row not in state.bias:
            state.bias[row] = bias
        if bans is not None and row not in state.stop_ids:
            state.stop_ids[row], state.min_tokens[row] = bans, least

    patch.setattr(BatchState, "set_up", unclean)
    patch.setattr(BatchState, "release", lambda state, row: None)


@fault
def chosen_tokens_of_beams_are_lost(patch: MonkeyPatch) -> None:
    """All beams go on with the first one's token."""
    change = ModelRunner._change_rows

    def wrong(runner: ModelRunner, plan: StepPlan) -> None:
        change(runner, plan)
        for row, _ in plan.row_tokens:
            runner._state.tokens[row, runner._state.num_tokens[row] - 1] = plan.row_tokens[0][1]

    patch.setattr(ModelRunner, "_change_rows", wrong)


@fault
def twin_is_sampled_from_the_wrong_logits(patch: MonkeyPatch) -> None:
    """Where rows are sampled from another's logits, those of the first are taken."""
    compute = ModelRunner._compute

    def wrong(runner: ModelRunner, plan: StepPlan) -> Any:
        if plan.sample_sources:
            plan = msgspec.structs.replace(plan, sample_sources=[plan.sample_sources[0]] * len(plan.sample_sources))
        return compute(runner, plan)

    patch.setattr(ModelRunner, "_compute", wrong)


@fault
def beam_scores_without_normalising(patch: MonkeyPatch) -> None:
    """Beams are compared by the raw scores of their models' last layer."""

    def raw(logits: Any, batch: Any, counts: Any) -> Any:
        found = beam_candidates(logits, batch, counts)
        for row, entry in zip(logits, found, strict=True):
            if entry is not None:
                entry.top[:] = [(token, float(row[token])) for token, _ in entry.top]
        return found

    patch.setattr(model_runner, "beam_candidates", raw)
