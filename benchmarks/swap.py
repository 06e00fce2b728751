"""Swapping a sequence out and in against computing it again, by block size (the paper's figure 19a, on this CPU).

    python benchmarks/swap.py [MODEL] [--tokens 256] [--json FILE]

What is measured is told in octavo/measure/swapping.py; `octavo figures 19a` draws it beside the model of an A100, with
weights out of the air. Here it is a real model, and the least time of each block size counts, in milliseconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from octavo.cli.bench_report import save
from octavo.measure.model import loaded
from octavo.measure.swapping import BLOCK_SIZES, swap_turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--tokens", type=int, default=256, help="of the sequence (default: 256)")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(BLOCK_SIZES), metavar="B", help="tokens per block")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    model = loaded(args.model)
    turns = swap_turns(model, args.tokens, args.sizes, args.repeats)
    model.close()
    print(f"{args.model}, {args.tokens} tokens, least of {args.repeats}; load average {os.getloadavg()[0]:.2f}")
    print(f"{'block':>6}{'out, ms':>10}{'in':>8}{'both':>8}{'recompute':>11}{'recompute/both':>16}")
    for size, own in turns.items():
        out, back, again = (min(getattr(turn, name) for turn in own) * 1e3 for name in ("out_s", "in_s", "recompute_s"))
        both = out + back
        print(f"{size:>6}{out:>10.2f}{back:>8.2f}{both:>8.2f}{again:>11.1f}{again / both:>16.1f}")
    if args.json:
        seconds = {size: [dataclasses.asdict(turn) for turn in own] for size, own in turns.items()}
        save(Path(args.json), {"model": args.model, "load": os.getloadavg()[0]}, {"turns": seconds})


if __name__ == "__main__":
    main()
