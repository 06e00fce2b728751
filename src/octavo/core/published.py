"""Prefixes that are shared across tenants on purpose: computed once, held until they are withdrawn."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.core.block_pool import NULL_BLOCK
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Sequence
from octavo.messages import PublishedPrefix


class Published:
    """By name: the blocks of each published prefix, held by reference.

    Only whole blocks are published. They are charged to the public account and keyed under the public scope, which
    every request looks under first.
    """

    def __init__(self, kv: KVCacheManager) -> None:
        self._kv = kv
        self._pool = kv.pool
        self._index = kv.index
        self._blocks: dict[str, list[int]] = {}
        self._num_tokens: dict[str, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._blocks

    def __iter__(self) -> Iterator[list[int]]:
        """The blocks of each prefix."""
        return iter(self._blocks.values())

    @property
    def num_blocks(self) -> int:
        """Distinct blocks held."""
        return len({block_id for blocks in self._blocks.values() for block_id in blocks})

    def keep(self, name: str, sequence: Sequence) -> None:
        """A sequence has computed and committed a text: hold its whole blocks, those that left a window excepted."""
        if self._index is None or sequence.lineage is None or name in self._blocks:
            return
        contents = sequence.lineage.contents
        blocks = []
        for group, first in enumerate(sequence.first_columns):
            for content in contents[first:]:
                block_id = content.blocks[group]
                # An idle block may be promised to somebody.
                if block_id != NULL_BLOCK and (self._pool.ref_count[block_id] or self._kv.num_available_blocks > 0):
                    self._pool.share(block_id)
                    blocks.append(block_id)
        self._blocks[name] = blocks
        self._num_tokens[name] = sum(len(content.tokens) for content in contents)
        self._index.num_published += 1

    def withdraw(self, name: str) -> bool:
        """Let go of a prefix. Its blocks stay while somebody uses them, but nobody finds them any more. False if there
        is none of that name."""
        blocks = self._blocks.pop(name, None)
        if blocks is None or self._index is None:
            return False
        del self._num_tokens[name]
        self._index.num_published -= 1
        self._pool.release(blocks)
        still_published = {block_id for others in self._blocks.values() for block_id in others}
        for content in [self._pool.content[block_id] for block_id in blocks if block_id not in still_published]:
            # All of it, with what is cached of it because it left a window.
            for block_id in [] if content is None else list(content.blocks):
                if block_id != NULL_BLOCK and block_id not in still_published:
                    self._pool.drop_content(block_id)
        return True

    def withdraw_lost(self) -> None:
        """Let go of every prefix of which a block cannot be found any more."""
        for name, blocks in list(self._blocks.items()):
            if any(self._pool.content[block_id] is None for block_id in blocks):
                self.withdraw(name)

    def report(self) -> list[PublishedPrefix]:
        return [
            PublishedPrefix(name=name, num_tokens=self._num_tokens[name], num_blocks=len(blocks))
            for name, blocks in self._blocks.items()
        ]
