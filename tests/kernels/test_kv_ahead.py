"""What products fetch for the next attention: the right bytes of the right blocks, each once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo import _native

BLOCK = 4


def memory(**changes: Any) -> Any:
    shape: dict[str, Any] = {
        "layer_groups": (0, 1, 0, 1),
        "num_kv_heads": 2,
        "head_dim": 8,
        "dtype": "bfloat16",
        "block_size": BLOCK,
        "num_blocks": 40,
        "max_num_seqs": 4,
        "max_blocks_per_seq": 8,
    }
    kv = _native.KVMemory(**{**shape, **changes})
    tables = kv.block_tables
    shuffled = np.random.default_rng(0).permutation(tables.size).reshape(tables.shape)
    tables[:] = 1 + shuffled % ({**shape, **changes}["num_blocks"] - 1)
    return kv


def fetched(kv: Any, layer: int, new_and_all: list[tuple[int, int]], *, window: int = 0, threads: int = 1) -> Any:
    start = np.cumsum([0, *(new for new, _ in new_and_all)]).astype(np.int32)
    lengths = np.array([length for _, length in new_and_all], np.int32)
    rows = np.arange(len(new_and_all), dtype=np.int32)[::-1].copy()
    return _native.fetched_ahead(kv, layer, window, rows, start, lengths, threads)


def blocks_of(kv: Any, places: list[tuple[int, int]]) -> list[int]:
    return [place // kv.bytes_per_block for place, _ in places]


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_it_is_where_the_layer_is(dtype: str, layer: int) -> None:
    kv = memory(dtype=dtype)
    ((place, size),) = fetched(kv, layer, [(1, BLOCK)])[0]
    block = int(kv.block_tables[layer % 2, 0, 0])
    before = np.frombuffer(kv.export_block(block), np.uint8)
    ones = np.ones((BLOCK, 16), np.float32)
    _native.write_kv(kv, layer, ones, ones, np.arange(BLOCK, dtype=np.int32), np.zeros(BLOCK, np.int32),
                     _native.ThreadPool(1), "portable")  # fmt: skip
    (changed,) = np.nonzero(before != np.frombuffer(kv.export_block(block), np.uint8))
    begin = place - block * kv.bytes_per_block
    assert size == kv.bytes_per_block // 2, "two layers share a block"
    assert begin <= changed.min() and changed.max() < begin + size
    assert changed.max() - changed.min() > size // 2


def test_each_thread_has_neighbours_and_what_is_written_now_is_there_too() -> None:
    kv = memory()
    lengths = [(1, 9), (1, 8), (2, 30), (1, 1)]
    one, two = fetched(kv, 0, lengths, threads=2)
    table = kv.block_tables[0]
    assert blocks_of(kv, one) == [*table[3, :3], *table[2, :2]]  # rows were given from the last to the first
    assert blocks_of(kv, two) == [*table[1, :8], table[0, 0]]
    assert fetched(kv, 0, lengths, threads=3) == [one, two[:8], two[8:]]
    assert fetched(kv, 0, []) == [[]]


def test_shares_are_even_by_what_attention_takes() -> None:
    kv = memory()
    long, short = (1, 30), (1, 6)
    assert [len(share) for share in fetched(kv, 0, [long, short, short, short], threads=2)] == [8, 6]
    assert [len(share) for share in fetched(kv, 0, [short, short, short, long], threads=2)] == [6, 8]
    prompt = (30, 30)  # takes as much as ten that decode
    assert [len(share) for share in fetched(kv, 0, [long, long, prompt, short], threads=2)] == [16, 2]
    assert [len(share) for share in fetched(kv, 1, [long, long, short], window=6, threads=2)] == [2, 4]


def test_a_window_is_all_that_is_fetched() -> None:
    kv = memory()
    table = kv.block_tables[1]
    assert blocks_of(kv, fetched(kv, 1, [(1, 30)], window=10)[0]) == list(table[0, 5:8])
    assert blocks_of(kv, fetched(kv, 1, [(1, 30)], window=30)[0]) == list(table[0, :8])
    assert blocks_of(kv, fetched(kv, 1, [(3, 30)], window=9)[0]) == list(table[0, 4:8])


def test_prompts_are_left_out() -> None:
    kv = memory()
    assert blocks_of(kv, fetched(kv, 0, [(20, 30), (1, 9), (9, 9)])[0]) == list(kv.block_tables[0, 1, :3])


def test_no_more_than_a_cache_holds() -> None:
    kv = memory(num_kv_heads=8, head_dim=128, block_size=32, num_blocks=8, max_blocks_per_seq=500)
    (places,) = fetched(kv, 0, [(1, 16000)])
    assert 5 << 20 < sum(size for _, size in places) <= 6 << 20
