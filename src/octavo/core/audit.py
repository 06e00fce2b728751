"""Is every block where the books say? The invariants of block memory, checked by walking everything.

Each check yields one sentence per broken promise. Nothing is changed and nothing is raised, so that an audit can run
on a live engine. `core.repair` makes the books agree again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from octavo.core.accounts import Account, Accounts
from octavo.core.beam_group import BeamGroup
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_index import Content, PrefixIndex
from octavo.core.request import NO_ROW, Sequence, SequenceStatus
from octavo.core.scheduler import Scheduler
from octavo.core.swapping import NO_SLOT


def broken_invariants(scheduler: Scheduler, accounts: Accounts) -> list[str]:
    """All broken invariants, one sentence each."""
    kv = scheduler.kv
    return [
        *_pool(kv.pool, references(scheduler)),
        *kv.pool.damage(),
        *_index(kv.index, kv.pool),
        *_published(scheduler),
        *_accounts(scheduler, accounts),
        *_rows(scheduler),
        *_places(scheduler),
        *_beams(scheduler),
        *_host(scheduler),
        *(broken for sequence in resident(scheduler) for broken in _running(sequence, kv)),
        *(broken for sequence in waiting_sequences(scheduler) for broken in _waiting(sequence)),
    ]


def resident(scheduler: Scheduler) -> list[Sequence]:
    """Sequences that have a row."""
    return [*scheduler.running.values(), *scheduler.swapping.arriving]


def waiting_sequences(scheduler: Scheduler) -> list[Sequence]:
    unborn = [s for request in scheduler.requests.values() for s in request.unborn.values()]
    return [*scheduler.waiting, *scheduler.in_flight, *unborn]


def references(scheduler: Scheduler) -> Counter[int]:
    """How often tables, the quarantine, published prefixes and searches' spare chunks name each block."""
    references: Counter[int] = Counter()
    for sequence in resident(scheduler):
        references.update(sequence.block_ids())
    for retired in scheduler.rows.quarantine:
        references.update(retired.block_ids)
    for blocks in (*scheduler.published, *scheduler.kv.spare_blocks()):
        references.update(blocks)
    return references


def host_references(sequences: Iterable[Sequence]) -> Counter[int]:
    """How often swapped and arriving sequences name each host slot."""
    return Counter(slot for s in sequences for table in s.host_tables for slot in table if slot != NO_SLOT)


def _name(sequence: Sequence) -> str:
    return f"sequence {sequence.index} of request {sequence.request_id}"


def _pool(pool: BlockPool, references: Counter[int]) -> Iterator[str]:
    """Every block is held, cached or free, and its count is the number of names it has."""
    idle = Counter(pool.free_blocks())
    idle.update(pool.cached)
    cached = set(pool.cached)
    for block_id, times in idle.items():
        if times > 1:
            yield f"block {block_id} is in the orders of free and cached blocks {times} times"
        if pool.ref_count[block_id] != 0:
            yield f"block {block_id} is free or cached, and held"
        if (block_id in cached) != (pool.content[block_id] is not None):
            yield f"block {block_id} is {'cached without' if block_id in cached else 'free with'} content"
        if (block_id in cached) != (pool.owner[block_id] is not None):
            yield f"block {block_id} is {'cached' if block_id in cached else 'free'}, owner {pool.owner[block_id]}"
    for block_id, count in enumerate(pool.ref_count):
        if count != references[block_id]:
            yield f"block {block_id} has reference count {count}, and {references[block_id]} names"
        if count > 0 and pool.owner[block_id] is None:
            yield f"block {block_id} has {count} references and no owner"
    if references[NULL_BLOCK] or idle[NULL_BLOCK]:
        yield "the null block was handed out"
    num_held = sum(count > 0 for count in pool.ref_count)
    if num_held + pool.num_cached + pool.num_free != pool.num_blocks:
        yield (
            f"{num_held} held, {pool.num_cached} cached and {pool.num_free} free blocks do not add up to "
            f"{pool.num_blocks}"
        )


def _index(index: PrefixIndex | None, pool: BlockPool) -> Iterator[str]:
    """Contents and blocks name each other, one to one."""
    if index is None:
        return
    for content in index:
        for group, block_id in enumerate(content.blocks):
            if block_id != NULL_BLOCK and pool.content[block_id] is not content:
                yield f"content {content.key.hex()[:16]} names block {block_id} in group {group}, which holds another"
        if not any(content.blocks):
            yield f"content {content.key.hex()[:16]} is in the index and in no block"
    for block_id, held in enumerate(pool.content):
        if held is not None and (index.find(held.key) is not held or held.blocks.count(block_id) != 1):
            yield f"block {block_id} holds content {held.key.hex()[:16]}, which the index does not find there"


def _accounts(scheduler: Scheduler, accounts: Accounts) -> Iterator[str]:
    """What tenants are charged for is what they hold and were promised; promises can be kept."""
    pool = scheduler.kv.pool
    held: Counter[Account | None] = Counter()
    cached: Counter[Account | None] = Counter()
    for block_id, owner in enumerate(pool.owner):
        (held if pool.ref_count[block_id] else cached)[owner] += 1
    promised: Counter[Account] = Counter()
    for sequence in resident(scheduler):
        promised[sequence.account] += sequence.num_promised_blocks
    on_host = Counter(scheduler.slots.owners())
    for account in accounts:
        for name, found, booked in (
            ("holds", held[account], account.num_held_blocks),
            ("has cached", cached[account], account.num_cached_blocks),
            ("was promised", promised[account], account.num_promised_blocks),
            ("keeps on the host", on_host[account], account.num_host_blocks),
        ):
            if found != booked:
                yield f"tenant {account.tenant!r} {name} {found} blocks, and its account says {booked}"
    if scheduler.kv.num_promised_blocks != promised.total():
        yield f"{scheduler.kv.num_promised_blocks} blocks are promised in all and {promised.total()} to sequences"
    if scheduler.kv.num_available_blocks < 0:
        yield f"{scheduler.kv.num_promised_blocks} blocks are promised and {pool.num_available} are available"


def _rows(scheduler: Scheduler) -> Iterator[str]:
    """Every row is running, arriving, free or in quarantine, once."""
    held = scheduler.rows
    rows = Counter(scheduler.running.keys())
    rows.update(sequence.row for sequence in scheduler.swapping.arriving)
    rows.update(held.free)
    rows.update(retired.row for retired in held.quarantine)
    for row in range(scheduler.max_num_seqs):
        if rows[row] != 1:
            yield f"row {row} has {rows[row]} owners"
    for row in set(held.released) - set(held.free) - scheduler.beams.untold_rows:
        yield f"row {row} waits to be named as released and is not free"
    reserved = sum(group.num_reserved_rows for group in scheduler.beam_groups())
    if reserved != held.num_reserved:
        yield f"{held.num_reserved} rows are reserved and beams have reserved {reserved}"


def _places(scheduler: Scheduler) -> Iterator[str]:
    """Every unfinished sequence runs or waits, once, and nobody else does."""
    places = Counter([*resident(scheduler), *waiting_sequences(scheduler)])
    for request in scheduler.requests.values():
        for sequence in request.sequences.values():
            times = places.pop(sequence, 0)
            if times != 1:
                yield f"{_name(sequence)} is {sequence.status.value} and in {times} places"
        if request.unborn and request.leader is None:
            yield f"{len(request.unborn)} sequences wait for a leader that is gone"
    for sequence in places:
        yield f"{_name(sequence)} is {sequence.status.value}, unknown, and in a queue"


def _beams(scheduler: Scheduler) -> Iterator[str]:
    """The beams of a search are in one place: it goes on when all of them have reported."""
    for group in scheduler.beam_groups():
        if is_apart(group):
            places = sorted({beam.status.value for beam in group.beams})
            yield f"beams of request {group.source.request_id} are {' and '.join(places)}"


def is_apart(group: BeamGroup) -> bool:
    return len({beam.status for beam in group.beams}) > 1


def _host(scheduler: Scheduler) -> Iterator[str]:
    """A slot's count is the number of names it has among swapped and arriving sequences."""
    names = host_references([*scheduler.waiting, *scheduler.swapping.arriving])
    counts = scheduler.slots.ref_count
    for slot in names.keys() | counts.keys():
        if names[slot] != counts.get(slot, 0):
            yield f"host slot {slot} has reference count {counts.get(slot, 0)}, and {names[slot]} names"
    if len(counts) + scheduler.slots.num_free != scheduler.slots.count:
        yield f"{len(counts)} used and {scheduler.slots.num_free} free host slots do not add up"


def _running(sequence: Sequence, kv: KVCacheManager) -> Iterator[str]:
    """A running sequence has a row, and writes to no block that others may find."""
    name = _name(sequence)
    if sequence.status is not SequenceStatus.RUNNING or sequence.row == NO_ROW:
        yield f"{name} runs in row {sequence.row} with status {sequence.status.value}"
    yield from progress_damage(sequence, kv)
    yield from table_damage(sequence, kv)
    if sequence.num_computed_tokens < sequence.num_slots:
        for table in filter(None, sequence.block_tables):
            if kv.pool.ref_count[table[-1]] != 1 or kv.pool.content[table[-1]] is not None:
                yield f"{name} writes to block {table[-1]}, which others may read"
    if sequence.lineage is not None:
        for block_id in misnamed(sequence, sequence.lineage.contents, kv.pool):
            yield f"block {block_id} of {name} is found as something that it does not hold"


def misnamed(sequence: Sequence, contents: list[Content], pool: BlockPool) -> Iterator[int]:
    """Blocks of a sequence that others would find as another content than it has in that column."""
    for table in sequence.block_tables:
        for block_id, content in zip(table, contents, strict=False):
            held = pool.content[block_id]
            if held is not None and held is not content and held.key != content.key:
                yield block_id


def _published(scheduler: Scheduler) -> Iterator[str]:
    """A published block can be found."""
    for blocks in scheduler.published:
        for block_id in blocks:
            if scheduler.kv.pool.content[block_id] is None:
                yield f"block {block_id} is published and cannot be found"


def progress_damage(sequence: Sequence, kv: KVCacheManager) -> Iterator[str]:
    """A sequence that runs or arrives has computed some of its tokens, and has a slot for each."""
    name, num_computed = _name(sequence), sequence.num_computed_tokens
    most = sequence.num_tokens if sequence.beams is not None else sequence.num_tokens - 1
    if not 0 < num_computed <= most < sequence.max_num_tokens:
        yield f"{name} has computed {num_computed} of {sequence.num_tokens} tokens, at most {sequence.max_num_tokens}"
    columns = kv.num_columns(sequence)
    if sequence.num_slots not in (columns * kv.block_size, num_computed):
        yield f"{name} has {sequence.num_slots} slots for {num_computed} computed tokens"


def table_damage(sequence: Sequence, kv: KVCacheManager) -> Iterator[str]:
    """It has a column for each computed token in each group, and no more than the group's window and its plans read."""
    name = _name(sequence)
    columns, start = kv.num_columns(sequence), kv.next_start(sequence)
    for g, group in enumerate(kv.spec.groups):
        table, first = sequence.block_tables[g], sequence.first_columns[g]
        lowest = 0 if group.window is None else max(0, start - group.window + 1) // kv.block_size
        if len(table) != columns:
            yield f"{name} has {len(table)} columns in group {g} for {sequence.num_computed_tokens} computed tokens"
        if first > lowest or any(table[:first]) or NULL_BLOCK in table[first:]:
            yield f"{name} lacks blocks inside its window in group {g}: {first} columns of {table} left it"
        most = kv.most_columns(group.window, columns)
        if columns - first > most:
            yield f"{name} holds {columns - first} columns in group {g}, where a window of {group.window} needs {most}"
    yield from kv.layout_damage(sequence)


def _waiting(sequence: Sequence) -> Iterator[str]:
    """A waiting sequence owns nothing on the device, and only a swapped one owns something on the host."""
    waits = (SequenceStatus.WAITING, SequenceStatus.PREEMPTED, SequenceStatus.SWAPPED)
    if sequence.status not in waits:
        yield f"{_name(sequence)} waits with status {sequence.status.value}"
    if sequence.row != NO_ROW or any(sequence.block_tables) or sequence.num_promised_blocks:
        yield f"{_name(sequence)} waits and owns row {sequence.row}, blocks {sequence.block_tables}"
    if any(sequence.host_tables) and sequence.status is not SequenceStatus.SWAPPED:
        yield f"{_name(sequence)} is {sequence.status.value} and has host slots"
