"""The native KV memory: blocks as contiguous ranges, tables shared with numpy, every index checked."""

from __future__ import annotations

import gc
import os
import re
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import _native
from octavo.backends.protocol import KVShape

SHAPE: dict[str, Any] = {
    "layer_groups": (0, 1, 0, 1, 1),
    "num_kv_heads": 3,
    "head_dim": 7,
    "dtype": "bfloat16",
    "block_size": 4,
    "num_blocks": 10,
    "max_num_seqs": 5,
    "max_blocks_per_seq": 6,
}


def make(**changes: Any) -> Any:
    return _native.KVMemory(**{**SHAPE, **changes})


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("layer_groups", [(0,), (0, 1, 0, 1, 1), (0, 1, 2)])
def test_shape_is_the_contracts(dtype: str, layer_groups: tuple[int, ...]) -> None:
    kv = make(dtype=dtype, layer_groups=layer_groups)
    shape = KVShape(**{**SHAPE, "dtype": dtype, "layer_groups": layer_groups})
    assert kv.bytes_per_block == shape.bytes_per_block
    assert kv.block_tables.shape == (shape.num_groups, 5, 6)
    assert kv.block_tables.dtype == np.int32
    assert kv.export_block(9) == bytes(shape.bytes_per_block)


def test_tables_are_one_memory_and_outlive_the_object() -> None:
    kv = make()
    tables = kv.block_tables
    tables[1, 4, 5] = 7
    assert kv.block_tables[1, 4, 5] == 7
    del kv
    gc.collect()
    tables[:] = 3
    assert (tables == 3).all()


def test_blocks_are_copied_erased_exported_and_imported() -> None:
    kv = make()
    content = [np.random.default_rng(i).bytes(kv.bytes_per_block) for i in range(10)]
    for i, data in enumerate(content):
        kv.import_block(i, data)
    kv.copy_blocks([(1, 2), (2, 3), (5, 5), (9, 0)])
    expected = content.copy()
    expected[2] = expected[3] = content[1]
    expected[0] = content[9]
    kv.erase_blocks([4, 7])
    expected[4] = expected[7] = bytes(kv.bytes_per_block)
    assert [kv.export_block(i) for i in range(10)] == expected


@pytest.mark.parametrize("block", [-1, 10, 1 << 40])
def test_blocks_outside_the_pool_are_refused_before_anything_happens(block: int) -> None:
    kv = make()
    kv.import_block(3, b"\1" * kv.bytes_per_block)
    match = rf"block {block}: must be from 0 to 9"
    with pytest.raises(IndexError, match=match):
        kv.copy_blocks([(3, 2), (1, block)])
    with pytest.raises(IndexError, match=match):
        kv.copy_blocks([(3, 2), (block, 1)])
    with pytest.raises(IndexError, match=match):
        kv.erase_blocks([3, block])
    with pytest.raises(IndexError, match=match):
        kv.export_block(block)
    with pytest.raises(IndexError, match=match):
        kv.import_block(block, bytes(kv.bytes_per_block))
    assert kv.export_block(2) == bytes(kv.bytes_per_block)
    assert kv.export_block(3) == b"\1" * kv.bytes_per_block


@pytest.mark.parametrize("difference", [-1, 1])
def test_imports_of_another_length_are_refused(difference: int) -> None:
    kv = make()
    with pytest.raises(ValueError, match="the size of a block"):
        kv.import_block(1, bytes(kv.bytes_per_block + difference))
    with pytest.raises(ValueError, match="data of 0 bytes"):
        kv.import_block(1, b"")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("layer_groups", ()),
        ("layer_groups", (0, -1)),
        ("layer_groups", (0, 5)),
        ("num_kv_heads", 0),
        ("head_dim", -3),
        ("head_dim", 1 << 40),
        ("dtype", "float16"),
        ("block_size", 0),
        ("block_size", 24),
        ("block_size", 512),
        ("num_blocks", 0),
        ("num_blocks", 1 << 31),
        ("max_num_seqs", 0),
        ("max_blocks_per_seq", 0),
        ("max_blocks_per_seq", 1 << 31),
    ],
)
def test_bad_shapes_name_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{field} = .*: must be "):
        make(**{field: value})


def test_impossible_sizes_are_refused_without_taking_memory() -> None:
    with pytest.raises((MemoryError, ValueError)):
        make(num_blocks=(1 << 31) - 1, num_kv_heads=1 << 16, head_dim=1 << 16, block_size=256)


def test_a_large_pool_takes_no_memory_until_it_is_written() -> None:
    before = resident_bytes()
    kv = make(num_blocks=1 << 20, head_dim=64)  # 4.5 GB
    kv.import_block((1 << 20) - 1, b"\1" * kv.bytes_per_block)
    assert resident_bytes() - before < 64 << 20


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def wait_for(kv: Any, num_bytes: int) -> None:
    until_s = time.monotonic() + 30
    while kv.ready_bytes < num_bytes:
        assert time.monotonic() < until_s, f"{kv.ready_bytes} of {num_bytes} bytes are ready"
        time.sleep(0.01)


LARGE: dict[str, Any] = {"layer_groups": (0,) * 8, "num_kv_heads": 8, "head_dim": 128, "block_size": 32}
AHEAD = 128 << 20


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 14), reason="MADV_POPULATE_WRITE is of Linux 5.14"
)
def test_memory_is_ready_before_it_is_written_and_no_more_of_it_than_that() -> None:
    kv = make(**LARGE, num_blocks=400)  # 400 MiB
    assert kv.bytes_per_block == 1 << 20
    before = resident_bytes()
    assert kv.ready_bytes == 0
    kv.expect(0)
    wait_for(kv, AHEAD + (1 << 20))
    assert AHEAD <= resident_bytes() - before < AHEAD + (40 << 20)
    assert kv.ready_bytes == AHEAD + (1 << 20)
    kv.expect(0)
    kv.expect(350)
    wait_for(kv, 400 << 20)
    assert kv.ready_bytes == 400 << 20


def test_what_is_in_memory_stays_there_while_more_becomes_ready() -> None:
    kv = make(**LARGE, num_blocks=300)
    rng = np.random.default_rng(0)
    written = {}
    for block in range(0, 300, 7):
        kv.expect(block)
        written[block] = rng.bytes(kv.bytes_per_block)
        kv.import_block(block, written[block])
    for block, data in written.items():
        assert kv.export_block(block) == data
    assert not np.frombuffer(kv.export_block(299), np.uint8).any()


def test_memory_may_go_while_it_becomes_ready() -> None:
    for _ in range(20):
        kv = make(**LARGE, num_blocks=300)
        kv.expect(299)
        del kv


@pytest.mark.parametrize("block", [-1, 10, 1 << 40])
def test_a_block_that_is_not_there_is_not_expected(block: int) -> None:
    kv = make()
    kv.expect(block)
    assert kv.ready_bytes == 0
