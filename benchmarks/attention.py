"""Speed of the attention kernel beside the machine's memory bandwidth, measured in turn with it.

    python benchmarks/attention.py [--isa avx512] [--threads 2] [--dtype bfloat16 int8]

SmolLM2-135M's shape: 3 KV heads of 64 dims, 9 query heads, 30 layers, blocks of 16 tokens in random order. Machines
change their speed from minute to minute, so compare the columns of one run: `of roof` is the kernel's GB/s over the
read bandwidth measured just before it, `ratio` its time over that of the first dtype, measured in turn.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from octavo import _native

NUM_LAYERS, NUM_KV_HEADS, NUM_HEADS, HEAD_DIM, BLOCK_SIZE = 30, 3, 9, 64, 16
WIDTH = NUM_HEADS * HEAD_DIM

# (what, sequences, context, new tokens per sequence)
CASES = [
    ("decode", 1, 512, 1),
    ("decode", 1, 4096, 1),
    ("decode", 16, 512, 1),
    ("decode", 16, 4096, 1),
    ("prefill", 1, 512, 512),
    ("prefill", 1, 4096, 512),
]


def make_memory(num_seqs: int, context: int, dtype: str) -> _native.KVMemory:
    """A full KV memory: every block of every layer holds finite values, blocks in random order."""
    columns = -(-context // BLOCK_SIZE)
    num_blocks = num_seqs * columns + 1
    kv = _native.KVMemory(
        layer_groups=(0,) * NUM_LAYERS,
        num_kv_heads=NUM_KV_HEADS,
        head_dim=HEAD_DIM,
        dtype=dtype,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        max_num_seqs=num_seqs,
        max_blocks_per_seq=columns,
    )
    rng = np.random.default_rng(0)
    pool = _native.ThreadPool(1)
    key, value = rng.standard_normal((2, BLOCK_SIZE, NUM_KV_HEADS * HEAD_DIM), np.float32)
    kv.block_tables[0, 0, 0] = 1
    for layer in range(NUM_LAYERS):
        tokens = np.arange(BLOCK_SIZE, dtype=np.int32)
        _native.write_kv(kv, layer, key, value, tokens, np.zeros_like(tokens), pool, "portable")
    data = kv.export_block(1)
    for block in range(1, num_blocks):
        kv.import_block(block, data)
    kv.block_tables[0] = rng.permutation(np.arange(1, num_blocks)).reshape(num_seqs, columns)
    return kv


def measure(
    kv: _native.KVMemory,
    num_seqs: int,
    context: int,
    new: int,
    pool: _native.ThreadPool,
    isa: str,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Seconds of one pass over all layers."""
    query = np.random.default_rng(1).standard_normal((num_seqs * new, WIDTH), np.float32)
    out = np.empty_like(query)
    rows = np.arange(num_seqs, dtype=np.int32)
    starts = np.arange(num_seqs + 1, dtype=np.int32) * new
    lengths = np.full(num_seqs, context, np.int32)
    start = clock()
    for layer in range(NUM_LAYERS):
        _native.attention(kv, layer, query, out, NUM_HEADS, HEAD_DIM**-0.5, 0, rows, starts, lengths, pool, isa)
    return clock() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", default=_native.supported_paths()[0], choices=_native.supported_paths())
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "int8"], choices=["bfloat16", "float32", "int8"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cpu-time", action="store_true", help="not wall time; on a busy machine, with one thread")
    args = parser.parse_args()
    if args.cpu_time and args.threads != 1:
        parser.error("--cpu-time needs --threads 1: threads that wait spend time too")
    clock = time.process_time if args.cpu_time else time.perf_counter
    pool = _native.ThreadPool(args.threads)
    print(f"{args.isa}, {pool.size} threads, {NUM_LAYERS} layers; times over those of {args.dtype[0]}")
    names = ("ms", "ratio", "GB/s", "of roof", "GFLOP/s")
    print(f"{'case':8}{'seqs':>6}{'context':>9}{'new':>5} {'dtype':10}" + "".join(f"{name:>9}" for name in names))
    for case in CASES:
        compare(*case, args.dtype, args.repeats, pool, args.isa, clock)


def compare(
    what: str,
    num_seqs: int,
    context: int,
    new: int,
    dtypes: list[str],
    repeats: int,
    pool: _native.ThreadPool,
    isa: str,
    clock: Callable[[], float],
) -> None:
    """Measure one case with each dtype in turn, and print a line for each."""
    memories = {dtype: make_memory(num_seqs, context, dtype) for dtype in dtypes}
    seconds: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    roofs = []
    for kv in memories.values():
        measure(kv, num_seqs, context, new, pool, isa)
    for _ in range(repeats):
        roofs.append(_native.read_bandwidth(pool))
        for dtype, kv in memories.items():
            seconds[dtype].append(measure(kv, num_seqs, context, new, pool, isa, clock))
    seen = num_seqs * sum(range(context - new + 1, context + 1))
    flops = NUM_LAYERS * seen * 4 * NUM_HEADS * HEAD_DIM
    for dtype, kv in memories.items():
        s = statistics.median(seconds[dtype])
        ratio = statistics.median(a / b for a, b in zip(seconds[dtype], seconds[dtypes[0]], strict=True))
        gbs = num_seqs * context / BLOCK_SIZE * kv.bytes_per_block / s / 1e9
        share = "-" if clock is time.process_time else f"{gbs / statistics.median(roofs):.2f}"  # a roof in wall time
        print(
            f"{what:8}{num_seqs:6}{context:9}{new:5} {dtype:10}{s * 1e3:9.2f}{ratio:9.2f}{gbs:9.1f}"
            f"{share:>9}{flops / s / 1e9:9.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
