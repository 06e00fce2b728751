"""Makes the books of block memory agree again with what is known for certain.

Certain are the requests and the tokens of each sequence. Who names a block is in the tables, the quarantine and the
published prefixes; counts, orders, free lists and accounts are made anew from that. A sequence whose own table or
progress cannot be right is computed again from its tokens. Nobody is ended and no token is lost.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.core.accounts import Account, Accounts
from octavo.core.audit import (
    host_references,
    is_apart,
    misnamed,
    progress_damage,
    references,
    resident,
    table_damage,
    waiting_sequences,
)
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_index import PrefixIndex
from octavo.core.request import NO_ROW, Request, Sequence, SequenceStatus
from octavo.core.scheduler import ScheduledStep, Scheduler


def repair(scheduler: Scheduler, accounts: Accounts, in_flight: Iterable[ScheduledStep]) -> None:
    """Repair everything that `audit.broken_invariants` can find broken.

    Args:
        in_flight: Steps that were planned and not applied.
    """
    kv, slots = scheduler.kv, scheduler.slots
    _places(scheduler)
    _count_tokens(scheduler, Counter(sequence for step in in_flight for sequence in step.sampled))
    lost = [s for s in scheduler.waiting if s.status is SequenceStatus.SWAPPED and _lacks_slots(scheduler, s)]
    again = [s for s in resident(scheduler) if _is_beyond_repair(s, kv)]
    for sequence in again:
        _own_nothing(sequence)
    holders = [*scheduler.waiting, *scheduler.swapping.arriving]
    slots.rebuild(host_references(holders), {slot: s.account for s in holders for slot in host_references([s])})
    _rows(scheduler)
    _contents(kv.index, kv.pool, resident(scheduler), kv)
    payers = _payers(scheduler)
    kv.pool.rebuild(references(scheduler), lambda block_id: payers.get(block_id) or accounts.open("(unknown)"))
    _charges(scheduler, accounts)
    for sequence in lost:
        if sequence.status is SequenceStatus.SWAPPED:  # not lost already, with its gang
            scheduler.lost(scheduler.swapping.lose(sequence))
    for sequence in again:
        _compute_again(scheduler, sequence)
    for group in scheduler.beam_groups():
        if is_apart(group):
            scheduler.beams.restart(group)
    scheduler.published.withdraw_lost()


def _places(scheduler: Scheduler) -> None:
    """Every unfinished sequence runs, arrives or waits, once; whoever waits owns nothing on the device."""
    for row, sequence in scheduler.running.items():
        sequence.row, sequence.status = row, SequenceStatus.RUNNING
    housed = dict.fromkeys(resident(scheduler))
    for sequence in list(scheduler.waiting):
        if sequence in housed:
            scheduler.waiting.remove(sequence)
    waiting = dict.fromkeys(waiting_sequences(scheduler))
    for sequence in (*housed, *waiting):
        scheduler.requests.setdefault(sequence.request_id, Request()).sequences.setdefault(sequence.index, sequence)
    for request in scheduler.requests.values():
        for sequence in request.sequences.values():
            if sequence not in housed and sequence not in waiting:
                waiting[sequence] = None
                scheduler.waiting.put(sequence)
        if request.unborn and request.leader is None:
            scheduler.siblings.pass_on(request)
    for sequence in waiting:
        _own_nothing(sequence)
        if sequence.status is not SequenceStatus.SWAPPED:
            sequence.host_tables = []
            sequence.forget_blocks()
            if sequence.status is not SequenceStatus.WAITING:
                sequence.status = SequenceStatus.PREEMPTED


def _own_nothing(sequence: Sequence) -> None:
    """Let a sequence name no block. One that waits has no row either."""
    if sequence.status is not SequenceStatus.RUNNING:
        sequence.row = NO_ROW
    sequence.block_tables = [[] for _ in sequence.block_tables]
    sequence.first_columns = [0] * len(sequence.first_columns)
    sequence.num_slots = sequence.num_promised_blocks = 0


def _count_tokens(scheduler: Scheduler, being_sampled: Counter[Sequence]) -> None:
    for request in scheduler.requests.values():
        for sequence in request.sequences.values():
            sequence.num_tokens = len(sequence.source.token_ids) + len(sequence.answer)
            if sequence.beams is None:
                sequence.num_tokens += being_sampled[sequence]


def _is_beyond_repair(sequence: Sequence, kv: KVCacheManager) -> bool:
    """Whether nothing but its tokens can be trusted. What follows from the rest is made right here."""
    sequence.num_slots = sequence.num_computed_tokens  # the next write asks for more
    return any(table_damage(sequence, kv)) or any(progress_damage(sequence, kv))


def _compute_again(scheduler: Scheduler, sequence: Sequence) -> None:
    if sequence.beams is not None:
        if sequence.status is SequenceStatus.RUNNING:  # the search was not begun again yet
            scheduler.beams.restart(sequence.beams)
        return
    scheduler.leave_row(sequence)
    sequence.forget_blocks()
    sequence.move_to(SequenceStatus.PREEMPTED)
    scheduler.waiting.put(sequence)


def _lacks_slots(scheduler: Scheduler, sequence: Sequence) -> bool:
    """Whether a swapped sequence names slots that were given back: they may hold anything by now."""
    return any(slot not in scheduler.slots.ref_count for slot in host_references([sequence]))


def _rows(scheduler: Scheduler) -> None:
    rows = scheduler.rows
    taken = {s.row for s in resident(scheduler)} | {retired.row for retired in rows.quarantine}
    leaked = [row for row in range(rows.count) if row not in taken and row not in rows.free]
    rows.free = [row for row in dict.fromkeys([*rows.free, *leaked]) if row not in taken]
    # A worker may have heard of a row that was leaked.
    told = {*rows.free, *scheduler.beams.untold_rows}
    rows.released = [row for row in dict.fromkeys([*rows.released, *leaked]) if row in told]
    rows.num_reserved = sum(group.num_reserved_rows for group in scheduler.beam_groups())


def _contents(index: PrefixIndex | None, pool: BlockPool, sequences: Iterable[Sequence], kv: KVCacheManager) -> None:
    """Let contents and blocks name each other one to one, and nobody find a block that is being written."""
    if index is None:
        return
    for sequence in sequences:
        if sequence.num_computed_tokens % kv.block_size:
            for table in sequence.block_tables:
                if table:
                    pool.content[table[-1]] = None
        contents = [] if sequence.lineage is None else sequence.lineage.contents
        for block_id in misnamed(sequence, contents, pool):
            pool.content[block_id] = None
    for block_id, content in enumerate(pool.content):
        if content is not None and (index.find(content.key) is not content or content.blocks.count(block_id) != 1):
            pool.content[block_id] = None
    for content in list(index):
        for group, block_id in enumerate(content.blocks):
            if block_id != NULL_BLOCK and pool.content[block_id] is not content:
                content.blocks[group] = NULL_BLOCK
        if not any(content.blocks):
            index.remove(content)


def _payers(scheduler: Scheduler) -> dict[int, Account]:
    """Block to the account of one who names it."""
    return {
        block_id: sequence.account
        for sequence in resident(scheduler)
        for table in sequence.block_tables
        for block_id in table
    }


def _charges(scheduler: Scheduler, accounts: Accounts) -> None:
    kv, pool = scheduler.kv, scheduler.kv.pool
    holders = resident(scheduler)
    if sum(sequence.num_promised_blocks for sequence in holders) > pool.num_available:
        for sequence in holders:  # promises that cannot be kept are none; its growth asks again
            sequence.num_promised_blocks = 0
    held: Counter[Account | None] = Counter()
    cached: Counter[Account | None] = Counter()
    for count, owner in zip(pool.ref_count, pool.owner, strict=True):
        (held if count else cached)[owner] += 1
    on_host = Counter(scheduler.slots.owners())
    promised: Counter[Account] = Counter()
    for sequence in holders:
        promised[sequence.account] += sequence.num_promised_blocks
    for account in accounts:
        account.num_held_blocks, account.num_cached_blocks = held[account], cached[account]
        account.num_promised_blocks = promised[account]
        account.num_host_blocks = on_host[account]
    kv.num_promised_blocks = promised.total()
