"""`octavo bench kernels`: each kernel beside its floor, the least time that bandwidth and arithmetic allow.

Machines change their speed from minute to minute, so memory bandwidth, the peak of the arithmetic and the cost of an
empty parallel loop are taken right before every timing. Compare shares and ratios, not milliseconds of two runs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from octavo.cli.output_files import check_file
from octavo.cli.parser import integer
from octavo.errors import ConfigError

KERNELS = ("linear", "attention", "rows")
_ISAS = ("avx512", "avx2", "portable")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from octavo.measure.attention import KV_ARITHMETIC
    from octavo.measure.linear import FORMATS

    parser.add_argument(
        "model_tag", nargs="?", metavar="MODEL", help="model whose shapes are taken (default: SmolLM2-135M's, built in)"
    )
    group = parser.add_argument_group("What to time")
    group.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS), help="(default: all)")
    group.add_argument(
        "--weights", nargs="+", choices=list(FORMATS), default=list(FORMATS), help="of linear (default: all)"
    )
    group.add_argument(
        "--kv-cache-dtype",
        nargs="+",
        choices=list(KV_ARITHMETIC),
        default=["bfloat16", "int8"],
        help="(default: the first two)",
    )
    group.add_argument(
        "--rows", nargs="+", type=integer, default=[1, 4, 8, 16, 64, 512], metavar="N",
        help="rows M of linear and of the row kernels (default: 1 4 8 16 64 512)",
    )  # fmt: skip
    group.add_argument(
        "--max-context", type=integer, default=4096, metavar="N",
        help="leave out attention over more tokens; 16 sequences of 4096 take gigabytes (default: 4096)",
    )  # fmt: skip
    group.add_argument("--shape", default="", metavar="LIST", help="other sizes, such as num_layers=4,hidden_size=1024")
    group = parser.add_argument_group("How")
    group.add_argument("--isa", nargs="+", choices=_ISAS, help="kernel paths (default: the best of this CPU)")
    group.add_argument("--num-threads", type=integer, default=0, metavar="N", help="(default: the cores it may use)")
    group.add_argument("--repeats", type=integer, default=5, metavar="N", help="medians of so many (default: 5)")
    group.add_argument(
        "--cpu-time", action="store_true", help="not wall time: on a busy machine, with --num-threads 1; no shares then"
    )
    group.add_argument("--json", metavar="FILE", help="write the figures with the machine's fingerprint")


def run(args: argparse.Namespace) -> int:
    from octavo import _native
    from octavo.measure.shapes import Shapes

    _check(args)
    check_file("json", args.json)
    paths = _native.supported_paths()
    for isa in args.isa or paths[:1]:
        if isa not in paths:
            raise ConfigError("isa", isa, f"one that this CPU has: {', '.join(paths)}")
    shapes = (Shapes.of_model(args.model_tag) if args.model_tag else Shapes()).changed(args.shape)
    pool = _native.ThreadPool(args.num_threads)
    rows: list[dict[str, Any]] = []
    for isa in args.isa or paths[:1]:
        print(f"{isa}, {pool.size} threads, {args.model_tag or 'SmolLM2-135M'}'s shapes {args.shape}".rstrip())
        for kernels in args.kernels:
            print(f"\n{_HEAD}")
            for row in _measure(kernels, args, shapes, pool, isa):
                rows.append({"isa": isa, "num_threads": pool.size, **row})
                print(_line(row), flush=True)
    if args.json is not None:
        _write(Path(args.json), args, shapes, rows)
    return 0


def _check(args: argparse.Namespace) -> None:
    for name in ("repeats", "max_context"):
        if getattr(args, name) < 1:
            raise ConfigError(name, getattr(args, name), "at least 1")
    if min(args.rows) < 1:
        raise ConfigError("rows", min(args.rows), "at least 1")
    if args.cpu_time and args.num_threads != 1:
        raise ConfigError("num_threads", args.num_threads, "1 with --cpu-time: threads that wait spend time, too")


def _measure(kernels: str, args: argparse.Namespace, shapes: Any, pool: Any, isa: str) -> Iterator[dict[str, Any]]:
    from octavo.measure.attention import attention_cases
    from octavo.measure.cases import compare
    from octavo.measure.linear import linear_cases
    from octavo.measure.rows import row_cases

    clock: Callable[[], float] = time.process_time if args.cpu_time else time.perf_counter
    groups = {
        "linear": lambda: linear_cases(shapes, args.weights, args.rows, pool, isa),
        "attention": lambda: attention_cases(shapes, args.kv_cache_dtype, args.max_context, pool, isa),
        "rows": lambda: row_cases(shapes, args.rows, pool, isa),
    }
    for cases in groups[kernels]():
        yield from compare(cases, pool, isa, args.repeats, clock)


_COLUMNS = (
    # heading, key, digits
    ("ms", "ms", 3), ("ratio", "ratio", 2), ("of floor", "of_floor", 2), ("GB/s", "gb_per_s", 1),
    ("of", "bandwidth_gb_per_s", 1), ("Gop/s", "gop_per_s", 0), ("of", "peak_gop_per_s", 0),
    ("us/call", "us_per_call", 1), ("fork us", "fork_join_us", 2),
)  # fmt: skip
_HEAD = f"{'kernel':<22}{'form':<24}{'size':<22}" + "".join(f"{heading:>9}" for heading, _, _ in _COLUMNS) + "  bound"


def _line(row: dict[str, Any]) -> str:
    cells = ("-" if row[key] is None else f"{row[key]:.{digits}f}" for _, key, digits in _COLUMNS)
    words = f"{row['kernel']:<22}{row['form']:<24}{row['size']:<22}"
    return words + "".join(f"{cell:>9}" for cell in cells) + f"  {row['bound']}"


def _write(path: Path, args: argparse.Namespace, shapes: Any, rows: list[dict[str, Any]]) -> None:
    import dataclasses

    from octavo.cli.machine import fingerprint

    result = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": fingerprint(),
        "model": args.model_tag,
        "shapes": dataclasses.asdict(shapes),
        "clock": "cpu" if args.cpu_time else "wall",
        "repeats": args.repeats,
        "results": rows,
    }
    path.write_text(json.dumps(result, indent=2) + "\n")
