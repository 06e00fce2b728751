"""Faults to plant in the core: switches that exist only in tests, to ask whether the tests would notice.

Each switch breaks one promise the way an honest mistake would, by patching classes of `octavo.core`; it knows nothing
of the worker, so it works in a real engine too. `FAULTS` names them all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from pytest import MonkeyPatch

from octavo.core import prefix_index, speculation
from octavo.core.beams import Beams
from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.engine_core import EngineCore
from octavo.core.host_slots import HostSlots
from octavo.core.in_flight import InFlightPrefixes
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.prefix_index import Content, Lineage, PrefixIndex
from octavo.core.published import Published
from octavo.core.request import Sequence, SequenceStatus
from octavo.core.rows import Rows
from octavo.core.scheduler import ScheduledStep, Scheduler
from octavo.core.siblings import Siblings
from octavo.core.speculation import Speculation, Verified
from octavo.core.step import Drafted, StepPlan, StepResult
from octavo.core.swapping import Swapping
from octavo.messages import PUBLIC_TENANT

Fault = Callable[[MonkeyPatch], None]
FAULTS: dict[str, Fault] = {}


def fault(plant: Fault) -> Fault:
    FAULTS[plant.__name__] = plant
    return plant


# ---- sharing


@fault
def skip_the_copy(patch: MonkeyPatch) -> None:
    """A block is bound for a copy, and the copy is not in the plan."""
    end_plan = KVCacheManager.end_plan

    def forget(kv: KVCacheManager, plan: StepPlan) -> None:
        plan.copies.clear()
        end_plan(kv, plan)

    patch.setattr(KVCacheManager, "end_plan", forget)


@fault
def write_into_a_shared_block(patch: MonkeyPatch) -> None:
    """Copy-on-write is forgotten."""
    patch.setattr(KVCacheManager, "_shared_tails", lambda kv, sequence: [])


@fault
def copy_the_wrong_way(patch: MonkeyPatch) -> None:
    """Source and destination of a copy are mixed up."""
    end_plan = KVCacheManager.end_plan

    def turn(kv: KVCacheManager, plan: StepPlan) -> None:
        plan.copies[:] = [(copy, source) for source, copy in plan.copies]
        end_plan(kv, plan)

    patch.setattr(KVCacheManager, "end_plan", turn)


@fault
def copy_into_the_wrong_column(patch: MonkeyPatch) -> None:
    """The worker's table keeps the shared block; only the core's has the copy."""
    copy = KVCacheManager._copy_shared_tails

    def untold(kv: KVCacheManager, sequence: Sequence, plan: StepPlan) -> Any:
        num_entries = len(plan.table_growth)
        result = copy(kv, sequence, plan)
        del plan.table_growth[num_entries:]
        return result

    patch.setattr(KVCacheManager, "_copy_shared_tails", untold)


@fault
def fork_forgets_a_group(patch: MonkeyPatch) -> None:
    """A twin names the blocks of the last KV group and holds no reference to them."""
    fork = KVCacheManager.fork

    def forgetful(kv: KVCacheManager, parent: Sequence, child: Sequence) -> None:
        fork(kv, parent, child)
        for block_id in child.block_tables[-1][child.first_columns[-1] :]:
            kv.pool.ref_count[block_id] -= 1

    patch.setattr(KVCacheManager, "fork", forgetful)


@fault
def twin_draws_the_same_noise(patch: MonkeyPatch) -> None:
    """Siblings are told apart in the core and not in the worker."""
    fork = Siblings._fork

    def same(siblings: Siblings, step: ScheduledStep, leader: Sequence, child: Sequence) -> None:
        fork(siblings, step, leader, child)
        step.plan.forks[-1].sequence_index = leader.index

    patch.setattr(Siblings, "_fork", same)


@fault
def twin_without_new_blocks(patch: MonkeyPatch) -> None:
    """The blocks that the forking plan binds to the leader are not in the twin's table."""
    bear = Siblings.bear

    def bare(siblings: Siblings, step: ScheduledStep) -> None:
        num_entries = len(step.plan.table_growth)
        bear(siblings, step)
        del step.plan.table_growth[num_entries:]

    patch.setattr(Siblings, "bear", bare)


@fault
def beams_swap_tokens(patch: MonkeyPatch) -> None:
    """Two beams get each other's token."""
    tell = Beams.tell

    def mixed_up(beams: Beams, plan: StepPlan) -> None:
        tell(beams, plan)
        if len(plan.row_tokens) > 1:
            (a, x), (b, y), *others = plan.row_tokens
            plan.row_tokens = [(a, y), (b, x), *others]

    patch.setattr(Beams, "tell", mixed_up)


@fault
def dropped_beam_keeps_its_blocks(patch: MonkeyPatch) -> None:
    def leave(beams: Beams, beam: Sequence) -> None:
        scheduler = beams._scheduler
        del scheduler.running[beam.row]
        scheduler.kv.detach(beam)
        scheduler.rows.give_back(beam.row, [])

    patch.setattr(Beams, "_leave", leave)


@fault
def fork_from_the_wrong_beam(patch: MonkeyPatch) -> None:
    """The worker copies a sibling of the beam that survives twice."""
    tell = Beams.tell

    def wrong(beams: Beams, plan: StepPlan) -> None:
        tell(beams, plan)
        forked = {fork.row for fork in plan.forks}
        others = [row for row, _ in plan.row_tokens if row not in forked]
        for fork in plan.forks:
            fork.source_row = next((row for row in others if row != fork.source_row), fork.source_row)

    patch.setattr(Beams, "tell", wrong)


@fault
def beams_part(patch: MonkeyPatch) -> None:
    """One beam of a search gives way alone."""
    preempt = Scheduler._preempt

    def alone(scheduler: Scheduler, gang: list[Sequence], plan: StepPlan) -> None:
        preempt(scheduler, gang[-1:] if gang[0].beams is not None else gang, plan)

    patch.setattr(Scheduler, "_preempt", alone)


# ---- the prefix cache


@fault
def stale_key(patch: MonkeyPatch) -> None:
    """An evicted or freed block can still be found by what it held."""
    patch.setattr(PrefixIndex, "forget", lambda index, content, block_id: None)


@fault
def uncomputed_block_is_found(patch: MonkeyPatch) -> None:
    """A chunk that ends inside a block makes the whole block known."""
    commit = KVCacheManager.commit

    def hasty(kv: KVCacheManager, sequence: Sequence, num_computed: int) -> Any:
        whole = -(-num_computed // kv.block_size) * kv.block_size
        return commit(kv, sequence, whole if whole <= len(sequence.token_ids) else num_computed)

    patch.setattr(KVCacheManager, "commit", hasty)


@fault
def salt_left_out(patch: MonkeyPatch) -> None:
    scope = PrefixIndex.open
    patch.setattr(PrefixIndex, "open", lambda index, tenant, adapter, salt: scope(index, tenant, adapter, None))


@fault
def adapter_left_out(patch: MonkeyPatch) -> None:
    scope = PrefixIndex.open
    patch.setattr(PrefixIndex, "open", lambda index, tenant, adapter, salt: scope(index, tenant, None, salt))


@fault
def tenant_left_out(patch: MonkeyPatch) -> None:
    scope = PrefixIndex.open

    def anyone(index: PrefixIndex, tenant: str, adapter: str | None, salt: str | None) -> Lineage:
        return scope(index, tenant if tenant == PUBLIC_TENANT else "anyone", adapter, salt)

    patch.setattr(PrefixIndex, "open", anyone)


def short_keys(patch: MonkeyPatch) -> None:
    """Keys of 8 bits: many contents share one. No fault, as long as tokens are compared."""
    key = prefix_index.block_key
    patch.setattr(prefix_index, "block_key", lambda *parts: key(*parts)[:1] * 32)


@fault
def short_keys_are_trusted(patch: MonkeyPatch) -> None:
    """Two contents with one key pass for each other."""
    short_keys(patch)

    def trusting(index: PrefixIndex, parent: Content, found: Content, count: int, *of_the_prompt: object) -> Any:
        chain = [found]
        while len(chain) < count:
            chain.append(chain[-1].parent)
        return chain[::-1]

    patch.setattr(PrefixIndex, "_back_to", trusting)


@fault
def index_not_cleared_on_reset(patch: MonkeyPatch) -> None:
    """A reset frees the blocks and leaves their keys."""
    reset = KVCacheManager.reset

    def leave(kv: KVCacheManager, tenant: str | None) -> int:
        forget, kv.pool.forget = kv.pool.forget, lambda content, block_id: None
        try:
            return reset(kv, tenant)
        finally:
            kv.pool.forget = forget

    patch.setattr(KVCacheManager, "reset", leave)


@fault
def reset_forgets_nothing(patch: MonkeyPatch) -> None:
    patch.setattr(KVCacheManager, "reset", lambda kv, tenant: 0)


@fault
def pin_forgotten(patch: MonkeyPatch) -> None:
    """The block that a partial hit copies is not kept while blocks are taken."""
    take = KVCacheManager._take

    def unpinned(kv: KVCacheManager, sequence: Sequence, match: Any, plan: StepPlan) -> None:
        share = kv.pool.share
        tail = () if match.tail is None else tuple(match.tail.blocks)
        kv.pool.share = lambda block_id: None if block_id in tail else share(block_id)  # type: ignore[method-assign]
        try:
            take(kv, sequence, match, plan)
        finally:
            del kv.pool.share
        kv._pinned = [block_id for block_id in kv._pinned if block_id not in tail]

    patch.setattr(KVCacheManager, "_take", unpinned)


@fault
def hit_one_token_too_far(patch: MonkeyPatch) -> None:
    """A partial hit counts the first token that differs."""
    num_equal = prefix_index._num_equal

    def generous(a: Any, b: Any) -> int:
        count = num_equal(a, b)
        return count + 1 if 0 < count < min(len(a), len(b)) else count

    patch.setattr(prefix_index, "_num_equal", generous)


@fault
def hit_everything(patch: MonkeyPatch) -> None:
    """A prompt that is all there leaves nothing to compute, and no logits."""
    match = PrefixIndex.match

    def whole(index: PrefixIndex, lineage: Lineage, token_ids: Any, limit: int) -> Any:
        return match(index, lineage, token_ids, limit + 1)

    patch.setattr(PrefixIndex, "match", whole)


@fault
def hit_hides_prompt_logprobs(patch: MonkeyPatch) -> None:
    """A prompt whose logprobs are wanted is not computed."""

    def match(kv: KVCacheManager, sequence: Sequence) -> Any:
        if kv.index is None or sequence.lineage is None:
            return prefix_index.NO_MATCH
        return kv.index.match(sequence.lineage, sequence.token_ids, sequence.num_tokens - 1)

    patch.setattr(KVCacheManager, "match", match)


@fault
def window_not_asked_for(patch: MonkeyPatch) -> None:
    """A hit is taken though a windowed group has lost the columns that it reads."""
    patch.setattr(
        PrefixIndex,
        "_within_windows",
        lambda index, contents, tail, num_tail: prefix_index.Match(contents, tail, num_tail),
    )


@fault
def window_asked_of_one_group(patch: MonkeyPatch) -> None:
    """Of several groups with one window, a hit asks only the first for the columns that it reads."""
    missing = PrefixIndex._missing_column

    def ask_one(index: PrefixIndex, contents: Any, num_tail: int) -> int | None:
        windows = index._windows
        index._windows = tuple((window, groups[:1]) for window, groups in windows)
        found = missing(index, contents, num_tail)
        index._windows = windows
        return found

    patch.setattr(PrefixIndex, "_missing_column", ask_one)


@fault
def hit_not_in_the_table(patch: MonkeyPatch) -> None:
    """The worker is not told of the blocks that were hit."""
    take = KVCacheManager._take

    def untold(kv: KVCacheManager, sequence: Sequence, match: Any, plan: StepPlan) -> None:
        num_entries = len(plan.table_growth)
        take(kv, sequence, match, plan)
        del plan.table_growth[num_entries:]

    patch.setattr(KVCacheManager, "_take", untold)


@fault
def takeover_lost(patch: MonkeyPatch) -> None:
    """Who waits for a prefix is not woken when whoever computed it is gone."""

    def leave(in_flight: InFlightPrefixes, sequence: Sequence) -> list[Sequence]:
        for key in in_flight._keys.pop(sequence, ()):
            del in_flight._computing[key]
        return []

    patch.setattr(InFlightPrefixes, "leave", leave)


@fault
def waiter_not_woken(patch: MonkeyPatch) -> None:
    """Who waits for a prefix is not woken when it is there."""
    done = InFlightPrefixes.done

    def silent(in_flight: InFlightPrefixes, keys: list[bytes]) -> list[Sequence]:
        done(in_flight, keys)
        return []

    patch.setattr(InFlightPrefixes, "done", silent)


@fault
def withdrawn_prefix_stays(patch: MonkeyPatch) -> None:
    """A withdrawn prefix is forgotten by name and held for ever."""

    def withdraw(published: Published, name: str) -> bool:
        return published._num_tokens.pop(name, None) is not None

    patch.setattr(Published, "withdraw", withdraw)
    patch.setattr(Published, "report", lambda published: [])


@fault
def cached_block_is_evicted_while_held(patch: MonkeyPatch) -> None:
    """A hit leaves the block in the order of eviction."""

    def share(pool: BlockPool, block_id: int) -> None:
        if pool.ref_count[block_id] == 0:
            account = pool.owner[block_id]
            assert account is not None
            account.num_cached_blocks -= 1
            account.num_held_blocks += 1
        pool.ref_count[block_id] += 1

    patch.setattr(BlockPool, "share", share)


@fault
def chain_not_compared(patch: MonkeyPatch) -> None:
    """Of two contents with one key only the last block's tokens are compared, not what came before."""
    short_keys(patch)
    patch.setattr(prefix_index, "is_same", lambda a, b: True)


@fault
def contents_shifted_after_a_swap(patch: MonkeyPatch) -> None:
    """What came back from the host is found under the next block's key."""

    def adopt(kv: KVCacheManager, sequence: Sequence) -> None:
        if sequence.lineage is not None and kv.index is not None:
            for column, content in enumerate(sequence.lineage.contents[1:]):
                kv._attach(content, [table[column] for table in sequence.block_tables])

    patch.setattr(KVCacheManager, "adopt", adopt)


@fault
def twins_share_one_lineage(patch: MonkeyPatch) -> None:
    """A twin's keys go on where its sibling's end."""
    patch.setattr(Lineage, "fork", lambda lineage: lineage)


@fault
def reset_takes_published_blocks(patch: MonkeyPatch) -> None:
    def reset(kv: KVCacheManager, tenant: str | None) -> int:
        if kv.index is None:
            return 0
        before = kv.pool.num_cached
        for content in list(kv.index):
            for block_id in [block_id for block_id in content.blocks if block_id != NULL_BLOCK]:
                kv.pool.drop_content(block_id)
        return before - kv.pool.num_cached

    patch.setattr(KVCacheManager, "reset", reset)


@fault
def published_block_not_held(patch: MonkeyPatch) -> None:
    """A published prefix names its blocks and holds no reference."""
    keep = Published.keep

    def loosely(published: Published, name: str, sequence: Sequence) -> bool:
        kept = keep(published, name, sequence)
        for block_id in published._blocks.get(name, ()):
            published._pool.ref_count[block_id] -= 1
        return kept

    patch.setattr(Published, "keep", loosely)


@fault
def tail_of_another_block(patch: MonkeyPatch) -> None:
    """A sealed tail is looked for in the first block of its sequence."""
    seal = KVCacheManager.seal

    def misplaced(kv: KVCacheManager, sequence: Sequence) -> None:
        tables = sequence.block_tables
        sequence.block_tables = [table[-1:] + table[1:-1] + table[:1] if len(table) > 1 else table for table in tables]
        seal(kv, sequence)
        sequence.block_tables = tables

    patch.setattr(KVCacheManager, "seal", misplaced)


# ---- holding and giving back


@fault
def double_release(patch: MonkeyPatch) -> None:
    release = BlockPool.release

    def twice(pool: BlockPool, block_ids: list[int]) -> int:
        result = release(pool, block_ids)
        if block_ids and pool.ref_count[block_ids[0]] > 0:
            release(pool, block_ids[:1])
        return result

    patch.setattr(BlockPool, "release", twice)


@fault
def block_leaks_on_release(patch: MonkeyPatch) -> None:
    """The last block of a list is not released."""
    release = BlockPool.release
    patch.setattr(BlockPool, "release", lambda pool, block_ids: release(pool, block_ids[:-1]))


@fault
def block_in_two_states(patch: MonkeyPatch) -> None:
    """A block that is handed out can be handed out again."""
    acquire = BlockPool.acquire

    def again(pool: BlockPool, count: int, account: Any) -> list[int]:
        block_ids = acquire(pool, count, account)
        pool._free += block_ids[:1]
        return block_ids

    patch.setattr(BlockPool, "acquire", again)


@fault
def stranger_is_charged(patch: MonkeyPatch) -> None:
    """Whoever takes a block pays for it twice."""
    acquire = BlockPool.acquire

    def dear(pool: BlockPool, count: int, account: Any) -> list[int]:
        account.num_held_blocks += 1
        return acquire(pool, count, account)

    patch.setattr(BlockPool, "acquire", dear)


@fault
def promise_not_returned(patch: MonkeyPatch) -> None:
    """A sequence that leaves keeps what was promised to it."""
    detach = KVCacheManager.detach

    def greedy(kv: KVCacheManager, sequence: Sequence) -> list[int]:
        promised, sequence.num_promised_blocks = sequence.num_promised_blocks, 0
        block_ids = detach(kv, sequence)
        sequence.num_promised_blocks = promised
        return block_ids

    patch.setattr(KVCacheManager, "detach", greedy)


@fault
def promise_not_kept(patch: MonkeyPatch) -> None:
    """Blocks promised to a prompt are given to whoever comes first."""
    patch.setattr(KVCacheManager, "num_available_blocks", property(lambda kv: kv.pool.num_available))


@fault
def no_quarantine(patch: MonkeyPatch) -> None:
    """Rows and blocks that a plan in flight names are handed out at once."""
    patch.setattr(Rows, "retire", Rows.give_back)


@fault
def unannounced_row(patch: MonkeyPatch) -> None:
    """The worker is not told that a row was released."""
    give_back = Rows.give_back

    def quietly(rows: Rows, row: int, block_ids: list[int]) -> None:
        give_back(rows, row, block_ids)
        rows.released.remove(row)

    patch.setattr(Rows, "give_back", quietly)


@fault
def window_left_early(patch: MonkeyPatch) -> None:
    """Blocks leave a window one block too soon."""
    leave = KVCacheManager.leave_windows

    def early(kv: KVCacheManager, sequence: Sequence, plan: StepPlan) -> None:
        windows = kv._windows
        kv._windows = tuple((max(1, window - kv.block_size), groups) for window, groups in windows)
        leave(kv, sequence, plan)
        kv._windows = windows

    patch.setattr(KVCacheManager, "leave_windows", early)


@fault
def window_left_by_one_group(patch: MonkeyPatch) -> None:
    """Of several groups with one window, only the first gives back what fell out of it."""
    leave = KVCacheManager.leave_windows

    def half(kv: KVCacheManager, sequence: Sequence, plan: StepPlan) -> None:
        windows = kv._windows
        kv._windows = tuple((window, groups[:1]) for window, groups in windows)
        leave(kv, sequence, plan)
        kv._windows = windows

    patch.setattr(KVCacheManager, "leave_windows", half)


@fault
def forgotten_abort(patch: MonkeyPatch) -> None:
    """An abort forgets the request and leaves its sequences where they are."""

    def forget(core: EngineCore, request_id: int, index: int | None = None) -> None:
        core._scheduler.requests.pop(request_id, None)

    patch.setattr(EngineCore, "abort", forget)


@fault
def reserved_rows_leak(patch: MonkeyPatch) -> None:
    """Rows kept for beams to come are not given up when the search ends."""
    reserve = Beams.reserve

    def clinging(beams: Beams, group: Any, count: int) -> None:
        if count:
            reserve(beams, group, count)

    patch.setattr(Beams, "reserve", clinging)


# ---- steps


@fault
def lost_chunk(patch: MonkeyPatch) -> None:
    """A chunk counts as computed and is not in the plan."""
    advance = ScheduledStep.advance

    def lossy(step: ScheduledStep) -> None:
        advance(step)
        plan = step.plan
        for i, row in enumerate(plan.rows):
            if row not in plan.sample_rows and len(plan.rows) > 1:
                del plan.rows[i], plan.num_new_tokens[i], step.sequences[i], step.ends[i]
                return

    patch.setattr(ScheduledStep, "advance", lossy)


@fault
def token_sampled_twice(patch: MonkeyPatch) -> None:
    """A preempted sequence forgets the token that a plan in flight samples for it."""
    forget_blocks = Sequence.forget_blocks

    def forget(sequence: Sequence) -> None:
        forget_blocks(sequence)
        sequence.num_tokens = len(sequence.token_ids)

    patch.setattr(Sequence, "forget_blocks", forget)


@fault
def finished_row_applied(patch: MonkeyPatch) -> None:
    """The slot that a finished sequence wastes at depth 2 is taken for a token."""
    append = Scheduler._append_tokens

    def undead(scheduler: Scheduler, step: ScheduledStep, *others: Any) -> None:
        for sequence in step.sampled:
            if sequence.status is SequenceStatus.FINISHED:
                sequence.status = SequenceStatus.RUNNING
        append(scheduler, step, *others)

    patch.setattr(Scheduler, "_append_tokens", undead)


@fault
def preempted_not_resumed(patch: MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def forget(scheduler: Scheduler, gang: list[Sequence], plan: StepPlan) -> None:
        preempt(scheduler, gang, plan)
        for sequence in gang:
            if sequence.status is SequenceStatus.PREEMPTED:
                scheduler.waiting.remove(sequence)

    patch.setattr(Scheduler, "_preempt", forget)


@fault
def lost_progress(patch: MonkeyPatch) -> None:
    """A resumed sequence is set up with fewer tokens than it has."""
    set_up = Scheduler._set_up

    def short(scheduler: Scheduler, step: ScheduledStep, sequence: Sequence) -> None:
        set_up(scheduler, step, sequence)
        setup = step.plan.setups[-1]
        if len(setup.token_ids) > setup.num_prompt_tokens:
            setup.token_ids = setup.token_ids[:-1]

    patch.setattr(Scheduler, "_set_up", short)


# ---- swapping


@fault
def wrong_swap_slot(patch: MonkeyPatch) -> None:
    """Two blocks come back from each other's slot."""
    swap_in = Swapping.swap_in

    def crossed(swapping: Swapping, gang: Any, plan: StepPlan) -> None:
        swap_in(swapping, gang, plan)
        if len(plan.swap_in) > 1:
            (a, x), (b, y), *others = plan.swap_in
            plan.swap_in[:] = [(a, y), (b, x), *others]

    patch.setattr(Swapping, "swap_in", crossed)


@fault
def half_a_swap(patch: MonkeyPatch) -> None:
    """The last block does not leave."""
    swap_out = Swapping.swap_out

    def half(swapping: Swapping, sequences: list[Sequence], plan: StepPlan) -> Any:
        result = swap_out(swapping, sequences, plan)
        if plan.swap_out:
            plan.swap_out.pop()
        return result

    patch.setattr(Swapping, "swap_out", half)


@fault
def host_slot_leaked_on_abort(patch: MonkeyPatch) -> None:
    def forget(swapping: Swapping, sequence: Sequence) -> None:
        swapping._gang_of.pop(sequence).sequences.remove(sequence)
        sequence.host_tables = []

    patch.setattr(Swapping, "forget", forget)


@fault
def host_slot_given_back_early(patch: MonkeyPatch) -> None:
    """Slots are free as soon as they are filled."""
    acquire = HostSlots.acquire

    def early(slots: HostSlots, references: list[int], account: Any) -> list[int]:
        taken = acquire(slots, references, account)
        slots._free += taken
        return taken

    patch.setattr(HostSlots, "acquire", early)


@fault
def failed_get_ignored(patch: MonkeyPatch) -> None:
    """A block that did not come back is read."""
    applied = Swapping.applied

    def hopeful(swapping: Swapping, plan: StepPlan, result: StepResult) -> Any:
        return applied(swapping, plan, msgspec.structs.replace(result, failed_swap_in=[]))

    patch.setattr(Swapping, "applied", hopeful)


@fault
def computed_before_it_arrived(patch: MonkeyPatch) -> None:
    """A sequence runs before anybody knows whether its blocks came back."""
    swap_in = Scheduler._swap_in

    def hasty(scheduler: Scheduler, step: ScheduledStep, sequence: Sequence) -> bool:
        admitted = swap_in(scheduler, step, sequence)
        if admitted:
            scheduler.run(sequence)
        return admitted

    patch.setattr(Scheduler, "_swap_in", hasty)


# ---- erasure


@fault
def erase_before_copy(patch: MonkeyPatch) -> None:
    """What a plan copies from is zeroed by the same plan, which comes first."""
    end_plan = KVCacheManager.end_plan

    def eager(kv: KVCacheManager, plan: StepPlan) -> None:
        end_plan(kv, plan)
        if kv.pool.erases:
            plan.erases = sorted({*plan.erases, *(source for source, _ in plan.copies)})

    patch.setattr(KVCacheManager, "end_plan", eager)


@fault
def erasure_lost(patch: MonkeyPatch) -> None:
    """One of the freed blocks is not zeroed."""
    take_freed = BlockPool.take_freed
    patch.setattr(BlockPool, "take_freed", lambda pool: take_freed(pool)[1:])


@fault
def evicted_block_not_erased(patch: MonkeyPatch) -> None:
    """Only finished sequences' blocks count as freed, not those that make room."""
    evict = BlockPool._evict

    def unclean(pool: BlockPool) -> int:
        block_id = evict(pool)
        if pool.freed:
            pool.freed.pop()
        return block_id

    patch.setattr(BlockPool, "_evict", unclean)


@fault
def held_block_erased(patch: MonkeyPatch) -> None:
    """A block is zeroed when one of its readers leaves, not the last."""
    release = BlockPool.release

    def eager(pool: BlockPool, block_ids: list[int]) -> int:
        result = release(pool, block_ids)
        if pool.erases:
            pool.freed += [block for block in block_ids if pool.ref_count[block] > 0 and block not in pool.freed]
        return result

    patch.setattr(BlockPool, "release", eager)


# ---- drafts


@fault
def draft_slots_unbound(patch: MonkeyPatch) -> None:
    """Drafts are granted without blocks to write them to."""
    patch.setattr(Speculation, "_bind", lambda guesses, sequence, count, plan: count)


@fault
def draft_blocks_kept(patch: MonkeyPatch) -> None:
    """The blocks of rejected drafts stay with the sequence."""
    patch.setattr(KVCacheManager, "trim", lambda kv, sequence: None)


@fault
def rejected_drafts_counted_as_computed(patch: MonkeyPatch) -> None:
    """A sequence moves past all drafts that were computed, not only those that were right."""
    accept = Speculation._accept

    def hopeful(guesses: Speculation, sequence: Sequence, found: Drafted, place: int, result: StepResult) -> Any:
        before = accept(guesses, sequence, found, place, result)
        sequence.num_computed_tokens += found.num_drafts - len(found.token_ids)
        return before

    patch.setattr(Speculation, "_accept", hopeful)


@fault
def a_stop_among_drafts_is_missed(patch: MonkeyPatch) -> None:
    """An answer goes on after the token that ends it."""
    patch.setattr(speculation, "_num_kept", lambda sequence, tokens: len(tokens))


@fault
def drafts_past_the_answers_end(patch: MonkeyPatch) -> None:
    """As many drafts as allowed, however few tokens are left to write."""
    room = Speculation._room

    def endless(guesses: Speculation, sequence: Sequence) -> int:
        return guesses.max_tokens if room(guesses, sequence) > 0 else 0

    patch.setattr(Speculation, "_room", endless)


@fault
def drafts_beyond_the_budget(patch: MonkeyPatch) -> None:
    """Drafts are not counted among the tokens of a step."""
    bind = Speculation._bind

    def greedy(guesses: Speculation, sequence: Sequence, count: int, plan: StepPlan) -> int:
        return bind(guesses, sequence, min(guesses.max_tokens, guesses._room(sequence)), plan)

    patch.setattr(Speculation, "_bind", greedy)


@fault
def verified_blocks_under_wrong_keys(patch: MonkeyPatch) -> None:
    """Blocks are made known as far as drafts were computed, whatever was sampled there."""
    accept = Speculation._accept

    def swapped(guesses: Speculation, sequence: Sequence, found: Drafted, place: int, result: StepResult) -> Any:
        before = accept(guesses, sequence, found, place, result)
        if len(before.token_ids) > 1:
            sequence.answer[-1], sequence.answer[-2] = sequence.answer[-2], sequence.answer[-1]
        return before

    patch.setattr(Speculation, "_accept", swapped)


@fault
def logprobs_of_drafts_lost(patch: MonkeyPatch) -> None:
    """Only the last token of a step brings its logprobs."""
    patch.setattr(
        Verified, "begin", lambda before, delta: setattr(delta, "token_ids", before.token_ids + delta.token_ids)
    )
