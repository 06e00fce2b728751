"""`octavo rm`: delete a catalogue model from the cache."""

from __future__ import annotations

import argparse

from octavo.cli.text import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="NAME", help="catalogue name (see octavo list)")
    parser.add_argument("--download-dir", metavar="DIR", help="model cache to delete from (default: the user cache)")


def run(args: argparse.Namespace) -> int:
    from octavo.weights.model_cache import remove

    print(f"freed {size(remove(args.model, args.download_dir))}")
    return 0
