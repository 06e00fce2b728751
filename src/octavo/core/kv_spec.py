"""How a model's layers keep KV: groups of layers that keep it alike."""

from __future__ import annotations

from bisect import bisect_right

import msgspec


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table. A model whose layers are all alike has one group; see `core.kv_groups`."""

    layers: tuple[int, ...]
    window: int | None = None
    """Tokens a query may look back, itself included; None for all."""


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The groups and the size of a page.

    Every group uses pages of one size, so one pool serves all groups without fragmentation: a block id names a page
    that may hold `block_size` tokens of any one group. A group with fewer layers than the largest pads its page.
    Several groups may have the same window.
    """

    groups: tuple[KVGroup, ...]
    block_size: int
    """Tokens per block, a power of two from 1 to 256."""
    bytes_per_block: int
    """Bytes of one page, all layers of the largest group."""

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    @property
    def layers_per_page(self) -> int:
        """Layers in the largest group: a page of any group has room for this many."""
        return max(len(group.layers) for group in self.groups)

    def blocks_per_tokens(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need in one group without a window."""
        return -(-num_tokens // self.block_size)

    @property
    def windows(self) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """Each window, and the groups that have it. Groups without one are left out."""
        found: dict[int, list[int]] = {}
        for index, group in enumerate(self.groups):
            if group.window is not None:
                found.setdefault(group.window, []).append(index)
        return tuple((window, tuple(groups)) for window, groups in found.items())

    def peak_blocks(self, num_tokens: int, max_unread: int) -> int:
        """Most blocks a sequence holds at once while its first `num_tokens` tokens are computed, over all groups.

        Args:
            max_unread: As `kept_blocks`.
        """
        return sum(kept_blocks(group.window, num_tokens, max_unread, self.block_size) for group in self.groups)

    def longest(self, num_blocks: int, max_unread: int, limit: int) -> int:
        """Tokens of the longest sequence that so many blocks hold, `limit` at most.

        Args:
            max_unread: As `kept_blocks`.
        """
        return bisect_right(range(limit + 1), num_blocks, key=lambda n: self.peak_blocks(n, max_unread)) - 1


def kept_blocks(window: int | None, num_tokens: int, max_unread: int, block_size: int) -> int:
    """Most blocks that a sequence holds at once in a group while its first `num_tokens` tokens are computed.

    Args:
        max_unread: Most tokens of one sequence in all plans in flight: what a window must span besides itself.
    """
    whole = -(-num_tokens // block_size)
    if window is None:
        return whole
    # That many adjacent tokens touch one block more than they fill when they start inside a block.
    span = window - 1 + max_unread
    return min(whole, (span + block_size - 2) // block_size + 1)
