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
from octavo.measure.attention import AttentionPass, Batch
from octavo.measure.paging import scattered
from octavo.measure.shapes import Shapes

NUM_SEQS, CONTEXT, HEADS_PER_KV_HEAD = 8, 512, 3
SIZES = (8, 16, 32, 64, 128)


def copy(kv: _native.KVMemory, num_blocks: int) -> None:
    pairs = np.random.default_rng(2).permutation(np.arange(1, num_blocks)).reshape(-1, 2)
    for source, destination in pairs.tolist():
        kv.copy_blocks([(source, destination)])


def swap(kv: _native.KVMemory, slots: npt.NDArray[np.uint8]) -> None:
    for block in range(1, len(slots)):
        kv.swap_out(block, slots[block])


def least(work: dict[int, Callable[[], object]], repeats: int) -> dict[int, float]:
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
    shapes = Shapes(
        num_heads=args.kv_heads * HEADS_PER_KV_HEAD,
        num_kv_heads=args.kv_heads,
        head_dim=args.head_dim,
        num_layers=args.layers,
    )
    batch = Batch(NUM_SEQS, CONTEXT)
    passes = {size: AttentionPass(shapes, batch, args.dtype, pool, args.isa, scattered(size)) for size in SIZES}
    memories = {size: each.kv for size, each in passes.items()}
    runs = {size: each.case().run for size, each in passes.items()}
    attention = least({size: lambda run=run: run(time.process_time) for size, run in runs.items()}, args.repeats)
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
