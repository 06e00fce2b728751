"""`octavo figures`: the paper's figures, made by simulation and measurement here and now."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.output_files import check_folder
from octavo.cli.parser import integer
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.figures.figure import AnyFigure
    from octavo.figures.pool import Watcher


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help="figures to make, such as fig2 or 2 (default: all)")
    parser.add_argument("--list", action="store_true", help="list the figures and make none")
    parser.add_argument("--out", metavar="DIR", default="figures", help="folder to write to (default: figures)")
    parser.add_argument("--jobs", type=integer, metavar="N", help="worker processes (default: the cores it may use)")
    parser.add_argument("--short", action="store_true", help="shorter runs at fewer rates: seconds, and rough numbers")


def run(args: argparse.Namespace) -> int:
    from octavo.cli.machine import affinity, fingerprint
    from octavo.figures import catalogue, make
    from octavo.figures.page import lines

    figures = catalogue.load(args.names)
    if args.list:
        print("\n".join(f"{figure.name:<8}{figure.title}" for figure in figures))
        return 0
    num_workers = affinity() if args.jobs is None else args.jobs
    if num_workers < 1:
        raise ConfigError("jobs", args.jobs, "at least 1")
    make.check_drawing()
    check_folder("out", args.out)
    command = shlex.join(["octavo", "figures", *args.names, *(["--short"] if args.short else [])])
    folder, begin = Path(args.out), time.perf_counter()
    num_jobs = _count_jobs(figures, args.short)
    with _progress(num_jobs) as watch:
        reports = make.make(
            figures, folder, num_workers=num_workers, is_short=args.short, origin=_origin(command), watch=watch
        )
    wall_s = time.perf_counter() - begin
    make.write_summary(
        folder,
        command=command,
        num_workers=num_workers,
        num_jobs=num_jobs,
        wall_s=wall_s,
        is_short=args.short,
        machine=fingerprint(),
    )
    for report in reports:
        print("\n".join(lines(report)), end="\n\n")
    print(f"figures: {len(reports)}, runs: {num_jobs}, in {wall_s:.0f} s, in {folder}/: PNG, SVG, CSV, JSON each")
    return 0


def _origin(command: str) -> str:
    """Of what is measured: where, when, with what."""
    from octavo.cli.machine import affinity, commit, cpu_model, fingerprint

    made, day = fingerprint(), time.strftime("%Y-%m-%d", time.gmtime())
    machine = f"{cpu_model()} ({affinity()} cores, {_best_path(made)}, load average before {made['load_average']:.1f})"
    source = f", commit {found}" if (found := commit()) else ""
    return f"Measured on {machine} on {day} with Octavo {made['octavo']}{source}, by `{command}`."


def _best_path(made: dict[str, Any]) -> str:
    return next((name for name in ("avx512f", "avx2") if name in made["cpu_features"]), "no vector extension")


def _count_jobs(figures: list[AnyFigure], is_short: bool) -> int:
    from octavo.figures.make import plan

    return len({job for jobs in plan(figures, is_short).values() for job in jobs})


@contextmanager
def _progress(num_jobs: int) -> Iterator[Watcher]:
    """A bar on the terminal, counting runs; nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from octavo.figures.figure import Job
    from octavo.figures.pool import Done

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(file=sys.stderr), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=num_jobs)

        def watch(job: Job, done: Done) -> None:
            bar.update(task, advance=1, description=f"{job.label} took {done.seconds:.1f} s")

        yield watch
