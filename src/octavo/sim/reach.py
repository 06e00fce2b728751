"""How far layers look back: what attention reads and computes where windows differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from octavo.core.kv_spec import KVGroup


class Reach(msgspec.Struct, frozen=True, array_like=True):
    """The windows of a model's layers. All it counts are means over the layers: what each sees where they are alike."""

    shares: tuple[tuple[int | None, float], ...] = ((None, 1.0),)
    """Each window in tokens, the query's own included, or None for full attention; and the share of layers with it."""

    @classmethod
    def of(cls, groups: Sequence[KVGroup]) -> Reach:
        """Of layers in groups."""
        counts: Counter[int | None] = Counter()
        for group in groups:
            counts[group.window] += len(group.layers)
        return cls(tuple((window, count / counts.total()) for window, count in counts.items()))

    def attended(self, contexts: Sequence[float]) -> float:
        """Tokens that the last tokens of contexts attend to.

        Args:
            contexts: Lengths in tokens, the last included.
        """
        return sum(
            share * sum(contexts if window is None else (min(context, window) for context in contexts))
            for window, share in self.shares
        )

    def read(self, num_before: int) -> float:
        """Tokens before a chunk that some token of it attends to: its first one looks back furthest."""
        return sum(
            share * (num_before if window is None else min(num_before, window - 1)) for window, share in self.shares
        )

    def pairs(self, num_tokens: int, num_before: int) -> float:
        """Pairs of a chunk's tokens and those that they attend to, themselves included.

        Args:
            num_tokens: Of the chunk.
            num_before: Tokens before it.
        """
        return sum(share * _pairs(num_tokens, num_before, window) for window, share in self.shares)


EVERYTHING = Reach()
"""Full attention in every layer."""


def _pairs(num_tokens: int, num_before: int, window: int | None) -> float:
    if window is None:
        return num_tokens * (num_before + (num_tokens + 1) / 2)
    whole = min(num_tokens, max(0, window - num_before))  # tokens that still see everything before them
    return whole * (num_before + (whole + 1) / 2) + (num_tokens - whole) * window
