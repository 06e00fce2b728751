"""The blocks of the KV pool: who holds each, and which are free."""

from __future__ import annotations

from octavo.core.accounts import Account
from octavo.core.eviction import EvictionPolicy, LeastRecentlyUsed
from octavo.errors import InvariantError

NULL_BLOCK = 0
"""Stands in block tables where a block fell out of the window. Never handed out, never read, never written."""


class BlockPool:
    """Reference-counted blocks, each charged to the tenant that took it.

    A block is in exactly one state:

    * held: `ref_count > 0`, has an owner, is not in the eviction order;
    * free: `ref_count == 0`, no owner, in the eviction order once.

    Nothing here takes time that grows with the pool, except construction (two plain lists).

    Args:
        num_blocks: Blocks in the pool, the null block included.
        eviction: Order of reuse; by default least recently used.
    """

    def __init__(self, num_blocks: int, eviction: EvictionPolicy | None = None) -> None:
        self.num_blocks = num_blocks - 1
        """Blocks that can be handed out."""
        self.ref_count = [0] * num_blocks
        self.owner: list[Account | None] = [None] * num_blocks
        self.eviction: EvictionPolicy = LeastRecentlyUsed(range(1, num_blocks)) if eviction is None else eviction

    @property
    def num_free(self) -> int:
        return len(self.eviction)

    @property
    def num_held(self) -> int:
        return self.num_blocks - len(self.eviction)

    def acquire(self, count: int, account: Account) -> list[int]:
        """Take `count` free blocks, charged to `account`: all of them or none.

        Raises:
            InvariantError: If fewer are free; callers ask `num_free` first.
        """
        if count > len(self.eviction):
            raise InvariantError([f"{count} blocks were taken when {len(self.eviction)} were free"])
        block_ids = [self.eviction.pop() for _ in range(count)]
        for block_id in block_ids:
            self.ref_count[block_id] = 1
            self.owner[block_id] = account
        account.num_held_blocks += count
        return block_ids

    def release(self, block_ids: list[int]) -> None:
        """Drop one reference from each block.

        Walks backwards, so that the tail of a sequence is reused before its prefix: a prefix is useful without its
        tail, never the other way round.

        Raises:
            InvariantError: If nobody holds one of them.
        """
        for block_id in reversed(block_ids):
            account = self.owner[block_id]
            if account is None:
                raise InvariantError([f"block {block_id} was released and nobody held it"])
            self.ref_count[block_id] -= 1
            if self.ref_count[block_id] == 0:
                self.owner[block_id] = None
                account.num_held_blocks -= 1
                self.eviction.put(block_id)
