"""`octavo inspect`: what a checkpoint holds and what it needs, from its headers alone."""

from __future__ import annotations

import argparse
import json

from octavo.cli.flags import ENGINE_GROUPS, add_flags, engine_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model_tag",
        nargs="?",
        metavar="MODEL",
        help="catalogue name, folder, .gguf file, hub id, or a config.json alone",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_flags(parser, ENGINE_GROUPS)


def run(args: argparse.Namespace) -> int:
    from octavo.cli.inspect_model import inspect_model

    report = inspect_model(engine_config(args, model=args.model_tag))
    if args.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        from octavo.cli.inspect_report import print_report

        print_report(report)
    return 0
