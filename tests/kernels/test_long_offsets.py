"""Blocks past the first 2^31 and 2^32 bytes of the pool, and positions past 2^20, give the bits that near ones give.

The pool is lazily backed: only the blocks that are touched take memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from paged import Array

from octavo import _native
from octavo.backends.cpu import CpuBackend
from octavo.backends.protocol import RopeParams
from support.paged_steps import kv_shape, step

PATHS = _native.supported_paths()
DTYPES = ("float32", "bfloat16", "int8")
NUM_HEADS, HEAD_DIM, BLOCK_SIZE, ROW, LAYER = 2, 64, 16, 1, 3
WIDTH = NUM_HEADS * HEAD_DIM
POOL_BYTES = (1 << 33) + (1 << 22)
NUM_COLUMNS = 5


class Pool:
    """Two groups of two layers, in somewhat more than 8 GiB."""

    def __init__(self, dtype: str, *, max_blocks_per_seq: int = NUM_COLUMNS) -> None:
        shape: dict[str, Any] = {
            "layer_groups": (0, 1, 0, 1),
            "num_kv_heads": NUM_HEADS,
            "head_dim": HEAD_DIM,
            "dtype": dtype,
            "block_size": BLOCK_SIZE,
            "max_num_seqs": 2,
            "max_blocks_per_seq": max_blocks_per_seq,
        }
        block_bytes = _native.KVMemory(num_blocks=1, **shape).bytes_per_block
        self.num_blocks = POOL_BYTES // block_bytes
        self.kv = _native.KVMemory(num_blocks=self.num_blocks, **shape)
        self.threads = _native.ThreadPool(1)

    def far_blocks(self) -> list[int]:
        """The block that spans or ends at byte 2^31, the one at 2^32, the one after it, one past 2^32 and the last."""
        size = self.kv.bytes_per_block
        return [(1 << 31) // size, (1 << 32) // size, (1 << 32) // size + 1, 3 * (1 << 31) // size, self.num_blocks - 1]

    def computed(self, isa: str, blocks: list[int], first_column: int = 0, window: int = 0) -> tuple[Array, Array]:
        """Write 70 tokens' keys and values into these blocks and attend with the last 3; outputs, and blocks' bytes."""
        rng = np.random.default_rng(7)
        count, first = 70, first_column * BLOCK_SIZE
        key, value, query = (rng.standard_normal((n, WIDTH), np.float32) for n in (count, count, 3))
        self.kv.block_tables[1, ROW, first_column : first_column + NUM_COLUMNS] = blocks
        positions = np.arange(first, first + count, dtype=np.int32)
        rows = np.full(count, ROW, np.int32)
        _native.write_kv(self.kv, LAYER, key, value, positions, rows, self.threads, isa)
        out = np.zeros((3, WIDTH), np.float32)
        _native.attention(
            self.kv,
            LAYER,
            query,
            out,
            NUM_HEADS,
            HEAD_DIM**-0.5,
            window,
            np.array([ROW], np.int32),
            np.array([0, 3], np.int32),
            np.array([first + count], np.int32),
            self.threads,
            isa,
        )
        return out, np.frombuffer(b"".join(map(self.kv.export_block, blocks)), np.uint8)


@pytest.fixture(params=DTYPES)
def pool(request: pytest.FixtureRequest) -> Pool:
    return Pool(request.param)


@pytest.mark.parametrize("isa", PATHS)
def test_far_blocks_are_written_and_read(pool: Pool, isa: str) -> None:
    far = pool.far_blocks()
    size = pool.kv.bytes_per_block
    assert far[0] * size <= 1 << 31 < far[2] * size and far[-1] * size > (1 << 33) - size
    near, stored = pool.computed(isa, [1, 2, 3, 4, 5])
    assert stored.any() and np.isfinite(near).all() and near.any()
    pool.kv.erase_blocks([1, 2, 3, 4, 5])
    again, found = pool.computed(isa, far)
    assert np.array_equal(again, near) and np.array_equal(found, stored)
    cut = {(block * size % (1 << bits)) // size for block in far for bits in (31, 32)}
    others = {*range(8), *cut, *(block + 1 for block in cut)} - set(far)
    assert not any(any(pool.kv.export_block(block)) for block in others), "an offset was cut off"


def test_far_blocks_are_copied_erased_exported_and_swapped(pool: Pool) -> None:
    kv, far = pool.kv, pool.far_blocks()
    size = kv.bytes_per_block
    content = {block: np.random.default_rng(block).bytes(size) for block in far}
    for block, data in content.items():
        kv.import_block(block, data)
    assert {block: kv.export_block(block) for block in far} == content
    kv.copy_blocks([(far[1], 1), (far[0], far[0] + 1), (far[4], far[4] - 1)])
    assert kv.export_block(1) == content[far[1]]
    assert kv.export_block(far[0] + 1) == content[far[0]] and kv.export_block(far[4] - 1) == content[far[4]]
    slot = np.zeros(size, np.uint8)
    kv.swap_out(far[3], slot)
    assert slot.tobytes() == content[far[3]]
    kv.erase_blocks(far)
    assert not any(any(kv.export_block(block)) for block in far)
    kv.swap_in(slot, far[3])
    assert kv.export_block(far[3]) == content[far[3]] and not any(kv.export_block(far[2]))


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_far_positions_of_a_window(dtype: str, isa: str) -> None:
    """A row of more than 2^21 tokens, of which a window is there. Attention reduces over pieces of the sequence that
    begin at multiples of 4096 too, so what lies that far apart is computed alike."""
    columns = (1 << 21) // BLOCK_SIZE + 256
    pool = Pool(dtype, max_blocks_per_seq=columns + NUM_COLUMNS)
    near, _ = pool.computed(isa, [1, 2, 3, 4, 5], 256, window=66)
    far, _ = pool.computed(isa, pool.far_blocks(), columns, window=66)
    assert near.any() and np.array_equal(near, far)


@pytest.mark.parametrize("isa", PATHS)
def test_full_attention_over_a_million_tokens(isa: str) -> None:
    """Every column names one block, so the average over all tokens is the average over its own."""
    columns = (1 << 20) // BLOCK_SIZE
    pool = Pool("float32", max_blocks_per_seq=columns + 1)
    block = pool.far_blocks()[-1]
    rng = np.random.default_rng(3)
    key, value = (rng.standard_normal((BLOCK_SIZE, WIDTH), np.float32) for _ in range(2))
    query = rng.standard_normal((1, WIDTH), np.float32)
    pool.kv.block_tables[1, ROW] = block
    positions, rows = np.arange(BLOCK_SIZE, dtype=np.int32), np.full(BLOCK_SIZE, ROW, np.int32)
    _native.write_kv(pool.kv, LAYER, key, value, positions, rows, pool.threads, isa)

    def attend(num_tokens: int) -> Array:
        out = np.zeros((1, WIDTH), np.float32)
        lengths = (np.array([ROW], np.int32), np.array([0, 1], np.int32), np.array([num_tokens], np.int32))
        _native.attention(pool.kv, LAYER, query, out, NUM_HEADS, HEAD_DIM**-0.5, 0, *lengths, pool.threads, isa)
        return out

    np.testing.assert_allclose(
        attend(1 << 20), attend(BLOCK_SIZE), rtol=1e-3, atol=1e-4
    )  # of float32 sums over 2^20 tokens


@pytest.mark.parametrize("isa", PATHS)
def test_rotary_embedding_of_far_positions(isa: str) -> None:
    positions = [0, (1 << 20) - 1, 1 << 20, (1 << 21) + 5]
    rope = RopeParams(inv_freq=tuple(10000.0 ** (-i / 4) for i in range(4)), max_position=(1 << 21) + 6)
    x = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    backend = CpuBackend("float32", num_threads=1, isa=isa)
    kv = backend.allocate_kv(kv_shape(num_kv_heads=1, head_dim=1, block_size=256, max_num_seqs=4, max_tokens=1 << 22))
    table = backend.matrix([x])
    program = backend.compile(lambda ops: ops.rotary(ops.embedding(table), rope, 8), kv, 4)
    far = np.zeros(max(positions) + 1, np.int32)
    y = program.run(step([far + i for i in range(4)], [(i, p, p + 1) for i, p in enumerate(positions)])).copy()
    backend.close()
    angles = np.array(positions, np.float64)[:, None] * np.array(rope.inv_freq)
    first, second = x[:, :4].astype(np.float64), x[:, 4:].astype(np.float64)
    expected = np.hstack(
        [first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles)]
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(x).max())
