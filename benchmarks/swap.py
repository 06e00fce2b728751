"""Swapping a sequence out and in against computing it again, by block size (the paper's figure 19a, on this CPU).

    python benchmarks/swap.py [MODEL] [--tokens 256] [--json FILE]

One sequence in the real worker, by plans made by hand: its blocks go to the host tier, come back into other blocks, and
its tokens are computed anew in one step. Block sizes take turns and the least time of each counts, in milliseconds by
the worker's own clock, which is what the engine chooses by.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from octavo.cli.bench_report import save
from octavo.config import EngineConfig
from octavo.core.step import RowSetup, StepPlan, StepResult
from octavo.engine.build import find_files
from octavo.executor.local import LocalExecutor
from octavo.messages import SamplingParams

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Worker:
    """A worker with one row. Blocks `1 .. columns` and `columns + 1 .. 2 * columns` hold it in turn."""

    def __init__(self, model: str, block_size: int, num_tokens: int) -> None:
        self.columns = -(-num_tokens // block_size)
        config = EngineConfig.of(
            model=model,
            block_size=block_size,
            num_blocks=2 * self.columns + 1 + num_tokens // block_size,
            max_num_seqs=1,
            max_num_batched_tokens=max(512, num_tokens),
            swap_space_bytes=256 << 20,
        )
        self.executor = LocalExecutor.load(config, find_files(config))
        self._tokens = [1000 + i * i % 5000 for i in range(num_tokens)]
        self._num_plans = 0

    def _submit(self, **parts: object) -> StepResult:
        self._num_plans += 1
        plan = StepPlan(self._num_plans, [], [], [], [], [], [])
        for name, value in parts.items():
            setattr(plan, name, value)
        return self.executor.submit(plan).result()

    def turn(self) -> dict[str, float]:
        """Milliseconds to compute the sequence, to swap it out, and to bring it back."""
        setup = RowSetup(
            row=0,
            token_ids=self._tokens,
            num_prompt_tokens=len(self._tokens),
            num_computed_tokens=0,
            sampling=SamplingParams(temperature=0),
            seed=0,
            sequence_index=0,
        )
        table = [(0, 0, column, column + 1) for column in range(self.columns)]
        computed = self._submit(rows=[0], num_new_tokens=[len(self._tokens)], setups=[setup], table_growth=table)
        out = self._submit(swap_out=[(column + 1, column) for column in range(self.columns)], released_rows=[0])
        slots = [(column, self.columns + 1 + column) for column in range(self.columns)]
        back = self._submit(swap_in=slots, discards=[])
        self._submit(discards=list(range(self.columns)))
        assert not out.failed_swap_out and not back.failed_swap_in
        return {"recompute": computed.forward_s * 1e3, "out": out.swap_s * 1e3, "in": back.swap_s * 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=256, help="of the sequence (default: 256)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), metavar="B", help="tokens per block")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    workers = {size: Worker(args.model, size, args.tokens) for size in args.sizes}
    turns = [{size: worker.turn() for size, worker in workers.items()} for _ in range(args.repeats + 1)][1:]
    best = {s: {name: min(turn[s][name] for turn in turns) for name in ("out", "in", "recompute")} for s in workers}
    print(f"{args.model}, {args.tokens} tokens, least of {args.repeats}; load average {os.getloadavg()[0]:.2f}")
    print(f"{'block':>6}{'out, ms':>10}{'in':>8}{'both':>8}{'recompute':>11}{'recompute/both':>16}")
    for size, row in best.items():
        both = row["out"] + row["in"]
        ratio = row["recompute"] / both
        print(f"{size:>6}{row['out']:>10.2f}{row['in']:>8.2f}{both:>8.2f}{row['recompute']:>11.1f}{ratio:>16.1f}")
    for worker in workers.values():
        worker.executor.close()
    if args.json:
        save(Path(args.json), {"model": args.model, "load": os.getloadavg()[0]}, {"least_ms": best, "turns": turns})


if __name__ == "__main__":
    main()
