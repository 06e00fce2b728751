"""`octavo list`: the catalogue, and what of it is here."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from octavo.cli.text import size

if TYPE_CHECKING:
    from octavo.weights.catalogue import CatalogueEntry
    from octavo.weights.model_cache import CachedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--download-dir", metavar="DIR", help="model cache to look at (default: the user cache)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from octavo.weights.catalogue import CATALOGUE
    from octavo.weights.model_cache import list_cached, models_dir

    here = {model.name: model for model in list_cached(args.download_dir)}
    if args.json:
        print(json.dumps([_row(entry, here.get(entry.name)) for entry in CATALOGUE], indent=2))
        return 0
    for entry in CATALOGUE:
        state = "here" if entry.name in here else "to fetch"
        print(f"{entry.name:<16}{state:<10}{size(entry.size):<10}{entry.description} ({entry.license})")
    print(f"cache: {models_dir(args.download_dir)}")
    return 0


def _row(entry: CatalogueEntry, cached: CachedModel | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "license": entry.license,
        "bytes": entry.size,
        "path": None if cached is None else str(cached.path),
    }
