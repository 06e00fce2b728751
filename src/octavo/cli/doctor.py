"""`octavo doctor`: what this machine offers, what Octavo would use of it, and what is in the way."""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any

from octavo.cli import machine
from octavo.cli.text import count, size

MIN_MEMORY_BYTES = 512 * 10**6
"""Below this the default model and a useful KV pool do not fit."""

_LIBRARIES = ("numpy", "msgspec", "tokenizers", "huggingface_hub", "jinja2", "starlette", "uvicorn",
              "httptools", "prometheus_client", "rich", "torch")  # fmt: skip
_OPTIONAL = ("torch",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--isa", metavar="NAME", help="kernel path to look at (default: what would be chosen)")
    parser.add_argument("--num-threads", type=int, metavar="N", help="compute threads (default: what would be chosen)")
    parser.add_argument("--download-dir", metavar="DIR", help="model cache to look at (default: the user cache)")


def run(args: argparse.Namespace) -> int:
    """0 when all is well, 1 when a problem was found."""
    report = examine(args.isa, args.num_threads, args.download_dir)
    if args.json:
        print(json.dumps(report, indent=2))
    else:
        _print(report)
    return 1 if report["problems"] else 0


def examine(isa: str | None = None, num_threads: int | None = None, download_dir: str | None = None) -> dict[str, Any]:
    """Everything known, by section; `problems` is a list of sentences."""
    problems: list[str] = []
    return {
        "versions": _versions(problems),
        "cpu": {
            "model": machine.cpu_model(),
            "architecture": platform.machine(),
            "features": machine.cpu_features(),
            "cpus_allowed": machine.affinity(),
            "cgroup_cpu_quota": machine.cpu_quota(),
        },
        "kernels": _kernels(isa, num_threads, problems),
        "memory": _memory(problems),
        "models": _models(download_dir, problems),
        "problems": problems,
    }


def _versions(problems: list[str]) -> dict[str, str | None]:
    from octavo import __version__

    found = machine.versions(*_LIBRARIES)
    missing = [name for name, version in found.items() if version is None and name not in _OPTIONAL]
    if missing:
        problems.append(f"not installed: {', '.join(missing)}; pip install octavo again")
    return {"octavo": __version__, "python": platform.python_version(), **found}


def _kernels(isa: str | None, num_threads: int | None, problems: list[str]) -> dict[str, Any]:
    """Per dtype, what the CPU back end says of itself."""
    from octavo import registry
    from octavo.errors import OctavoError

    found: dict[str, Any] = {}
    try:
        from octavo._native import supported_paths

        found["supported_paths"] = supported_paths()
        cpu = registry.resolve("backends", "cpu")
        found["default_dtype"] = cpu.default_dtype(isa)
        for dtype in ("bfloat16", "float32"):
            backend = cpu(dtype, num_threads=num_threads, isa=isa)
            found[dtype] = backend.describe()
            backend.close()
    except ImportError as error:
        problems.append(f"the native extension does not load: {error}")
    except OctavoError as error:
        problems.append(str(error))
    return found


def _memory(problems: list[str]) -> dict[str, int | None]:
    total, available, limit = machine.memory_total(), machine.memory_available(), machine.memory_limit()
    usable = min((x for x in (available, limit) if x is not None), default=None)
    if usable is not None and usable < MIN_MEMORY_BYTES:
        problems.append(f"only {size(usable)} of memory can be used; models and KV need more")
    return {"total_bytes": total, "available_bytes": available, "cgroup_limit_bytes": limit, "usable_bytes": usable}


def _models(download_dir: str | None, problems: list[str]) -> dict[str, Any]:
    from octavo.weights.model_cache import list_cached, models_dir

    folder = models_dir(download_dir).absolute()
    nearest = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK):
        problems.append(f"the model cache {folder} cannot be written")
    return {"folder": str(folder), "cached": {model.name: model.size for model in list_cached(download_dir)}}


def _print(report: dict[str, Any]) -> None:
    cpu, kernels, memory = report["cpu"], report["kernels"], report["memory"]
    quota = cpu["cgroup_cpu_quota"]
    print("CPU")
    _row("model", f"{cpu['model']} ({cpu['architecture']})")
    _row("features", " ".join(cpu["features"]) or "none of note")
    _row("allowed", f"{cpu['cpus_allowed']} CPUs; cgroup quota: {'none' if quota is None else f'{quota:g} CPUs'}")
    print("Kernels")
    _row("supported", ", ".join(kernels.get("supported_paths", [])) or "none")
    _row("dtype auto", kernels.get("default_dtype", "unknown"))
    for dtype in ("bfloat16", "float32"):
        if dtype in kernels:
            facts = dict(kernels[dtype])
            facts.pop("dtype", None)
            _row(dtype, f"{facts.pop('kernel_path')}, {count(int(facts.pop('num_threads')), 'thread')}")
            for key, value in facts.items():
                _row("", f"{key}: {value}")
    print("Memory")
    for label, key in (("total", "total_bytes"), ("available", "available_bytes"), ("limit", "cgroup_limit_bytes")):
        _row(label, "unknown or none" if memory[key] is None else size(memory[key]))
    print("Models")
    _row("cache", report["models"]["folder"])
    for name, num_bytes in report["models"]["cached"].items():
        _row(name, size(num_bytes))
    print("Versions")
    for name, version in report["versions"].items():
        if version is not None:
            _row(name, version)
    print("Problems" if report["problems"] else "No problems found.")
    for problem in report["problems"]:
        print(f"  {problem}")


def _row(label: str, text: str) -> None:
    print(f"  {label:<18}{text}")
