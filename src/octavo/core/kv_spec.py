"""How a model's layers keep KV: groups of layers that keep it alike."""

from __future__ import annotations

import msgspec


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table.

    A model with full attention everywhere has one group; local layers with a sliding window form another.
    """

    layers: tuple[int, ...]
    window: int | None = None
    """Tokens a query may look back, itself included; None for all."""


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The groups and the size of a page.

    Every group uses pages of one size, so one pool serves all groups without fragmentation: a block id names a page
    that may hold `block_size` tokens of any one group. A group with fewer layers than the largest pads its page.
    """

    groups: tuple[KVGroup, ...]
    block_size: int
    """Tokens per block, a power of two from 1 to 256."""
    bytes_per_block: int
    """Bytes of one page, all layers of the largest group."""

    @property
    def num_groups(self) -> int:
        return len(self.groups)

    def blocks_per_tokens(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens need in one group without a window."""
        return -(-num_tokens // self.block_size)

    def peak_blocks(self, num_tokens: int, max_unread: int) -> int:
        """Most blocks a sequence holds at once while its first `num_tokens` tokens are computed, over all groups.

        Args:
            max_unread: Most tokens of one sequence in all plans in flight: what a window must span besides itself.
        """
        whole = self.blocks_per_tokens(num_tokens)
        total = 0
        for group in self.groups:
            kept = whole
            if group.window is not None:
                # That many adjacent tokens touch one block more than they fill when they start inside a block.
                span = group.window - 1 + max_unread
                kept = min(whole, (span + self.block_size - 2) // self.block_size + 1)
            total += kept
        return total
