"""What serving costs beside computing: the chat workload through the Python API and over HTTP, in turns.

    python benchmarks/http_cost.py [MODEL] [--rounds 5] [--concurrency 64] [--num-prompts 192] [--json FILE]

Each round runs `octavo bench offline` and `octavo bench serve` on the same prompts, with as many sequences at once in
both. The ratio, served over offline, is taken within a round. The load generator runs beside the server and takes its
share of the machine: `benchmarks/client_cost.py` tells how much.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

WAYS = ("offline", "serve")


def throughput(way: str, model: str, concurrency: int, num_prompts: int) -> float:
    """Output tokens a second."""
    flags = ["--dataset-name", "chat", "--num-prompts", str(num_prompts), "--max-num-seqs", str(concurrency)]
    if way == "serve":
        flags += ["--max-concurrency", str(concurrency)]
    with tempfile.TemporaryDirectory() as folder:
        result = ["--save-result", "--result-dir", folder, "--result-filename", "figures.json"]
        command = [sys.executable, "-m", "octavo.cli.main", "bench", way, model, *flags, *result]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        figures = json.loads((Path(folder) / "figures.json").read_text())
    return float(figures["output_throughput"])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--num-prompts", type=int, default=192)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every round's figures")
    args = parser.parse_args()
    rounds = []
    for number in range(args.rounds):
        order = WAYS if number % 2 == 0 else WAYS[::-1]
        found = {way: throughput(way, args.model, args.concurrency, args.num_prompts) for way in order}
        rounds.append(found)
        print(
            f"round {number + 1}: offline {found['offline']:.1f}, served {found['serve']:.1f} tok/s, "
            f"ratio {found['serve'] / found['offline']:.3f}",
            flush=True,
        )
    ratios = [found["serve"] / found["offline"] for found in rounds]
    medians = {way: statistics.median(found[way] for found in rounds) for way in WAYS}
    print(
        f"medians: offline {medians['offline']:.1f}, served {medians['serve']:.1f} tok/s; "
        f"ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
    )
    if args.json is not None:
        args.json.write_text(json.dumps({"model": args.model, "rounds": rounds, "medians": medians}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
