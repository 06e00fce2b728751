"""Arguments that `bench serve` and `bench offline` share."""

from __future__ import annotations

import argparse
from typing import Any

from octavo.cli.bench_workload import CONCURRENCY, Item, read_jsonl, synthetic
from octavo.cli.parser import integer


def add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Workload")
    group.add_argument(
        "--dataset-name",
        choices=[*CONCURRENCY, "custom"],
        default="chat",
        help="a workload made from the seed, or custom for --dataset-path (default: chat)",
    )
    group.add_argument("--dataset-path", metavar="FILE", help="workload as JSONL; implies --dataset-name custom")
    group.add_argument("--num-prompts", type=integer, metavar="N", help="requests to send (default: the workload's)")
    group.add_argument("--seed", type=integer, default=0, metavar="N", help="seed of words and arrivals (default: 0)")


def add_result_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("Result")
    group.add_argument("--save-result", action="store_true", help="write the figures to a JSON file")
    group.add_argument("--result-dir", metavar="DIR", help="folder of that file (default: the current one)")
    group.add_argument("--result-filename", metavar="NAME", help="its name (default: made from the run and the time)")


def workload_name(args: argparse.Namespace) -> str:
    return "custom" if args.dataset_path else str(args.dataset_name)


def load_workload(args: argparse.Namespace, tokenizer: Any) -> list[Item]:
    """The items to send. `tokenizer` is called for a tokenizer when the workload has to be made.

    Raises:
        ConfigError: For a file that is not a workload, or a tokenizer that cannot make one.
    """
    if not args.dataset_path:
        if args.dataset_name == "custom":
            from octavo.errors import ConfigError

            raise ConfigError("dataset_path", None, "given with --dataset-name custom")
        return synthetic(args.dataset_name, tokenizer(), args.seed, args.num_prompts)
    items = read_jsonl(args.dataset_path)
    wanted = args.num_prompts or len(items)
    return [items[i % len(items)] for i in range(wanted)]


def concurrency(args: argparse.Namespace) -> int | None:
    """Requests in flight: as asked; else the workload's own for a closed loop, and no limit when a rate is given."""
    if args.max_concurrency:
        return int(args.max_concurrency)
    return CONCURRENCY.get(workload_name(args), 16) if args.request_rate == float("inf") else None
