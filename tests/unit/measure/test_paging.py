"""Paged against contiguous attention, and swapping against computing again: layouts, turns and medians."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.errors import ConfigError
from octavo.measure import model, paging, swapping
from octavo.measure.attention import AttentionPass, Batch, Layout, make_memory
from octavo.measure.cases import take_turns
from octavo.measure.shapes import Shapes
from octavo.measure.swapping import SwapWorker, Turn
from support.paths import TINYSTORIES

ISA = _native.supported_paths()[0]
TINY = Shapes(
    hidden_size=32, intermediate_size=48, num_heads=4, num_kv_heads=2, head_dim=16, num_layers=2, vocab_size=96
)


@pytest.fixture(scope="module")
def pool() -> _native.ThreadPool:
    return _native.ThreadPool(1)


@pytest.fixture(scope="module")
def tiny_model() -> Iterator[model.Model]:
    made = model.random_model(TINY, "tiny", num_threads=1, max_position=64)
    yield made
    made.close()


def test_turns_begin_with_another_run_each_time() -> None:
    order: list[str] = []

    def run(name: str, seconds: float) -> Any:
        def go(clock: Any) -> float:
            order.append(name)
            return seconds + len(order)

        return go

    seconds = take_turns([run("a", 100), run("b", 200), run("c", 300)], 3)
    assert "".join(order) == "abc" + "abc" + "bca" + "cab", "a warm-up, then each first once"
    assert seconds == [[104, 109, 111], [205, 207, 212], [306, 308, 310]]


def test_every_layout_lies_as_it_says(pool: Any) -> None:
    batch = Batch(3, 64)
    ordered = np.arange(1, 13).reshape(3, 4)
    for layout, in_order, layers in ((paging.IN_ORDER, True, 2), (paging.PAGED, False, 2)):
        kv = AttentionPass(TINY, batch, "bfloat16", pool, ISA, layout).kv
        table = kv.block_tables[0]
        assert sorted(table.ravel()) == list(range(1, 13)) and (table == ordered).all() == in_order
        assert kv.bytes_per_block == layers * 16 * 2 * TINY.kv_width * 2
    alone = AttentionPass(TINY, batch, "bfloat16", pool, ISA, Layout("long", 64, scattered=False, shared=False)).kv
    assert alone.block_tables[0].tolist() == [[1], [2], [3]] and alone.bytes_per_block == 64 * 2 * TINY.kv_width * 2


def test_a_pass_calls_the_kernel_of_each_layer(pool: Any) -> None:
    """Layers in one call give what calls one by one give, the last layer's result last; a bad layer is refused."""
    kv = make_memory(TINY, Batch(2, 40), "bfloat16", 2, 16, scattered=True)
    rng = np.random.default_rng(3)
    key, value = rng.standard_normal((2, 16, TINY.kv_width), np.float32)
    tokens = np.arange(16, dtype=np.int32)
    _native.write_kv(kv, 1, key, value, tokens, np.zeros_like(tokens), pool, ISA)  # now the layers differ
    query = rng.standard_normal((2, TINY.query_width), np.float32)
    rows, starts, lengths = (np.array(x, np.int32) for x in ([0, 1], [0, 1, 2], [40, 40]))

    def alone(layer: int) -> Any:
        out = np.zeros_like(query)
        _native.attention(kv, layer, query, out, TINY.num_heads, 0.25, 0, rows, starts, lengths, pool, ISA)
        return out

    def together(*layers: int) -> Any:
        out = np.zeros_like(query)
        pairs = [(kv, layer) for layer in layers]
        _native.attention_layers(pairs, query, out, TINY.num_heads, 0.25, rows, starts, lengths, pool, ISA)
        return out

    assert not np.array_equal(alone(0), alone(1))
    assert np.array_equal(together(1, 0), alone(0)) and np.array_equal(together(0, 1), alone(1))
    with pytest.raises(ValueError, match="layer"):
        together(0, 2)
    with pytest.raises(ValueError, match="layers must have a memory"):
        none: Any = [(None, 0)]
        _native.attention_layers(none, query, query, TINY.num_heads, 0.25, rows, starts, lengths, pool, ISA)


def test_ratios_are_taken_within_a_turn(pool: Any) -> None:
    """A clock that doubles its pace from turn to turn changes no ratio: paged takes 1.2 times as long in each."""
    cost = {"contiguous": 10.0, "blocks of 16, in order": 11.0, "blocks of 16": 12.0}
    names = list(cost)
    order = [names, *([names[(turn + place) % 3] for place in range(3)] for turn in range(3))]
    paces = [1.0, 1.0, 2.0, 4.0]

    def ticks() -> Iterator[float]:
        for names_of_turn, pace in zip(order, paces, strict=True):
            for name in names_of_turn:
                yield 0.0
                yield cost[name] * pace

    times = ticks()
    points = list(paging.paging_points(TINY, [Batch(2, 40)], pool, ISA, repeats=3, clock=lambda: next(times)))
    assert [point.layout for point in points] == names
    assert [point.block_size for point in points] == [32, 16, 16], "the long array's blocks are full"
    assert [point.ratio for point in points] == pytest.approx([1.0, 1.1, 1.2])
    assert points[2].ratio_low == pytest.approx(1.2) and points[2].ratio_high == pytest.approx(1.2)
    assert points[2].us_per_layer == pytest.approx(12.0 * 2 / 2 * 1e6), "the median turn, per layer"


def test_only_so_many_layers_are_timed_as_a_small_machine_holds(pool: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paging, "_MOST_BYTES", 4 * 64 * 2 * TINY.kv_width * 2)
    made: list[tuple[int, str]] = []

    class Noted(AttentionPass):
        def __init__(self, shapes: Shapes, batch: Batch, dtype: str, *rest: Any) -> None:
            made.append((shapes.num_layers, dtype))
            super().__init__(shapes, batch, dtype, *rest)

    monkeypatch.setattr(paging, "AttentionPass", Noted)
    for num_seqs, layers in ((2, 2), (4, 1), (8, 1)):
        made.clear()
        list(paging.paging_points(TINY, [Batch(num_seqs, 64)], pool, ISA, repeats=2))
        assert made == [(layers, "bfloat16")] * 3


def test_a_swapped_sequence_comes_back_as_it_was(tiny_model: model.Model) -> None:
    """What the turn times is the real road: the blocks that came back hold the bytes that left."""
    worker = SwapWorker(tiny_model, 4, 10)
    turn = worker.turn()
    assert turn.out_s > 0 and turn.in_s > 0 and turn.recompute_s > 0 and turn.both_s == turn.out_s + turn.in_s
    kv = worker._runner._kv
    for block in (1, 2, 3):
        data = kv.export_block(block)
        assert any(data) and data == kv.export_block(3 + block)


def test_swaps_that_fail_are_not_timed(tiny_model: model.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(swapping.HostTier):
        def put(self, key: int, fill: Any) -> None:
            raise MemoryError

    monkeypatch.setattr(swapping, "HostTier", Full)
    with pytest.raises(MemoryError, match="no memory for the swapped blocks"):
        SwapWorker(tiny_model, 4, 10).turn()


def test_block_sizes_take_turns(tiny_model: model.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[int] = []
    found = itertools.count(1)

    def turn(self: SwapWorker) -> Turn:
        order.append(self._columns)
        return Turn(1.0, 2.0, 3.0 * next(found))

    monkeypatch.setattr(SwapWorker, "turn", turn)
    turns = swapping.swap_turns(tiny_model, 12, [4, 16], 3)
    assert order == [3, 1] * 4, "the first of each does not count"
    assert [t.recompute_s for t in turns[4]] == [9, 15, 21] and [t.recompute_s for t in turns[16]] == [12, 18, 24]
    (first, second) = swapping.swap_points(turns)
    assert (first.block_size, first.both_s, first.recompute_s, first.ratio) == (4, 3.0, 15, 5)
    assert (second.block_size, second.recompute_s, second.ratio) == (16, 18, 6)


def test_a_model_without_room_is_refused(tiny_model: model.Model) -> None:
    with pytest.raises(ConfigError, match=r"tokens.*65.*from 1 to 64"):
        SwapWorker(tiny_model, 4, 65)


def test_a_model_on_this_machine_is_measured_too() -> None:
    tinystories = model.loaded(str(TINYSTORIES), num_threads=1)
    assert tinystories.spec.num_layers == 5
    (point,) = swapping.swap_points(swapping.swap_turns(tinystories, 20, [16], 1))
    assert point.ratio == pytest.approx(point.recompute_s / point.both_s)
    tinystories.close()
