"""Speed of the linear kernels beside what the machine can do, measured in turn with them.

    python benchmarks/kernels.py [--isa avx512 ...] [--dtype bfloat16 ...] [--rows 1 16 ...] [--threads 2] [--json FILE]

A pass is every product of SmolLM2-135M for M rows: in each of 30 layers q/k/v (576 to 960), output (576 to 576), gate
and up (576 to 3072) and down (1536 to 576), then the logits (576 to 49152), each weight in memory of its own.

No pass can be faster than its floor: the larger of the weights' bytes over the bandwidth and its operations over the
peak of the multiply-add, both measured just before the pass. Machines change their speed from minute to minute, so
compare the column `of floor`, medians of one run, and not milliseconds of two.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

from octavo import _native
from octavo.cli.machine import fingerprint

NUM_LAYERS = 30
LAYER = [(960, 576), (576, 576), (3072, 576), (576, 1536)]
LOGITS = (49152, 576)


class Model:
    """Random packed weights of one path and dtype."""

    def __init__(self, isa: str, dtype: str, pool: _native.ThreadPool) -> None:
        self.isa, self.bf16, self.pool = isa, dtype == "bfloat16", pool
        arena, rng = _native.Arena(), np.random.default_rng(0)
        self.weights = []
        rows = {shape: rng.standard_normal(shape, np.float32) for shape in [*LAYER, LOGITS]}
        for n, k in [*LAYER * NUM_LAYERS, LOGITS]:
            matrix = _native.Matrix(arena, n, k, _native.WeightFormat.bfloat16() if self.bf16 else _native.WeightFormat.float32(), isa)
            data = rows[n, k]
            matrix.pack((data.view(np.uint32) >> 16).astype(np.uint16) if self.bf16 else data, 0, pool)
            self.weights.append(matrix)
        self.num_bytes = sum(w.nbytes for w in self.weights)
        self.flops_per_row = sum(2 * w.n * w.k for w in self.weights)

    def time_pass(self, num_rows: int) -> float:
        """Seconds of one pass."""
        rng = np.random.default_rng(1)
        x = {k: rng.standard_normal((num_rows, k), np.float32) for k in {w.k for w in self.weights}}
        out = {n: np.empty((num_rows, n), np.float32) for n in {w.n for w in self.weights}}
        for array in out.values():
            array.fill(0)  # resident before the clock starts
        start = time.perf_counter()
        for w in self.weights:
            _native.linear(x[w.k], w, [], out[w.n], self.pool)
        return time.perf_counter() - start


def measure(model: Model, num_rows: int, repeats: int) -> dict[str, float]:
    model.time_pass(num_rows)
    seconds, shares, bandwidths, peaks = [], [], [], []
    for _ in range(repeats):
        bandwidths.append(_native.read_bandwidth(model.pool) * 1e9)
        peaks.append(_native.dot_peak(model.pool, model.isa, model.bf16) * 1e9)
        seconds.append(model.time_pass(num_rows))
        floor = max(model.num_bytes / bandwidths[-1], num_rows * model.flops_per_row / peaks[-1])
        shares.append(floor / seconds[-1])
    s = statistics.median(seconds)
    return {
        "rows": num_rows,
        "ms": s * 1e3,
        "of_floor": statistics.median(shares),
        "gb_per_s": model.num_bytes / s / 1e9,
        "gflop_per_s": num_rows * model.flops_per_row / s / 1e9,
        "bandwidth_gb_per_s": statistics.median(bandwidths) / 1e9,
        "peak_gflop_per_s": statistics.median(peaks) / 1e9,
    }


def main() -> None:
    paths = _native.supported_paths()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isa", nargs="+", default=paths[:1], choices=paths)
    parser.add_argument("--dtype", nargs="+", default=["bfloat16", "float32"], choices=["bfloat16", "float32"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 8, 16, 64, 512])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", metavar="FILE", help="write the figures with the machine's fingerprint")
    args = parser.parse_args()
    pool = _native.ThreadPool(args.threads)
    results = []
    for isa in args.isa:
        for dtype in args.dtype:
            model = Model(isa, dtype, pool)
            print(f"{isa}, {dtype}, {pool.size} threads, {model.num_bytes / 1e6:.0f} MB of weights")
            print(f"{'rows':>5}{'ms':>10}{'of floor':>10}{'GB/s':>8}{'of':>8}{'GFLOP/s':>9}{'of':>7}")
            for num_rows in args.rows:
                r = measure(model, num_rows, args.repeats)
                print(
                    f"{num_rows:5}{r['ms']:10.2f}{r['of_floor']:10.2f}{r['gb_per_s']:8.1f}"
                    f"{r['bandwidth_gb_per_s']:8.1f}{r['gflop_per_s']:9.0f}{r['peak_gflop_per_s']:7.0f}",
                    flush=True,
                )
                results.append({"isa": isa, "dtype": dtype, "threads": pool.size, **r})
    if args.json:
        Path(args.json).write_text(json.dumps({"machine": fingerprint(), "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
