"""`octavo pull`: fetch a model, or see that it is here."""

from __future__ import annotations

import argparse

from octavo.cli.flags import add_flags, read_group
from octavo.config import ModelConfig

_WITHOUT = tuple(name for name in ModelConfig.__dataclass_fields__ if name not in ("revision", "download_dir"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="NAME", help="catalogue name (see octavo list) or hub id")
    add_flags(parser, (ModelConfig,), without=_WITHOUT)


def run(args: argparse.Namespace) -> int:
    from octavo.weights.sources import resolve

    config = read_group(ModelConfig, args)
    files = resolve(args.model, revision=config.revision, download_dir=config.download_dir)
    print(f"{files.name}: {files.path}")
    return 0
