"""What a KV block costs beyond its tokens: the figures behind the automatic block size (worker/block_size.py).

    python benchmarks/block_size.py [--isa avx512] [--dtype bfloat16] [--head-dim 64] [--kv-heads 3]

Attention is decode over all layers, 8 sequences of 512 tokens, blocks in random order, one thread. The sizes take turns
and the least CPU time of each counts, so compare the lines of one run: "to 64" is the time over that at 64 tokens.
Copies and swaps are of single blocks, at random places of a memory far larger than the caches.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from octavo import _native

NUM_SEQS, CONTEXT, HEADS_PER_KV_HEAD = 8, 512, 3
SIZES = (8, 16, 32, 64, 128)


def make_memory(block_size: int, args: argparse.Namespace) -> _native.KVMemory:
    columns = CONTEXT // block_size
    num_blocks = NUM_SEQS * columns + 1
    kv = _native.KVMemory(
        layer_groups=(0,) * args.layers,
        num_kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        dtype=args.dtype,
        block_size=block_size,
        num_blocks=num_blocks,
        max_num_seqs=NUM_SEQS,
        max_blocks_per_seq=columns,
    )
    data = bytes([0x3C]) * kv.bytes_per_block  # a small finite number in every dtype
    for block in range(1, num_blocks):
        kv.import_block(block, data)
    ids = np.random.default_rng(0).permutation(np.arange(1, num_blocks))
    kv.block_tables[0] = ids.reshape(NUM_SEQS, columns)
    return kv


def attend(kv: _native.KVMemory, args: argparse.Namespace, pool: _native.ThreadPool) -> None:
    num_heads = args.kv_heads * HEADS_PER_KV_HEAD
    query = np.random.default_rng(1).standard_normal((NUM_SEQS, num_heads * args.head_dim), np.float32)
    out = np.empty_like(query)
    rows, starts = np.arange(NUM_SEQS, dtype=np.int32), np.arange(NUM_SEQS + 1, dtype=np.int32)
    lengths = np.full(NUM_SEQS, CONTEXT, np.int32)
    for layer in range(args.layers):
        _native.attention(kv, layer, query, out, num_heads, 0.125, 0, rows, starts, lengths, pool, args.isa)


def copy(kv: _native.KVMemory, num_blocks: int) -> None:
    pairs = np.random.default_rng(2).permutation(np.arange(1, num_blocks)).reshape(-1, 2)
    for source, destination in pairs.tolist():
        kv.copy_blocks([(source, destination)])


def swap(kv: _native.KVMemory, slots: npt.NDArray[np.uint8]) -> None:
    for block in range(1, len(slots)):
        kv.swap_out(block, slots[block])


def least(work: dict[int, Callable[[], None]], repeats: int) -> dict[int, float]:
    """The least CPU seconds of each, taken in turn."""
    best = dict.fromkeys(work, float("inf"))
    for _ in range(repeats):
        for size, run in work.items():
            started = time.process_time()
            run()
            best[size] = min(best[size], time.process_time() - started)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default=_native.supported_paths()[0], choices=_native.supported_paths())
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32", "int8"])
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--kv-heads", type=int, default=3)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=15)
    args = parser.parse_args()
    pool = _native.ThreadPool(1)
    memories = {size: make_memory(size, args) for size in SIZES}
    attention = least({size: lambda kv=kv: attend(kv, args, pool) for size, kv in memories.items()}, args.repeats)
    print(f"{args.isa}, {args.dtype}, {args.layers} layers, {args.kv_heads} KV heads of {args.head_dim}, 1 thread")
    print(f"{'tokens':>6}{'KiB':>8}{'attention us/token':>20}{'to 64':>8}{'copy us/block':>15}{'swap us/block':>15}")
    moves = min(args.repeats, 3)
    counts = {size: NUM_SEQS * CONTEXT // size + 1 for size in SIZES}
    copies = least({size: lambda s=size: copy(memories[s], counts[s]) for size in SIZES}, moves)
    for size, kv in memories.items():
        slots = np.ones((counts[size], kv.bytes_per_block), np.uint8)
        swapped = least({size: lambda kv=kv, slots=slots: swap(kv, slots)}, moves)[size]
        per_token = attention[size] / (NUM_SEQS * CONTEXT) * 1e6
        print(
            f"{size:6}{kv.bytes_per_block / 1024:8.1f}{per_token:20.4f}{attention[size] / attention[64]:8.3f}"
            f"{copies[size] / (counts[size] // 2) * 1e6:15.2f}{swapped / (counts[size] - 1) * 1e6:15.2f}"
        )


if __name__ == "__main__":
    main()
