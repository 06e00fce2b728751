"""Is every block where the books say? The invariants of block memory, checked by walking everything.

Each check yields one sentence per broken promise. Nothing is changed and nothing is raised, so that an audit can run
on a live engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from octavo.core.accounts import Account, Accounts
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from octavo.core.scheduler import Scheduler


def broken_invariants(scheduler: Scheduler, accounts: Accounts) -> list[str]:
    """All broken invariants, one sentence each."""
    references = _references(scheduler)
    return [
        *_pool(scheduler.kv.pool, references),
        *_accounts(scheduler, accounts),
        *_rows(scheduler),
        *_places(scheduler),
        *(broken for sequence in scheduler.running.values() for broken in _running(sequence, scheduler.kv)),
        *(broken for sequence in scheduler.waiting for broken in _waiting(sequence)),
    ]


def _references(scheduler: Scheduler) -> Counter[int]:
    """How often tables and the quarantine name each block."""
    references: Counter[int] = Counter()
    for sequence in scheduler.running.values():
        for table, first in zip(sequence.block_tables, sequence.first_columns, strict=True):
            references.update(table[first:])
    for retired in scheduler.quarantine:
        references.update(retired.block_ids)
    return references


def _name(sequence: Sequence) -> str:
    return f"sequence {sequence.index} of request {sequence.request_id}"


def _pool(pool: BlockPool, references: Counter[int]) -> Iterator[str]:
    """Every block is held or free, its count is the number of names it has, and nobody shares it."""
    free = Counter(pool.eviction)
    for block_id, times in free.items():
        if times > 1:
            yield f"block {block_id} is in the free order {times} times"
        if pool.ref_count[block_id] != 0:
            yield f"block {block_id} is free and held"
    for block_id, count in enumerate(pool.ref_count):
        if count != references[block_id]:
            yield f"block {block_id} has reference count {count}, and {references[block_id]} names"
        if count > 1:
            yield f"block {block_id} is shared"
        if (pool.owner[block_id] is None) != (count == 0):
            yield f"block {block_id} has {count} references and owner {pool.owner[block_id]}"
    if references[NULL_BLOCK] or free[NULL_BLOCK]:
        yield "the null block was handed out"
    num_held = sum(count > 0 for count in pool.ref_count)
    if num_held + len(pool.eviction) != pool.num_blocks:
        yield f"{num_held} held and {len(pool.eviction)} free blocks do not add up to {pool.num_blocks}"


def _accounts(scheduler: Scheduler, accounts: Accounts) -> Iterator[str]:
    """What tenants are charged for is what they hold and were promised; promises can be kept."""
    held: Counter[Account | None] = Counter(scheduler.kv.pool.owner)
    promised: Counter[Account] = Counter()
    for sequence in scheduler.running.values():
        promised[sequence.account] += sequence.num_promised_blocks
    for account in accounts:
        if account.num_held_blocks != held[account]:
            yield f"tenant {account.tenant!r} is charged {account.num_held_blocks} blocks and holds {held[account]}"
        if account.num_promised_blocks != promised[account]:
            yield (
                f"tenant {account.tenant!r} has {account.num_promised_blocks} promised blocks on its account and "
                f"{promised[account]} in its sequences"
            )
    if scheduler.kv.num_promised_blocks != promised.total():
        yield f"{scheduler.kv.num_promised_blocks} blocks are promised in all and {promised.total()} to sequences"
    if scheduler.kv.num_available_blocks < 0:
        yield f"{scheduler.kv.num_promised_blocks} blocks are promised and {scheduler.kv.pool.num_free} are free"


def _rows(scheduler: Scheduler) -> Iterator[str]:
    """Every row is running, free or in quarantine, once."""
    rows = Counter(scheduler.running.keys())
    rows.update(scheduler.free_rows)
    rows.update(retired.row for retired in scheduler.quarantine)
    for row in range(scheduler.max_num_seqs):
        if rows[row] != 1:
            yield f"row {row} has {rows[row]} owners"
    for row in set(scheduler.released_rows) - set(scheduler.free_rows):
        yield f"row {row} waits to be named as released and is not free"


def _places(scheduler: Scheduler) -> Iterator[str]:
    """Every unfinished sequence runs or waits, once, and nobody else does."""
    places = Counter([*scheduler.running.values(), *scheduler.waiting])
    for request in scheduler.requests.values():
        for sequence in request.sequences.values():
            times = places.pop(sequence, 0)
            if times != 1:
                yield f"{_name(sequence)} is {sequence.status.value} and in {times} places"
    for sequence in places:
        yield f"{_name(sequence)} is {sequence.status.value}, unknown, and in a queue"


def _running(sequence: Sequence, kv: KVCacheManager) -> Iterator[str]:
    """A running sequence has a slot for each computed token, and nothing below its window."""
    name = _name(sequence)
    if sequence.status is not SequenceStatus.RUNNING or sequence.row == NO_ROW:
        yield f"{name} runs in row {sequence.row} with status {sequence.status.value}"
    if not 0 < sequence.num_computed_tokens < sequence.num_tokens <= sequence.max_num_tokens:
        yield (
            f"{name} has computed {sequence.num_computed_tokens} of {sequence.num_tokens} tokens, "
            f"at most {sequence.max_num_tokens}"
        )
    columns = kv.spec.blocks_per_tokens(sequence.num_computed_tokens)
    if sequence.num_slots != columns * kv.block_size:
        yield f"{name} has {sequence.num_slots} slots for {sequence.num_computed_tokens} computed tokens"
    for g, group in enumerate(kv.spec.groups):
        table, first = sequence.block_tables[g], sequence.first_columns[g]
        lowest = 0 if group.window is None else max(0, sequence.last_start - group.window + 1) // kv.block_size
        if len(table) != columns:
            yield f"{name} has {len(table)} columns in group {g} for {sequence.num_computed_tokens} computed tokens"
        if first > lowest or any(table[:first]) or NULL_BLOCK in table[first:]:
            yield f"{name} lacks blocks inside its window in group {g}: {first} columns of {table} left it"


def _waiting(sequence: Sequence) -> Iterator[str]:
    """A waiting sequence owns nothing."""
    if sequence.status not in (SequenceStatus.WAITING, SequenceStatus.PREEMPTED):
        yield f"{_name(sequence)} waits with status {sequence.status.value}"
    if sequence.row != NO_ROW or any(sequence.block_tables) or sequence.num_promised_blocks:
        yield f"{_name(sequence)} waits and owns row {sequence.row}, blocks {sequence.block_tables}"
