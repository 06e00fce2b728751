"""`octavo bench latency`: one batch of fixed size and lengths through the Python API, again and again.

Each iteration answers a batch twice, with other random prompts each time: once for a single token, whose end is the
time to first token of the whole batch, and once in full length. Flags are named as those of `vllm bench latency`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from typing import Any

from octavo.cli.bench_arguments import add_result_arguments
from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, is_set, set_flag
from octavo.cli.parser import integer
from octavo.errors import ConfigError

PERCENTILES = (10, 25, 50, 75, 90, 99)
SERIES = {
    "latency": "whole batch",
    "ttft": "first token",
    "tpot": "per token after it",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    group = parser.add_argument_group("Batch")
    group.add_argument("--input-len", type=integer, default=32, metavar="N", help="prompt tokens (default: 32)")
    group.add_argument("--output-len", type=integer, default=128, metavar="N", help="answer tokens (default: 128)")
    group.add_argument("--batch-size", type=integer, default=8, metavar="N", help="prompts (default: 8)")
    group.add_argument("--n", type=integer, default=1, metavar="N", help="answers to each prompt (default: 1)")
    group.add_argument(
        "--num-iters-warmup", type=integer, default=3, metavar="N", help="iterations before the clock (default: 3)"
    )
    group.add_argument("--num-iters", type=integer, default=10, metavar="N", help="iterations timed (default: 10)")
    group.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of the prompts (default: 0)")
    add_result_arguments(parser)
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.cli.bench_offline import flat
    from octavo.cli.bench_report import result_path, save
    from octavo.cli.output_files import check_result
    from octavo.engine.llm import LLM

    _check(args)
    check_result(args)
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "inline")
    if not is_set(args, "max-num-seqs"):
        set_flag(args, "max-num-seqs", max(64, args.batch_size * args.n))
    config = engine_config(args, model=args.model_tag)
    with LLM(**flat(config)) as llm:
        series = measure(llm, args)
        info = llm.info
    figures = summarize(series)
    shape = f"{args.batch_size} x ({args.input_len} in, {args.output_len} out)"
    print_table(f"{info.model}, {info.weight_dtype} weights, {info.kv_dtype} KV: {shape}", figures)
    if args.save_result:
        path = result_path(args.result_dir, args.result_filename, "latency")
        names = ("input_len", "output_len", "batch_size", "n", "num_iters_warmup", "num_iters", "seed")
        setup = {name: getattr(args, name) for name in names}
        about = {"model_id": info.model, "weight_dtype": info.weight_dtype, "kv_dtype": info.kv_dtype}
        save(path, about | setup, figures)
        print(f"written to {path}")
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("input_len", "output_len", "batch_size", "n", "num_iters"):
        if getattr(args, name) < 1:
            raise ConfigError(name, getattr(args, name), "at least 1")


def measure(llm: Any, args: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds by series, one of each an iteration."""
    rng = random.Random(args.seed)
    series: dict[str, list[float]] = {name: [] for name in SERIES}
    for iteration in range(-args.num_iters_warmup, args.num_iters):
        ttft = time_batch(llm, rng, args, 1)
        latency = time_batch(llm, rng, args, args.output_len)
        if iteration < 0:
            continue
        series["latency"].append(latency)
        series["ttft"].append(ttft)
        if args.output_len > 1:
            series["tpot"].append((latency - ttft) / (args.output_len - 1))
    return series


def time_batch(llm: Any, rng: random.Random, args: argparse.Namespace, output_len: int) -> float:
    """Seconds to answer random prompts with `output_len` tokens each."""
    from octavo.messages import SamplingParams

    vocabulary = llm.info.vocab_size
    prompts = [[rng.randrange(vocabulary) for _ in range(args.input_len)] for _ in range(args.batch_size)]
    # Answers to one prompt have to be drawn, or they would all be the same.
    sampling = SamplingParams(
        n=args.n,
        temperature=0.0 if args.n == 1 else 1.0,
        max_tokens=output_len,
        ignore_eos=True,
        detokenize=False,
        seed=args.seed,
    )
    start = time.perf_counter()
    llm.generate(prompts, sampling)
    return time.perf_counter() - start


def summarize(series: dict[str, list[float]]) -> dict[str, Any]:
    """Mean and percentiles of each series, in ms, and every iteration's value."""
    from octavo.cli.bench_report import percentile

    figures: dict[str, Any] = {}
    for name, values in series.items():
        ms = [value * 1e3 for value in values]
        figures[f"mean_{name}_ms"] = statistics.fmean(ms) if ms else None
        figures |= {f"p{p}_{name}_ms": percentile(ms, p) for p in PERCENTILES}
        figures[f"{name}_ms"] = ms
    return figures


def print_table(title: str, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("ms")
    for heading in ("mean", *(f"p{p}" for p in PERCENTILES)):
        table.add_column(heading, justify="right")
    for name, about in SERIES.items():
        keys = [f"mean_{name}_ms", *(f"p{p}_{name}_ms" for p in PERCENTILES)]
        table.add_row(about, *("-" if figures[key] is None else f"{figures[key]:.2f}" for key in keys))
    Console(highlight=False).print(table)
