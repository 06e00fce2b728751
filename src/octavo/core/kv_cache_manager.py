"""Which blocks a sequence holds: hit, reserve and bind, copy on write, fork, commit, return."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from octavo.core.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv_spec import KVSpec, kept_blocks
from octavo.core.prefix_index import NO_MATCH, Content, Match, PrefixIndex
from octavo.core.request import Sequence
from octavo.core.step import StepPlan
from octavo.messages import PUBLIC_TENANT

if TYPE_CHECKING:
    from octavo.core.beam_group import BeamGroup


class KVCacheManager:
    """Pages: binds blocks to sequences, all-or-nothing, and says in the plan what a worker must do for it.

    Admission *promises* the blocks that a sequence still needs until its prefill is done, by counter; they are bound
    when a chunk needs them. Promised blocks are available in the pool but not to others, so a prefill never fails
    midway and admission cannot thrash.

    In a group with a window, a chunk that computes tokens `start .. end - 1` reads from `start - window + 1` on. The
    columns below that are returned when the next plan is made, before anybody takes a block, so such a group keeps at
    most one block more than the window and the chunk need. What is returned can be hit until it is evicted.

    Args:
        spec: The model's groups and block size.
        pool: The blocks.
        index: Finds computed blocks by content; None where nothing is to be reused.
        max_chunk: Most tokens of one sequence in one plan.
        depth: Plans in flight at most. The plan before the one being made may still read its own window, so blocks
            leave a window `depth - 1` plans late.
    """

    shares = True
    """Whether sequences may read the same blocks, so that one computes the prompt for all answers of its request."""

    def __init__(
        self, spec: KVSpec, pool: BlockPool, index: PrefixIndex | None = None, *, max_chunk: int, depth: int
    ) -> None:
        self.spec = spec
        self.pool = pool
        self.index = index
        if index is not None:
            pool.forget = index.forget
        self.block_size = spec.block_size
        self.num_groups = spec.num_groups
        self.num_promised_blocks = 0
        self._max_unread = depth * max_chunk
        self._overlaps = depth > 1
        self._windows = spec.windows
        self._pinned: list[int] = []
        """Sources of the plan's copies: they must not make room for anything in the same plan."""

    @property
    def num_available_blocks(self) -> int:
        """Blocks that are neither held nor promised."""
        return self.pool.num_available - self.num_promised_blocks

    def peak_blocks(self, num_tokens: int) -> int:
        """Most blocks a sequence holds at once while its first `num_tokens` tokens are computed, over all groups."""
        return self.spec.peak_blocks(num_tokens, self._max_unread)

    def needed_blocks(self, num_prompt: int, max_tokens: int, width: int | None = None) -> int:
        """Most blocks that a sequence, or a beam search of that width, needs at once to get on, alone in the pool and
        with nothing to hit."""
        spec = self.spec
        if width is None:
            # The last token of an answer is never computed, so it needs no slot.
            return self.peak_blocks(num_prompt + max(1, max_tokens) - 1)
        # At worst beams share nothing but the prompt's whole blocks, and copy their last block while others hold it.
        shared = num_prompt // spec.block_size * spec.num_groups
        own = spec.blocks_per_tokens(num_prompt % spec.block_size + max_tokens) * spec.num_groups
        return shared + width * (own + spec.num_groups)

    def usable_blocks(self, num_prompt: int, max_tokens: int) -> int:
        """Blocks of an empty pool that such sequences can use."""
        return self.pool.num_blocks

    def num_columns(self, sequence: Sequence) -> int:
        """Columns that the tables of a resident sequence have between steps."""
        return self.spec.blocks_per_tokens(sequence.num_computed_tokens)

    def most_columns(self, window: int | None, num_columns: int) -> int:
        """Of so many columns, those that a sequence may hold at once in a group with such a window."""
        return kept_blocks(window, num_columns * self.block_size, self._max_unread, self.block_size)

    def next_start(self, sequence: Sequence) -> int:
        """The lowest position that a plan in flight or to come computes; what it reads must be there."""
        return sequence.last_start if self._overlaps else sequence.num_computed_tokens

    def layout_damage(self, sequence: Sequence) -> Iterator[str]:
        """What is broken about where a sequence's blocks lie: paged blocks may lie anywhere."""
        return iter(())

    # ---- admission

    def identify(self, sequence: Sequence) -> None:
        """Settle by what a new sequence's blocks are found."""
        source = sequence.source
        if self.index is not None:
            sequence.lineage = self.index.open(source.tenant, source.adapter, source.cache_salt)

    def match(self, sequence: Sequence) -> Match:
        """What of the sequence's tokens is there already; never all of them, since the last one gives the logits."""
        if self.index is None or sequence.lineage is None:
            return NO_MATCH
        if sequence.sampling.prompt_logprobs is not None:
            return NO_MATCH  # needs the logits of its prompt, and blocks keep none
        return self.index.match(sequence.lineage, sequence.token_ids, sequence.num_tokens - 1)

    def admit(self, sequence: Sequence, match: Match, budget: int, plan: StepPlan, *, spare: int = 0) -> int:
        """Give a sequence what was matched, promise the rest of its prefill and bind that of this step.

        Args:
            spare: Blocks that must be available still when that is done.

        Returns:
            How many new tokens this step computes, at most `budget`; 0, and nothing changed, if the blocks are not
            there.
        """
        for offer in self._offers(match):
            reserve = self._prefill_blocks(sequence.num_tokens, offer)
            if reserve + self._num_revived(offer) + spare <= self.num_available_blocks:
                break
        else:
            return 0
        self._take(sequence, offer, plan)
        self._promise(sequence, reserve - (self.spec.num_groups if offer.tail is not None else 0))
        num_new = min(sequence.num_tokens - sequence.num_computed_tokens, budget)
        self.grow(sequence, sequence.num_computed_tokens + num_new, plan)
        return num_new

    def _offers(self, match: Match) -> list[Match]:
        """A match and less of it. In a small pool the source of a copy may be the very block that is missing."""
        if match.tail is None or self.index is None:
            return [match, NO_MATCH]
        return [match, self.index.without_tail(match), NO_MATCH]

    def _prefill_blocks(self, num_tokens: int, match: Match) -> int:
        """New blocks that a prefill binds at most at once, over all groups, after a match."""
        return self.peak_blocks(num_tokens - len(match.contents) * self.block_size)

    def _num_revived(self, match: Match) -> int:
        """Blocks of a match that nobody holds: to take them costs as much as to bind new ones."""
        ref_count = self.pool.ref_count
        found = [block_id for _, block_id in self._matched_blocks(match)]
        if match.tail is not None:
            found += match.tail.blocks
        return sum(ref_count[block_id] == 0 for block_id in found)

    def _matched_blocks(self, match: Match) -> list[tuple[int, int]]:
        """(group, block) of the whole columns that the next token of each group can see."""
        lowest = self._lowest_columns(match.num_tokens(self.block_size))
        return [
            (group, content.blocks[group])
            for group in range(self.spec.num_groups)
            for content in match.contents[lowest[group] :]
        ]

    def _lowest_columns(self, num_tokens: int) -> list[int]:
        """Per group, the first column that a token at position `num_tokens` reads."""
        lowest = [0] * self.spec.num_groups
        for window, groups in self._windows:
            for group in groups:
                lowest[group] = max(0, num_tokens - window + 1) // self.block_size
        return lowest

    def _take(self, sequence: Sequence, match: Match, plan: StepPlan) -> None:
        pool = self.pool
        num_tokens = match.num_tokens(self.block_size)
        lowest = self._lowest_columns(num_tokens)
        for content in match.contents:
            content.num_hits += 1
        for group in range(self.spec.num_groups):
            first = min(lowest[group], len(match.contents))
            table = [NULL_BLOCK] * first + [content.blocks[group] for content in match.contents[first:]]
            for block_id in table[first:]:
                pool.share(block_id)
            sequence.block_tables[group] = table
            sequence.first_columns[group] = first
        if match.tail is not None:
            match.tail.num_hits += 1
            for source in match.tail.blocks:
                pool.share(source)
            self._pinned += match.tail.blocks
            for group, source in enumerate(match.tail.blocks):
                (copy,) = pool.acquire(1, sequence.account)
                plan.copies.append((source, copy))
                sequence.block_tables[group].append(copy)
            sequence.account.num_copy_faults += self.spec.num_groups
        for group, table in enumerate(sequence.block_tables):
            plan.table_growth += [(group, sequence.row, column, block_id) for column, block_id in enumerate(table)]
        sequence.num_slots = len(sequence.block_tables[0]) * self.block_size
        sequence.num_computed_tokens = sequence.last_start = num_tokens
        sequence.next_commit = (len(match.contents) + 1) * self.block_size
        if self.index is not None and sequence.lineage is not None:
            self.index.begin(sequence.lineage, match.contents)

    # ---- growth

    def shortage(self, sequence: Sequence, end: int) -> int:
        """Blocks missing before `grow` can succeed; not above 0 if it can."""
        needed = self._num_new_columns(sequence, end) * self.num_groups + len(self._shared_tails(sequence))
        return needed - sequence.num_promised_blocks - self.num_available_blocks

    def grow(self, sequence: Sequence, end: int, plan: StepPlan) -> bool:
        """Bind blocks until the first `end` tokens have slots that nobody else reads.

        Copies a partly filled last block that others share. False, nothing changed, if the blocks are not there.
        """
        if self.shortage(sequence, end) > 0:
            return False
        num_copies = self._copy_shared_tails(sequence, plan)
        num_new = self._num_new_columns(sequence, end)
        row, growth, account = sequence.row, plan.table_growth, sequence.account
        for group, table in enumerate(sequence.block_tables):
            column = len(table)
            block_ids = self.pool.acquire(num_new, account)
            table += block_ids
            for block_id in block_ids:
                growth.append((group, row, column, block_id))
                column += 1
        self._count_faults(sequence, num_new)
        sequence.num_slots = len(sequence.block_tables[0]) * self.block_size
        if sequence.num_promised_blocks:
            self._redeem(sequence, num_new * self.num_groups + num_copies)
        return True

    def trim(self, sequence: Sequence) -> None:
        """Return the columns past a sequence's computed tokens: they were bound for drafts."""
        columns = self.spec.blocks_per_tokens(sequence.num_computed_tokens)
        for table in sequence.block_tables:
            self.pool.release(table[columns:])
            del table[columns:]
        sequence.num_slots = columns * self.block_size

    def _redeem(self, sequence: Sequence, num_taken: int) -> None:
        """Blocks were bound on a promise. What is promised still is no more than the prefill can still use."""
        left = self.spec.blocks_per_tokens(sequence.num_tokens) - len(sequence.block_tables[0])
        most = max(0, left) * self.spec.num_groups
        self._promise(sequence, min(most, max(0, sequence.num_promised_blocks - num_taken)))

    def _num_new_columns(self, sequence: Sequence, end: int) -> int:
        num_new = -(-end // self.block_size) - len(sequence.block_tables[0])
        return num_new if num_new > 0 else 0

    def _shared_tails(self, sequence: Sequence) -> list[int]:
        """Groups whose partly filled last block has other readers. Only asked where `num_slots` says that it may."""
        if sequence.num_slots >= len(sequence.block_tables[0]) * self.block_size:
            return []
        ref_count = self.pool.ref_count
        return [group for group, table in enumerate(sequence.block_tables) if ref_count[table[-1]] > 1]

    def _copy_shared_tails(self, sequence: Sequence, plan: StepPlan) -> int:
        """Copy on write: the next token goes into a block that others read too."""
        groups = self._shared_tails(sequence)
        if not groups:
            return 0
        for group in groups:
            table = sequence.block_tables[group]
            source = table[-1]
            (copy,) = self.pool.acquire(1, sequence.account)
            self.pool.release([source])
            table[-1] = copy
            plan.copies.append((source, copy))
            plan.table_growth.append((group, sequence.row, len(table) - 1, copy))
        sequence.account.num_copy_faults += len(groups)
        return len(groups)

    @property
    def has_windows(self) -> bool:
        return bool(self._windows)

    def leave_windows(self, sequence: Sequence, plan: StepPlan) -> None:
        """Return the blocks that neither a plan in flight nor a later one reads. Those that nobody else holds are added
        to what is promised to the rest of its prefill."""
        start = self.next_start(sequence)
        num_let_go = 0
        for window, groups in self._windows:
            end = (start - window + 1) // self.block_size
            if end <= sequence.first_columns[groups[0]]:
                continue
            for group in groups:
                table, first = sequence.block_tables[group], sequence.first_columns[group]
                num_let_go += self.pool.release(table[first:end])
                for column in range(first, end):
                    table[column] = NULL_BLOCK
                    plan.table_growth.append((group, sequence.row, column, NULL_BLOCK))
                sequence.first_columns[group] = end
        if num_let_go:
            self._redeem(sequence, -num_let_go)

    def _promise(self, sequence: Sequence, num_blocks: int) -> None:
        change = num_blocks - sequence.num_promised_blocks
        sequence.num_promised_blocks = num_blocks
        sequence.account.num_promised_blocks += change
        self.num_promised_blocks += change

    def _count_faults(self, sequence: Sequence, num_new: int) -> None:
        lost = sequence.num_lost_tokens - sequence.num_slots
        if lost > 0:
            num_recomputed = min(num_new, self.spec.blocks_per_tokens(lost))
            sequence.account.num_recompute_faults += num_recomputed * self.num_groups
            num_new -= num_recomputed
        sequence.account.num_allocation_faults += num_new * self.num_groups

    # ---- sharing

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let a new sequence read everything its parent has computed. Whoever writes next into a partly filled last
        block copies it, but for the last one."""
        child.block_tables = [table.copy() for table in parent.block_tables]
        child.first_columns = parent.first_columns.copy()
        for block_id in child.block_ids():
            self.pool.share(block_id)
        child.num_computed_tokens = child.last_start = parent.num_computed_tokens
        child.next_commit = parent.next_commit
        child.lineage = None if parent.lineage is None else parent.lineage.fork()
        parent.num_slots = child.num_slots = parent.num_computed_tokens

    def commit(self, sequence: Sequence, num_computed: int) -> list[bytes]:
        """Make the whole columns among the first `num_computed` tokens known, now that they are computed.

        Returns their keys.
        """
        index, lineage = self.index, sequence.lineage
        if index is None or lineage is None:
            return []
        keys = []
        while sequence.next_commit <= num_computed:
            column = len(lineage.contents)
            end = sequence.next_commit
            content = index.commit(lineage, sequence.tokens_between(end - self.block_size, end))
            self._attach(content, [table[column] for table in sequence.block_tables])
            keys.append(content.key)
            sequence.next_commit += self.block_size
        return keys

    def seal(self, sequence: Sequence) -> None:
        """Make everything computed known, the partly filled last block too: the sequence writes no more.

        A block that somebody else may still write to is left out.
        """
        index, lineage = self.index, sequence.lineage
        if index is None or lineage is None or not sequence.block_tables[0]:
            return
        self.commit(sequence, sequence.num_computed_tokens)
        if sequence.num_computed_tokens % self.block_size == 0:
            return
        tails = [table[-1] for table in sequence.block_tables]
        if any(self.pool.ref_count[block_id] != 1 for block_id in tails):
            return
        num_computed = sequence.num_computed_tokens
        start = num_computed // self.block_size * self.block_size
        self._attach(index.seal(lineage, sequence.tokens_between(start, num_computed)), tails)

    def _attach(self, content: Content, block_ids: list[int]) -> None:
        """Let a content be found in these blocks, where it has none yet."""
        index = self.index
        if index is None or not index.is_registered(content):
            return
        for group, block_id in enumerate(block_ids):
            if block_id != NULL_BLOCK and content.blocks[group] == NULL_BLOCK and self.pool.content[block_id] is None:
                content.blocks[group] = block_id
                self.pool.content[block_id] = content
        if not any(content.blocks):  # it left every window before it was committed: a swap came between
            index.remove(content)

    def reserve(self, group: BeamGroup, count: int) -> None:
        """Keep what `count` beams to come of a search need. Beams that share blocks need nothing beforehand."""

    def spare_blocks(self) -> Iterator[list[int]]:
        """Blocks held for beams to come, which no table names."""
        return iter(())

    # ---- return

    def detach(self, sequence: Sequence) -> list[int]:
        """Take every block and promise from a sequence. The blocks stay held until `pool.release`."""
        self._promise(sequence, 0)
        block_ids = sequence.block_ids()
        sequence.block_tables = [[] for _ in sequence.block_tables]
        sequence.first_columns = [0] * len(sequence.first_columns)
        sequence.num_slots = 0
        if sequence.lineage is not None:
            sequence.lineage.forget_contents()
        return block_ids

    def adopt(self, sequence: Sequence) -> None:
        """A sequence came back with blocks of its own: let its contents be found in them."""
        if sequence.lineage is not None and self.index is not None:
            for column, content in enumerate(sequence.lineage.contents):
                self._attach(content, [table[column] for table in sequence.block_tables])

    def end_plan(self, plan: StepPlan) -> None:
        """The plan is complete: nothing pins its sources any more, and it zeroes what was freed."""
        if self._pinned:
            self.pool.release(self._pinned)
            self._pinned = []
        if self.pool.freed:
            plan.erases = self.pool.take_freed()

    @property
    def has_work(self) -> bool:
        """Whether a plan must be made even if nobody runs."""
        return bool(self.pool.freed)

    def reset(self, tenant: str | None) -> int:
        """Let nothing of a tenant's (of anyone's but published) be found any more; returns the blocks that became
        free."""
        if self.index is None:
            return 0
        before = self.pool.num_cached
        for content in list(self.index):
            for block_id in [block_id for block_id in content.blocks if block_id != NULL_BLOCK]:
                owner = self.pool.owner[block_id]
                is_published = owner is not None and owner.tenant == PUBLIC_TENANT and self.pool.ref_count[block_id] > 0
                if owner is not None and (tenant is None or owner.tenant == tenant) and not is_published:
                    self.pool.drop_content(block_id)
        return before - self.pool.num_cached
