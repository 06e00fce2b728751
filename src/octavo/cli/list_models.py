"""`octavo list`: the catalogue, what of it is here, and hub models that are."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

from octavo.cli.text import size

if TYPE_CHECKING:
    from octavo.weights.catalogue import CatalogueEntry
    from octavo.weights.hub_cache import HubModel
    from octavo.weights.model_cache import CachedModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "cache to look at (default: the user cache, and the hub's own)"
    parser.add_argument("--download-dir", metavar="DIR", help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from octavo.weights.catalogue import CATALOGUE
    from octavo.weights.hub_cache import list_hub
    from octavo.weights.model_cache import list_cached, models_dir

    here = {model.name: model for model in list_cached(args.download_dir)}
    hub = list_hub(args.download_dir)
    if args.json:
        rows = [_row(entry, here.get(entry.name)) for entry in CATALOGUE] + [_hub_row(model) for model in hub]
        print(json.dumps(rows, indent=2))
        return 0
    width = max(16, *(len(model.name) + 2 for model in hub)) if hub else 16
    for entry in CATALOGUE:
        about = f"{entry.description} ({entry.license})"
        print(f"{entry.name:<{width}}{_state(here.get(entry.name)):<10}{size(entry.size):<10}{about}")
    for model in hub:
        print(f"{model.name:<{width}}{'here':<10}{size(model.size):<10}from the hub")
    print(f"cache: {models_dir(args.download_dir)}")
    return 0


def _state(cached: CachedModel | None) -> str:
    if cached is None:
        return "to fetch"
    return "here" if cached.verified else "unchecked"


def _hub_row(model: HubModel) -> dict[str, Any]:
    return {
        "name": model.name,
        "description": "from the hub",
        "license": None,
        "bytes": model.size,
        "path": str(model.path),
    }


def _row(entry: CatalogueEntry, cached: CachedModel | None) -> dict[str, Any]:
    return {
        "name": entry.name,
        "description": entry.description,
        "license": entry.license,
        "bytes": entry.size,
        "path": None if cached is None else str(cached.path),
    }
