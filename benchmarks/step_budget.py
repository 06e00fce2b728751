"""The prefix workload by tokens per step (`--max-num-batched-tokens`), cache on and off, in CPU time.

    python benchmarks/step_budget.py [MODEL] [--budgets 512 256 128] [--json FILE]

The requests of benchmarks/prefix.py, 16 at once, in one process without HTTP, on one compute thread. The clock is the
CPU time of the process, so that it says the same on a busy machine. "first wave" are the first 16 requests, which find
nothing in the cache; the total is the time of the whole workload.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path

from octavo.cli.bench_report import save
from octavo.cli.bench_workload import CONCURRENCY, synthetic
from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.engine.build import build_engine, find_files
from octavo.engine.front_end import FrontEnd
from octavo.messages import EngineRequest, SamplingParams

FIGURES = ("median", "mean", "first wave", "total")


def request(number: int, tokens: list[int], max_tokens: int) -> EngineRequest:
    sampling = SamplingParams(temperature=0, ignore_eos=True, max_tokens=max_tokens)
    return EngineRequest(
        request_id=number,
        token_ids=tokens,
        num_prompt_tokens=len(tokens),
        sampling=sampling,
        seed=0,
        max_tokens=max_tokens,
    )


def first_tokens(core: EngineCore, requests: list[EngineRequest], in_flight: int) -> dict[str, float]:
    """CPU seconds to the first token, by figure."""
    started: dict[int, float] = {}
    took: dict[int, float] = {}
    left = requests[::-1]
    num_running = 0
    begin = time.process_time()
    while left or core.has_work:
        while left and num_running < in_flight:
            started[left[-1].request_id] = time.process_time()
            core.add(left.pop())
            num_running += 1
        for delta in core.step(0.0):
            if delta.token_ids and delta.request_id not in took:
                took[delta.request_id] = time.process_time() - started[delta.request_id]
            num_running -= delta.finish_reason is not None
    total = time.process_time() - begin
    wave = [took[request.request_id] for request in requests[:in_flight]]
    values = statistics.median(took.values()), statistics.fmean(took.values()), statistics.median(wave), total
    return dict(zip(FIGURES, values, strict=True))


def run(model: str, budget: int, count: int, is_on: bool) -> dict[str, float]:
    config = EngineConfig.of(
        model=model,
        enable_prefix_caching=is_on,
        max_num_batched_tokens=budget,
        num_threads=1,
        kv_cache_memory_bytes=1 << 30,
    )
    files = find_files(config)
    tokenizer = FrontEnd.load(config, files).tokenizer
    items = synthetic("prefix", tokenizer, count=count)
    core, _, close = build_engine(config, files)
    core.add(request(0, [5] * 40, 4))
    while core.has_work:  # the first steps touch memory for the first time
        core.step(0.0)
    requests = [request(i, tokenizer.encode(item.prompt), item.output_token_count) for i, item in enumerate(items, 1)]
    found = first_tokens(core, requests, CONCURRENCY["prefix"])
    close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--budgets", type=int, nargs="+", default=[512, 256, 128], metavar="N")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    print(f"{'tokens per step':<17}{'cache':<7}" + "".join(f"{name:>12}" for name in FIGURES))
    table = {}
    for budget in args.budgets:
        on, off = (run(args.model, budget, args.requests, is_on) for is_on in (True, False))
        ratio = {name: off[name] / on[name] for name in FIGURES}
        table[budget] = {"on": on, "off": off, "off/on": ratio}
        for name, row in table[budget].items():
            print(f"{budget:<17}{name:<7}" + "".join(f"{row[figure]:>12.3f}" for figure in FIGURES), flush=True)
    if args.json:
        save(Path(args.json), {"model": args.model, "requests": args.requests}, {"cpu_seconds": table})


if __name__ == "__main__":
    main()
