"""Where every block is, for people: totals, accounts, and single blocks."""

from __future__ import annotations

from collections import Counter

from octavo.core.accounts import Accounts
from octavo.core.block_pool import BlockPool
from octavo.core.scheduler import Scheduler
from octavo.messages import KVBlock, KVStats

HELD, CACHED, FREE, PINNED = "held", "cached", "free", "pinned"


def pinned_blocks(scheduler: Scheduler) -> set[int]:
    """Blocks that only transfers and plans in flight still hold. Walks what is in flight, not the pool."""
    references: Counter[int] = Counter()
    for retired in scheduler.rows.quarantine:
        references.update(retired.block_ids)
    for sequence in scheduler.swapping.arriving:
        references.update(sequence.block_ids())
    ref_count = scheduler.kv.pool.ref_count
    return {block_id for block_id, count in references.items() if ref_count[block_id] == count}


def num_unfilled_slots(scheduler: Scheduler) -> int:
    """Token slots of running sequences that hold no token: in their last blocks, or in all they have reserved. Walks
    the running sequences."""
    filled: dict[int, int] = {}
    size = scheduler.kv.block_size
    for sequence in scheduler.running.values():
        for table in filter(None, sequence.block_tables):
            # At depth 2 the tokens of the plan in flight count as there. Below 0 where whole blocks are empty.
            used = sequence.num_computed_tokens - (len(table) - 1) * size
            filled[table[-1]] = max(used, filled.get(table[-1], used))
    return sum(size - used for used in filled.values())


def kv_stats(scheduler: Scheduler, accounts: Accounts, bytes_per_block: int) -> KVStats:
    """The whole picture. Takes time that grows with what runs, not with the pool."""
    pool, kv, slots = scheduler.kv.pool, scheduler.kv, scheduler.slots
    num_pinned = len(pinned_blocks(scheduler))
    num_references = sum(sequence.num_held_blocks for sequence in scheduler.running.values())
    return KVStats(
        block_size=kv.block_size,
        bytes_per_block=bytes_per_block,
        num_blocks=pool.num_blocks,
        num_held_blocks=pool.num_held - num_pinned,
        num_pinned_blocks=num_pinned,
        num_cached_blocks=pool.num_cached,
        num_free_blocks=pool.num_free,
        num_promised_blocks=kv.num_promised_blocks,
        num_published_blocks=scheduler.published.num_blocks,
        num_references=num_references + sum(map(len, scheduler.published)),
        num_unfilled_slots=num_unfilled_slots(scheduler),
        num_host_blocks=slots.count,
        num_host_held_blocks=len(slots.ref_count),
        num_evictions=pool.num_evictions,
        erases_freed_blocks=pool.erases,
        accounts=[account.report() for account in accounts],
    )


def kv_blocks(scheduler: Scheduler, first: int, count: int) -> list[KVBlock]:
    """Blocks `first` to `first + count - 1`, as far as there are such; the null block is none."""
    pool = scheduler.kv.pool
    pinned = pinned_blocks(scheduler)
    last = min(first + count, pool.num_blocks + 1)
    return [_describe(pool, block_id, block_id in pinned) for block_id in range(max(1, first), last)]


def _describe(pool: BlockPool, block_id: int, is_pinned: bool) -> KVBlock:
    references, owner, content = pool.ref_count[block_id], pool.owner[block_id], pool.content[block_id]
    state = PINNED if is_pinned else HELD if references else CACHED if content is not None else FREE
    return KVBlock(
        block_id=block_id,
        state=state,
        owner=None if owner is None else owner.tenant,
        references=references,
        age_s=max(0.0, pool.now_s - pool.since_s[block_id]),
        key=None if content is None else content.key.hex()[:16],
        num_tokens=0 if content is None else len(content.tokens),
        num_hits=0 if content is None else content.num_hits,
    )
