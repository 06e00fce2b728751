"""`octavo list`: the catalogue, and what of it is here."""

from __future__ import annotations

import argparse
import json

from octavo.cli.text import megabytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--download-dir", metavar="DIR", help="model cache to look at (default: the user cache)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from octavo.weights.catalogue import CATALOGUE
    from octavo.weights.model_cache import list_cached, models_dir

    here = {model.name: model for model in list_cached(args.download_dir)}
    rows = [
        {
            "name": entry.name,
            "description": entry.description,
            "license": entry.license,
            "bytes": here[entry.name].size if entry.name in here else entry.size,
            "cached": entry.name in here,
            "path": str(here[entry.name].path) if entry.name in here else None,
        }
        for entry in CATALOGUE
    ]
    if args.json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        state = "here" if row["cached"] else "to fetch"
        print(f"{row['name']:<16}{state:<10}{megabytes(int(row['bytes'])):<10}{row['description']} ({row['license']})")
    print(f"cache: {models_dir(args.download_dir)}")
    return 0
