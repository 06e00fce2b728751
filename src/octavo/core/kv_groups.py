"""Which layers share a block table.

Layers with different windows keep different blocks, so they cannot share a table. A page has room for the layers of the
largest group, so groups of unequal size waste a part of every page of the smaller ones: with five local layers to a
global one and a group for each kind, the pages of global KV, which are most, would be four fifths empty. Therefore the
layers of each window are cut into groups of one common number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from octavo.core.kv_spec import KVGroup, kept_blocks

_SLACK = 1.05
"""KV bytes that fewer groups may cost, over the least possible. Each group is one more table in which every sequence's
growth is planned, and counts that do not divide alike (29 local layers and 5 global ones) would have a group for each
layer."""


def group_layers(windows: Sequence[int | None], num_tokens: int, block_size: int) -> tuple[KVGroup, ...]:
    """Cut a model's layers into groups.

    Of all numbers of layers per group that keep the KV of a decoding sequence within `_SLACK` of the least bytes, the
    one with the fewest groups is taken. Counted are the blocks that a sequence of `num_tokens` tokens holds in each
    group, with the one more that a window may touch, times the layers that a page has room for.

    Args:
        windows: Of each layer, in tokens, the query's own included; None sees everything.
        num_tokens: The served context. A window at least as long is none: nothing ever leaves it.

    Returns:
        Groups by first layer of their window, then in order of layers. Layers of one kind are one group.
    """
    kinds: dict[int | None, list[int]] = {}
    for layer, window in enumerate(windows):
        kinds.setdefault(window if window is not None and window < num_tokens else None, []).append(layer)
    kept = {window: kept_blocks(window, num_tokens, 1, block_size) for window in kinds}

    def num_groups(size: int) -> int:
        return sum(-(-len(layers) // size) for layers in kinds.values())

    def cost(size: int) -> int:
        return size * sum(-(-len(layers) // size) * kept[window] for window, layers in kinds.items())

    sizes = range(1, max(map(len, kinds.values())) + 1)
    most = _SLACK * min(map(cost, sizes))
    best = min((size for size in sizes if cost(size) <= most), key=lambda size: (num_groups(size), cost(size)))
    return tuple(
        KVGroup(layers=part, window=window) for window, layers in kinds.items() for part in _evenly(layers, best)
    )


def _evenly(layers: list[int], size: int) -> list[tuple[int, ...]]:
    """Neighbouring layers together, in as few parts of at most `size` as there can be, of almost equal sizes."""
    count = -(-len(layers) // size)
    ends = [len(layers) * part // count for part in range(count + 1)]
    return [tuple(layers[start:end]) for start, end in pairwise(ends)]


def layer_groups(groups: Sequence[KVGroup]) -> tuple[int, ...]:
    """The group of each layer."""
    return tuple(index for _, index in sorted((layer, index) for index, g in enumerate(groups) for layer in g.layers))


def describe_groups(groups: Sequence[KVGroup]) -> str:
    """Groups in words, those of one window together; empty where layers are all alike."""
    kinds = dict.fromkeys(group.window for group in groups)
    if len(kinds) == 1:
        return ""
    parts = []
    for window in kinds:
        own = [len(group.layers) for group in groups if group.window == window]
        what = "with full attention" if window is None else f"with a window of {window} tokens"
        parts.append(f"{sum(own)} layers {what} in {len(own)} of up to {max(own)}")
    return f"{len(groups)} groups of layers: {', '.join(parts)}"
