"""`octavo rm`: delete models from the caches."""

from __future__ import annotations

import argparse

from octavo.cli.text import size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="NAME", help="catalogue name or hub id (see octavo list)")
    parser.add_argument("--download-dir", metavar="DIR", help="cache to delete from (default: those of octavo list)")


def run(args: argparse.Namespace) -> int:
    for name in args.models:
        print(f"{name}: freed {size(_remove(name, args.download_dir))}")
    return 0


def _remove(name: str, download_dir: str | None) -> int:
    from octavo.weights import catalogue, hub_cache, model_cache

    if catalogue.find(name) is None and "/" in name:
        return hub_cache.remove_hub(name, download_dir)
    return model_cache.remove(name, download_dir)
