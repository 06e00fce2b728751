"""KV memory of every back end: copying, erasing, exporting and importing whole blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.paged_steps import kv_shape, run_steps, scatter_blocks, whole

LENGTH = 40
BLOCK_SIZE = 8


class Attending:
    """Three layers in two groups that write and attend, over a memory of the back end's."""

    def __init__(self, backend: Any, dtype: str) -> None:
        x = np.random.default_rng(0).standard_normal((LENGTH, 48)).astype(np.float32)
        table = backend.matrix([x])
        self.kv = backend.allocate_kv(kv_shape((0, 1, 0), dtype=dtype, block_size=BLOCK_SIZE))

        def build(ops: Any) -> Any:
            query, key, value = ops.split(ops.embedding(table), (16, 16, 16))
            for layer in range(3):
                ops.write_kv(layer, key, value)
            first, second, third = (ops.paged_attention(layer, query, scale=0.5) for layer in range(3))
            return ops.add(ops.gated(first, second, "silu"), third)

        self.program = backend.compile(build, self.kv, LENGTH)
        self.tokens = [np.arange(LENGTH)]

    def compute(self) -> Any:
        return run_steps(self.program, self.tokens, whole([LENGTH]))[0]

    def last(self) -> Any:
        return run_steps(self.program, self.tokens, [[(0, LENGTH - 1, LENGTH)]])[0]

    def blocks(self) -> list[int]:
        return sorted({int(b) for b in self.kv.block_tables[:, 0, : LENGTH // BLOCK_SIZE].ravel()})

    def move_to(self, moved: dict[int, int]) -> None:
        table = self.kv.block_tables[:, 0, : LENGTH // BLOCK_SIZE]
        table[:] = np.vectorize(moved.__getitem__)(table)


@pytest.fixture(params=["float32", "bfloat16", "int8"])
def attending(backend: Any, request: pytest.FixtureRequest) -> Attending:
    made = Attending(backend, request.param)
    scatter_blocks(made.kv, [LENGTH])
    return made


def unused(attending: Attending) -> list[int]:
    return [b for b in range(1, attending.kv.shape.num_blocks) if b not in attending.blocks()]


def test_memory_starts_as_zeros(backend: Any) -> None:
    shape = kv_shape((0, 1), dtype="bfloat16")
    kv = backend.allocate_kv(shape)
    assert kv.shape == shape
    assert kv.block_tables.shape == (2, shape.max_num_seqs, shape.max_blocks_per_seq)
    assert kv.block_tables.dtype == np.int32
    assert not kv.block_tables.any()
    assert all(kv.export_block(b) == bytes(shape.bytes_per_block) for b in range(shape.num_blocks))


def test_a_copy_serves_like_the_original(attending: Attending) -> None:
    attending.compute()
    expected = attending.last()
    moved = dict(zip(attending.blocks(), unused(attending), strict=False))
    attending.kv.copy_blocks(list(moved.items()))
    originals = {b: attending.kv.export_block(b) for b in moved}
    attending.move_to(moved)
    attending.kv.erase_blocks(list(originals))
    assert np.array_equal(attending.last(), expected)
    assert any(any(data) for data in originals.values())


def test_copies_are_made_in_order(attending: Attending) -> None:
    attending.compute()
    first, second = attending.blocks()[:2]
    free = unused(attending)[0]
    before = attending.kv.export_block(first), attending.kv.export_block(second)
    attending.kv.copy_blocks([(first, free), (second, first), (free, second)])  # a swap
    assert (attending.kv.export_block(second), attending.kv.export_block(first)) == before


def test_erased_blocks_are_zeros_and_others_are_untouched(attending: Attending) -> None:
    attending.compute()
    blocks = attending.blocks()
    kept = {b: attending.kv.export_block(b) for b in blocks[2:]}
    attending.kv.erase_blocks(blocks[:2])
    size = attending.kv.shape.bytes_per_block
    assert all(attending.kv.export_block(b) == bytes(size) for b in blocks[:2])
    assert all(attending.kv.export_block(b) == data for b, data in kept.items())


def test_blocks_survive_export_and_import_elsewhere(attending: Attending) -> None:
    attending.compute()
    expected = attending.last()
    moved = dict(zip(attending.blocks(), unused(attending), strict=False))
    for old, new in moved.items():
        data = attending.kv.export_block(old)
        assert len(data) == attending.kv.shape.bytes_per_block
        attending.kv.import_block(new, data)
        assert attending.kv.export_block(new) == data
    attending.kv.erase_blocks(list(moved))
    attending.move_to(moved)
    assert np.array_equal(attending.last(), expected)


def test_an_import_of_another_length_is_refused(attending: Attending) -> None:
    size = attending.kv.shape.bytes_per_block
    for wrong in (b"", bytes(size - 1), bytes(size + 1)):
        with pytest.raises(ValueError, match=str(size)):
            attending.kv.import_block(1, wrong)


def test_a_swap_moves_the_bytes_that_an_export_gives(attending: Attending) -> None:
    attending.compute()
    kv, block = attending.kv, attending.blocks()[0]
    memory = np.full(3 * kv.shape.bytes_per_block, 0xAB, np.uint8)
    slot = memory.reshape(3, -1)[1]
    kv.swap_out(block, slot)
    assert slot.tobytes() == kv.export_block(block)
    assert any(slot)
    assert (memory.reshape(3, -1)[[0, 2]] == 0xAB).all(), "written beside the slot"
    free = unused(attending)[:2]
    kv.swap_in(slot, free[0])
    assert kv.export_block(free[0]) == slot.tobytes()
    assert kv.export_block(free[1]) == b"\xff" * kv.shape.bytes_per_block  # as `scatter_blocks` left it


def test_a_swap_copies(attending: Attending) -> None:
    """Neither side sees what later happens to the other."""
    attending.compute()
    kv, (first, second) = attending.kv, attending.blocks()[:2]
    slot = np.empty(kv.shape.bytes_per_block, np.uint8)
    kv.swap_out(first, slot)
    was = slot.tobytes()
    kv.erase_blocks([first])
    assert slot.tobytes() == was
    kv.swap_in(slot, second)
    slot[:] = 0
    assert kv.export_block(second) == was


def test_swapped_blocks_serve_elsewhere(attending: Attending) -> None:
    attending.compute()
    expected = attending.last()
    moved = dict(zip(attending.blocks(), unused(attending), strict=False))
    slots = np.empty((len(moved), attending.kv.shape.bytes_per_block), np.uint8)
    for slot, block in zip(slots, moved, strict=True):
        attending.kv.swap_out(block, slot)
    attending.kv.erase_blocks(list(moved))
    for slot, block in zip(slots, moved.values(), strict=True):
        attending.kv.swap_in(slot, block)
    attending.move_to(moved)
    assert np.array_equal(attending.last(), expected)


def test_a_swap_of_another_length_is_refused(attending: Attending) -> None:
    kv, size = attending.kv, attending.kv.shape.bytes_per_block
    before = kv.export_block(1)
    for wrong in (0, size - 1, size + 1):
        with pytest.raises(ValueError, match=str(size)):
            kv.swap_out(1, np.zeros(wrong, np.uint8))
        with pytest.raises(ValueError, match=str(size)):
            kv.swap_in(np.zeros(wrong, np.uint8), 1)
    assert kv.export_block(1) == before


def test_a_swap_of_a_block_that_is_not_there_is_refused(attending: Attending) -> None:
    slot = np.zeros(attending.kv.shape.bytes_per_block, np.uint8)
    with pytest.raises(IndexError):
        attending.kv.swap_out(attending.kv.shape.num_blocks, slot)
    with pytest.raises(IndexError):
        attending.kv.swap_in(slot, attending.kv.shape.num_blocks)
