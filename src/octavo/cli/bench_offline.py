"""`octavo bench offline`: throughput of a workload through the Python API, all requests at once."""

from __future__ import annotations

import argparse
import dataclasses
import time
from typing import Any

from octavo.cli.bench_arguments import add_result_arguments, add_workload_arguments, load_workload, workload_name
from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config, is_set, set_flag
from octavo.config import EngineConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", metavar="MODEL", help="catalogue name, folder, .gguf file or hub id")
    add_workload_arguments(parser)
    parser.add_argument(
        "--ignore-eos",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="force the workload's output lengths (default: on)",
    )
    add_result_arguments(parser)
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.cli.bench_report import result_path, save
    from octavo.cli.output_files import check_result
    from octavo.engine.llm import LLM
    from octavo.messages import SamplingParams

    check_result(args)
    if not is_set(args, "engine-host"):
        set_flag(args, "engine-host", "inline")
    config = engine_config(args, model=args.model_tag)
    with LLM(**flat(config)) as llm:
        items = load_workload(args, lambda: llm.tokenizer)
        sampling = [
            SamplingParams(
                n=item.n,
                temperature=item.temperature,
                max_tokens=item.output_token_count,
                ignore_eos=args.ignore_eos,
                seed=args.seed if item.temperature > 0 else None,
            )
            for item in items
        ]
        start = time.perf_counter()
        outputs = llm.generate([item.prompt for item in items], sampling)
        duration_s = time.perf_counter() - start
    figures = _figures(outputs, duration_s)
    _print(f"{workload_name(args)} on {config.model.model}, offline", figures)
    if args.save_result:
        path = result_path(args.result_dir, args.result_filename, f"offline-{workload_name(args)}")
        setup = {"model_id": config.model.model, "workload": workload_name(args), "num_prompts": len(items)}
        save(path, setup | {"seed": args.seed, "ignore_eos": args.ignore_eos}, figures)
        print(f"written to {path}")
    return 0


def flat(config: EngineConfig) -> dict[str, Any]:
    """The settings under their flat names, as `LLM` takes them."""
    groups = [getattr(config, group.name) for group in dataclasses.fields(config)]
    return {field.name: getattr(group, field.name) for group in groups for field in dataclasses.fields(group)}


def _figures(outputs: list[Any], duration_s: float) -> dict[str, Any]:
    num_input = sum(len(output.prompt_token_ids) for output in outputs)
    num_output = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return {
        "duration": duration_s,
        "completed": len(outputs),
        "total_input_tokens": num_input,
        "total_output_tokens": num_output,
        "request_throughput": len(outputs) / duration_s,
        "output_throughput": num_output / duration_s,
        "total_token_throughput": (num_input + num_output) / duration_s,
    }


def _print(title: str, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{figures['completed']}")
    table.add_row("duration, s", f"{figures['duration']:.2f}")
    table.add_row("input / output tokens", f"{figures['total_input_tokens']:,} / {figures['total_output_tokens']:,}")
    table.add_row("output tokens/s", f"{figures['output_throughput']:.1f}")
    table.add_row("input + output tokens/s", f"{figures['total_token_throughput']:.1f}")
    Console(highlight=False).print(table)
