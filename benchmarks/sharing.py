"""KV memory that parallel samples and beams save by sharing blocks, on requests of Alpaca's lengths.

    python benchmarks/sharing.py [--requests 48] [--json FILE]

    saving = 1 - 1 / mean over steps of (blocks that running sequences name / blocks that they hold)

as the paper's figure 15 has it (Kwon et al. 2023, OPT-13B), with blocks of 16 tokens. A number of requests are kept in
flight, and steps count from when they are all there until the last has been sent. The real core decides in every case.

    parallel  needs no model: with `ignore_eos` no table depends on which tokens are drawn, so the worker only says that
              it drew one. All 1,000 lengths.
    beam      needs the real model: which beams survive decides what they share. Prompts are windows, of Alpaca's input
              lengths, of this repository's documentation; answers are as long as Alpaca's.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from octavo.cli.bench_report import save
from octavo.cli.bench_step import ReadyExecutor
from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.engine.build import build_engine, find_files
from octavo.engine.front_end import FrontEnd
from octavo.messages import EngineRequest, SamplingParams
from octavo.traces.lengths import alpaca

HERE = Path(__file__).parent
BLOCK_SIZE = 16
PAPER = {"parallel": {2: 6.1, 4: 8.5, 6: 9.8}, "beam": {2: 37.6, 4: 53.1, 6: 55.2}}
"""Percent, figure 15."""
MAX_NUM_SEQS, MAX_LEN, NUM_BLOCKS = 192, 2048, 16384
NUM_REQUESTS = 1000
"""The first of the bundled lengths: one of the two samples they are made of."""


def read_lengths() -> list[tuple[int, int]]:
    """(prompt tokens, answer tokens) of each request."""
    return alpaca()[:NUM_REQUESTS]


def text_prompts(lengths: list[tuple[int, int]], model: str) -> list[list[int]]:
    """Windows of the documentation, one after the other, of the wanted lengths."""
    config = EngineConfig.of(model=model)
    tokenizer = FrontEnd.load(config, find_files(config)).tokenizer
    pages = sorted((HERE.parent / "docs").glob("*.md"))
    text = "\n".join(page.read_text() for page in pages if page.name != "cli.md")
    tokens = tokenizer.encode(text, add_special_tokens=False)
    prompts, at = [], 0
    for length, _ in lengths:
        if at + length > len(tokens):
            at = 0
        prompts.append(tokens[at : at + length])
        at += length
    return prompts


def made_prompts(lengths: list[tuple[int, int]]) -> list[list[int]]:
    """No two alike, so that requests share nothing with each other."""
    return [[3 + i, *range(2, 1 + length)] for i, (length, _) in enumerate(lengths)]


def requests(
    prompts: list[list[int]], lengths: list[tuple[int, int]], mode: str, count: int
) -> Iterator[EngineRequest]:
    for number, (tokens, (_, max_tokens)) in enumerate(zip(prompts, lengths, strict=True)):
        how = {"n": count} if mode == "parallel" else {"n": 1, "beam_width": count}
        yield EngineRequest(
            request_id=number,
            token_ids=tokens,
            num_prompt_tokens=len(tokens),
            sampling=SamplingParams(max_tokens=max_tokens, ignore_eos=True, **how),
            seed=number,
            max_tokens=max_tokens,
        )


def measure(core: EngineCore, waiting: Iterator[EngineRequest], in_flight: int) -> dict[str, float]:
    """Keep `in_flight` requests running; the saving, in percent, and what else was seen."""
    ratios: list[float] = []
    left: dict[int, int] = {}
    more = True
    while more or core.has_work:
        while more and len(left) < in_flight:
            request = next(waiting, None)
            if request is None:
                more = False
            else:
                core.add(request)
                left[request.request_id] = request.sampling.n
        for delta in core.step(0.0):
            if delta.finish_reason is not None:
                left[delta.request_id] -= 1
                if not left[delta.request_id]:
                    del left[delta.request_id]
        stats = core.kv_stats()
        if more and stats.num_held_blocks:
            ratios.append(stats.num_references / stats.num_held_blocks)
    assert not core.audit()
    saving = 100 * (1 - 1 / statistics.fmean(ratios))
    return {"saving": saving, "steps": len(ratios), "preemptions": core.stats().num_preemptions}


def ready_core() -> EngineCore:
    executor = ReadyExecutor(NUM_BLOCKS)
    assert executor.kv_spec.block_size == BLOCK_SIZE
    return EngineCore(executor, max_num_seqs=MAX_NUM_SEQS, max_num_batched_tokens=2560, max_model_len=MAX_LEN)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="for the beams")
    parser.add_argument("--requests", type=int, default=48, help="beam requests per width (default: 48)")
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 6], metavar="N")
    parser.add_argument("--modes", nargs="+", default=list(PAPER), choices=list(PAPER))
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    lengths = read_lengths()
    found: dict[str, dict[int, Any]] = {mode: {} for mode in args.modes}
    for mode in args.modes:
        some = lengths if mode == "parallel" else lengths[: args.requests]
        prompts = made_prompts(some) if mode == "parallel" else text_prompts(some, args.model)
        for count in args.widths:
            if mode == "parallel":
                found[mode][count] = measure(ready_core(), requests(prompts, some, mode, count), 32)
            else:
                settings = {"block_size": BLOCK_SIZE, "num_blocks": 4096, "max_num_seqs": 64, "max_model_len": MAX_LEN}
                config = EngineConfig.of(model=args.model, **settings)
                core, _, close = build_engine(config, find_files(config))
                found[mode][count] = measure(core, requests(prompts, some, mode, count), 10)
                close()
            paper = PAPER[mode].get(count)
            beside = "" if paper is None else f"   paper {paper:.1f} %"
            print(f"{mode:<10}{count:>3}: {found[mode][count]['saving']:5.1f} % saved{beside}", flush=True)
    if args.json:
        save(Path(args.json), {"model": args.model, "load": os.getloadavg()[0]}, {"saving": found, "paper": PAPER})


if __name__ == "__main__":
    main()
