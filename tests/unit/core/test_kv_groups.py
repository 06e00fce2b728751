"""Which layers share a table: every layer once, little padding, and no more tables than that takes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.core.kv_groups import describe_groups, group_layers, layer_groups
from octavo.core.kv_spec import KVGroup, kept_blocks

Windows = list[int | None]

WINDOWS = st.lists(st.one_of(st.none(), st.sampled_from([1, 8, 128, 512, 1024, 4096])), min_size=1, max_size=70)
CONTEXTS = st.sampled_from([1, 16, 300, 8192, 131072])
BLOCK_SIZES = st.sampled_from([1, 8, 16, 64, 256])


def alternating(num_layers: int, window: int = 512, every: int = 6) -> Windows:
    """Layers of which the last of each `every` sees everything, and the others a window."""
    return [None if i % every == every - 1 else window for i in range(num_layers)]


def kept_bytes(groups: tuple[KVGroup, ...], num_tokens: int, block_size: int) -> int:
    """Of a decoding sequence, in units of one layer's KV of one token."""
    page = max(len(group.layers) for group in groups) * block_size
    return sum(kept_blocks(group.window, num_tokens, 1, block_size) for group in groups) * page


def required_bytes(windows: Windows, num_tokens: int) -> int:
    """What windows require, in the same units."""
    return sum(min(window or num_tokens, num_tokens) for window in windows)


@given(WINDOWS, CONTEXTS, BLOCK_SIZES)
def test_every_layer_is_in_one_group_of_its_window(windows: Windows, num_tokens: int, block_size: int) -> None:
    groups = group_layers(windows, num_tokens, block_size)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    for index, group in enumerate(groups):
        assert all(layer_groups(groups)[layer] == index for layer in group.layers)
        for layer in group.layers:
            window = windows[layer]
            assert group.window == (None if window is None or window >= num_tokens else window)


@given(WINDOWS, CONTEXTS, BLOCK_SIZES)
def test_groups_cost_little_more_than_one_for_each_layer(windows: Windows, num_tokens: int, block_size: int) -> None:
    groups = group_layers(windows, num_tokens, block_size)
    alone = tuple(KVGroup(layers=(0,), window=w if w is not None and w < num_tokens else None) for w in windows)
    assert kept_bytes(groups, num_tokens, block_size) <= 1.05 * kept_bytes(alone, num_tokens, block_size)
    sizes = {len(group.layers) for group in groups if group.window == groups[0].window}
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(1, 100), st.one_of(st.none(), st.integers(1, 9000)), CONTEXTS, BLOCK_SIZES)
def test_layers_of_one_kind_are_one_group(count: int, window: int | None, num_tokens: int, block_size: int) -> None:
    (group,) = group_layers([window] * count, num_tokens, block_size)
    assert group.layers == tuple(range(count)) and describe_groups((group,)) == ""


def test_windows_as_long_as_the_context_are_none() -> None:
    groups = group_layers([512, None, 600, 512], 512, 16)
    assert groups == (KVGroup(layers=(0, 1, 2, 3)),)


@pytest.mark.parametrize(
    ("num_layers", "counts"),
    [
        (18, {512: 5, None: 1}),
        (26, {512: 6, None: 1}),
        (34, {512: 6, None: 1}),
        (48, {512: 5, None: 1}),
        (62, {512: 6, None: 1}),
    ],
)
@pytest.mark.parametrize("block_size", [16, 32])
def test_five_local_layers_to_a_global_one(num_layers: int, counts: dict[int | None, int], block_size: int) -> None:
    """Counts that do not divide alike cost a few per cent of padding, not a group for each layer."""
    windows = alternating(num_layers)
    groups = group_layers(windows, 8192, block_size)
    assert {window: sum(g.window == window for g in groups) for window in counts} == counts
    assert kept_bytes(groups, 8192, block_size) <= 1.1 * required_bytes(windows, 8192)


def test_groups_in_words() -> None:
    said = describe_groups(group_layers(alternating(18), 8192, 16))
    assert said == (
        "6 groups of layers: 15 layers with a window of 512 tokens in 5 of up to 3, "
        "3 layers with full attention in 1 of up to 3"
    )
