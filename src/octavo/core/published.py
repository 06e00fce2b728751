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

    def keep(self, name: str, sequence: Sequence) -> bool:
        """A sequence has computed and committed a text: hold its whole blocks, those that left a window excepted.

        Returns:
            False, and nothing is held, if not all of them can be found, or one that nobody holds is promised.
        """
        if self._index is None or sequence.lineage is None:
            return False
        if name in self._blocks:
            return True
        contents = sequence.lineage.contents
        blocks = [c.blocks[group] for group, first in enumerate(sequence.first_columns) for c in contents[first:]]
        num_idle = sum(self._pool.ref_count[block_id] == 0 for block_id in blocks)
        is_whole = len(contents) == sequence.source.num_prompt_tokens // self._kv.block_size
        if not is_whole or NULL_BLOCK in blocks or num_idle > self._kv.num_available_blocks:
            return False
        for block_id in blocks:
            self._pool.share(block_id)
        self._blocks[name] = blocks
        self._num_tokens[name] = sum(len(content.tokens) for content in contents)
        self._index.num_published += 1
        return True

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
