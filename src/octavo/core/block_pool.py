"""The blocks of the KV pool: which state each is in, who pays for it, and which is used next."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from octavo.core.accounts import Account
from octavo.core.eviction import EvictionPolicy, LeastRecentlyUsed
from octavo.core.prefix_index import Content
from octavo.errors import InvariantError

_REFILL = 64
"""Untouched blocks put on the free list at once."""

NULL_BLOCK = 0
"""Stands in block tables where a block fell out of the window. Never handed out, never read, never written."""

Forget = Callable[[Content, int], None]
"""Told that a block no longer holds a content."""


class BlockPool:
    """Reference-counted blocks, each charged to the tenant that made it.

    A block is in exactly one state:

    * held: `ref_count > 0`; has an owner, is in no order;
    * cached: `ref_count == 0`, `content` is set; still has its owner, is in the eviction order once;
    * free: `ref_count == 0`, no content, no owner; on the free list once, or never used so far.

    Nothing here takes time that grows with the pool, except construction (a few plain lists).

    Args:
        num_blocks: Blocks in the pool, the null block included.
        eviction: Order in which cached blocks make room; by default least recently used.
        erases: Whether freed blocks must be zeroed: they are then listed in `freed` until a plan takes them.
    """

    def __init__(self, num_blocks: int, eviction: EvictionPolicy | None = None, *, erases: bool = False) -> None:
        self.num_blocks = num_blocks - 1
        """Blocks that can be handed out."""
        self.ref_count = [0] * num_blocks
        self.owner: list[Account | None] = [None] * num_blocks
        self.content: list[Content | None] = [None] * num_blocks
        """What a block is found by: only blocks whose tokens are all computed have one."""
        self.since_s = [0.0] * num_blocks
        """When the block took the state it is in."""
        self.cached: EvictionPolicy = LeastRecentlyUsed() if eviction is None else eviction
        self.forget: Forget = _nobody_to_tell
        self.erases = erases
        self.freed: list[int] = []
        """Freed and not zeroed yet; kept only where freed blocks are erased."""
        self.now_s = 0.0
        self.num_evictions = 0
        self._free: list[int] = []
        self._untouched = 1
        """The first of the blocks that were never used. They come after the freed ones, so the resident size of a
        large pool follows what is really used."""

    @property
    def num_free(self) -> int:
        return len(self._free) + len(self.owner) - self._untouched

    @property
    def num_cached(self) -> int:
        return len(self.cached)

    @property
    def num_available(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free) + len(self.owner) - self._untouched + len(self.cached)

    @property
    def num_held(self) -> int:
        return self.num_blocks - self.num_available

    def free_blocks(self) -> Iterable[int]:
        """Every free block; for audits."""
        yield from self._free
        yield from range(self._untouched, len(self.owner))

    def acquire(self, count: int, account: Account) -> list[int]:
        """Take `count` blocks that nobody holds, charged to `account`: all of them or none.

        Freed blocks go first, then untouched ones, then cached ones in the order of eviction.

        Raises:
            InvariantError: If fewer are available; callers ask `num_available` first.
        """
        if count > self.num_available:
            raise InvariantError([f"{count} blocks were taken when {self.num_available} were available"])
        free = self._free
        if count > len(free):
            self._refill(count)
        block_ids = free[len(free) - count :]
        del free[len(free) - count :]
        ref_count, owner, since_s, now_s = self.ref_count, self.owner, self.since_s, self.now_s
        for block_id in block_ids:
            ref_count[block_id] = 1
            owner[block_id] = account
            since_s[block_id] = now_s
        account.num_held_blocks += count
        return block_ids

    def share(self, block_id: int) -> None:
        """Add a reference; a cached block is held again, by the one who pays for it."""
        if self.ref_count[block_id] == 0:
            account = self.owner[block_id]
            if account is None:
                raise InvariantError([f"block {block_id} was shared and is free"])
            self.cached.remove(block_id)
            account.num_cached_blocks -= 1
            account.num_held_blocks += 1
            self.since_s[block_id] = self.now_s
        self.ref_count[block_id] += 1

    def release(self, block_ids: list[int]) -> int:
        """Drop one reference from each block; returns how many nobody holds any more.

        Walks backwards, so that the tail of a sequence makes room before its prefix: a prefix is useful without its
        tail, never the other way round.

        Raises:
            InvariantError: If nobody holds one of them.
        """
        ref_count, owner, contents = self.ref_count, self.owner, self.content
        num_let_go = 0
        for block_id in reversed(block_ids):
            count = ref_count[block_id] - 1
            if count > 0:
                ref_count[block_id] = count
                continue
            account = owner[block_id]
            if count < 0 or account is None:
                raise InvariantError([f"block {block_id} was released and nobody held it"])
            ref_count[block_id] = 0
            self.since_s[block_id] = self.now_s
            num_let_go += 1
            account.num_held_blocks -= 1
            content = contents[block_id]
            if content is None:
                self._put_free(block_id)
            else:
                account.num_cached_blocks += 1
                self.cached.put(block_id, content)
        return num_let_go

    def drop_content(self, block_id: int) -> None:
        """The block can no longer be found. A cached one is free from here on."""
        content = self.content[block_id]
        if content is None:
            return
        self.content[block_id] = None
        self.forget(content, block_id)
        account = self.owner[block_id]
        if self.ref_count[block_id] == 0 and account is not None:
            self.cached.remove(block_id)
            account.num_cached_blocks -= 1
            self.since_s[block_id] = self.now_s
            self._put_free(block_id)

    def rebuild(self, names: Counter[int], payer: Callable[[int], Account]) -> None:
        """Make counts, owners and orders follow from who names which block and what is known of it; for repairs.

        Args:
            names: Block to the number of its names.
            payer: Gives the account to charge for a block that has none.
        """
        was_free = set(self.free_blocks())
        in_order = list(self.cached)
        for block_id in in_order:
            self.cached.remove(block_id)
        blocks = range(1, len(self.owner))
        self.ref_count = [0, *(names[block_id] for block_id in blocks)]
        self.content[NULL_BLOCK] = self.owner[NULL_BLOCK] = None
        used = set(filter(names.__getitem__, blocks))
        for block_id in dict.fromkeys([*in_order, *blocks]):
            content = self.content[block_id]
            if content is not None and block_id not in used:
                self.cached.put(block_id, content)
        used |= set(self.cached)
        for block_id in used:
            self.owner[block_id] = self.owner[block_id] or payer(block_id)
        self.freed = [block_id for block_id in self.freed if block_id not in used]
        for block_id in self._free_all_but(used):
            self.owner[block_id] = None
            if self.erases and block_id not in was_free:
                self.freed.append(block_id)

    def _free_all_but(self, used: set[int]) -> list[int]:
        """Make the free list anew, and return what is in it."""
        self._untouched = max(self._untouched, max(used, default=0) + 1)
        self._free = [block_id for block_id in range(self._untouched - 1, 0, -1) if block_id not in used]
        return self._free

    def damage(self) -> Iterator[str]:
        """What is broken in the order of free blocks besides what `core.audit` asks of any pool."""
        return iter(())

    def take_freed(self) -> list[int]:
        """The blocks to zero, once: all that were freed since the last call, whether in use again or not."""
        freed, self.freed = self.freed, []
        return freed

    def _put_free(self, block_id: int) -> None:
        self.owner[block_id] = None
        self._free.append(block_id)
        if self.erases:
            self.freed.append(block_id)

    def _refill(self, count: int) -> None:
        """Bring the free list to `count` blocks or more: untouched ones, then evicted ones."""
        missing = count - len(self._free)
        last = min(self._untouched + max(missing, _REFILL), len(self.owner))
        fresh = range(self._untouched, last)
        self._untouched = last
        # The list is taken from its end: what must come last goes in front.
        evicted = [self._evict() for _ in range(missing - len(fresh))]
        self._free[:0] = [*reversed(evicted), *reversed(fresh)]

    def _evict(self) -> int:
        """Take the cached block that makes room first."""
        block_id = self.cached.pop()
        content, account = self.content[block_id], self.owner[block_id]
        if content is None or account is None:
            raise InvariantError([f"block {block_id} was in the eviction order without content or owner"])
        self.content[block_id] = None
        self.forget(content, block_id)
        account.num_cached_blocks -= 1
        account.num_evicted_blocks += 1
        self.owner[block_id] = None
        self.num_evictions += 1
        if self.erases:
            self.freed.append(block_id)
        return block_id


def _nobody_to_tell(content: Content, block_id: int) -> None:
    """No index, so no content either."""
    raise InvariantError([f"block {block_id} had a content and there is no index"])
