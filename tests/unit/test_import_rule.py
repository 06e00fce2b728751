"""Who may import whom. DESIGN: cli -> server -> engine -> core; executor -> worker -> models -> backends.

Every import statement counts: at the top of a module, inside a function, and under TYPE_CHECKING. Only
`octavo/__init__.py`, which names public classes lazily, is outside the rule.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import octavo

ROOT = Path(octavo.__file__).parent

VALUES = {"errors", "messages", "config", "structured"}
MAY_IMPORT: dict[str, set[str]] = {
    # Each room names the rooms, or the single modules, that it may import. Its own modules are always allowed.
    "errors": set(),
    "structured": {"errors"},
    "messages": {"errors", "structured"},
    "settings": {"errors"},  # how one is declared
    "http_config": {"errors", "settings"},  # which config names too
    "config": {"errors", "settings", "http_config"},
    "registry": {"errors"},
    "core": VALUES,
    "backends": VALUES | {"_native"},
    "weights": VALUES | {"_native", "backends.protocol"},  # GroupedWeight
    "models": VALUES | {"backends", "weights"},
    "worker": VALUES | {"models", "backends", "weights", "registry", "core.step", "core.kv_spec"},
    "executor": VALUES
    | {"worker", "models", "backends", "weights", "registry", "core.step", "core.kv_spec", "core.kv_groups"},
    "engine": VALUES | {"core", "weights", "registry"},
    "server": VALUES | {"engine", "core"},
    "measure": VALUES  # times kernels and the worker, and says how large a model is
    | {"worker", "models", "backends", "weights", "registry", "core.step", "executor.sizing", "_native"},
    "sim": VALUES | {"core"},
    "traces": VALUES | {"sim"},
    "figures": VALUES | {"sim", "traces", "measure", "core"},  # probes read the core
    "cli": VALUES
    | {"server", "engine", "core", "weights", "registry", "measure", "sim", "traces", "figures"}
    | {"_native"},  # doctor looks at it
    "__main__": {"cli"},
}

THIRD_PARTY: dict[str, set[str]] = {
    # Distributions outside the standard library, by room.
    "errors": set(),
    "structured": {"msgspec"},
    "messages": {"msgspec"},
    "settings": set(),
    "http_config": set(),
    "config": set(),
    "registry": set(),
    "core": {"msgspec"},
    "backends": {"numpy", "msgspec"},
    "weights": {"numpy", "msgspec", "huggingface_hub", "rich"},
    "models": {"numpy", "msgspec"},
    "worker": {"numpy", "msgspec", "llguidance"},
    "executor": {"msgspec"},
    "engine": {"msgspec", "tokenizers", "jinja2", "rich"},
    "server": {"msgspec", "starlette", "uvicorn", "uvloop", "httptools", "prometheus_client"},
    "measure": {"numpy", "msgspec"},
    "sim": {"msgspec"},
    "traces": {"msgspec"},
    "figures": {"msgspec", "matplotlib"},
    "cli": {"msgspec", "rich", "yaml"},
    "__main__": set(),
}

TORCH_MODULES = {"backends.torch_eager"}
"""The only modules that may import torch."""

CORE_STANDARD_LIBRARY = {
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "ctypes", "dataclasses", "enum",
    "functools", "hashlib", "heapq", "hmac", "itertools", "math", "operator", "struct", "typing",
}  # fmt: skip
"""What decisions may use: no clock, thread, file, socket, log or random number."""

PURE_STANDARD_LIBRARY = {"core": CORE_STANDARD_LIBRARY, "sim": CORE_STANDARD_LIBRARY | {"random"}}
"""By room. The simulator passes seeded `random.Random` objects about."""


def modules() -> list[tuple[str, Path]]:
    """(name below octavo, file) of every module, but for the package's own `__init__`."""
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found.append((name, path))
    return found


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything a module imports, wherever the statement stands."""
    package = ["octavo", *name.split(".")]
    if path.name != "__init__.py":
        package.pop()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def covers(allowed: str, target: str) -> bool:
    return target == allowed or target.startswith(allowed + ".")


def broken_rule(name: str, target: str) -> str | None:
    """Why module `name` may not import `target` (an absolute dotted name), or None."""
    room = name.split(".")[0]
    top, _, inside = target.partition(".")
    if top == "octavo":
        if inside in ("", "__version__") or covers(room, inside):
            return None
        return None if any(covers(a, inside) for a in MAY_IMPORT[room]) else f"{room} may not import {target}"
    if top == "torch":
        return None if name in TORCH_MODULES else "only the torch back end may import torch"
    if top in sys.stdlib_module_names or top == "__future__":
        allowed = room not in PURE_STANDARD_LIBRARY or any(covers(a, target) for a in PURE_STANDARD_LIBRARY[room])
        return None if allowed else f"{room} may not import {target}"
    return None if top in THIRD_PARTY[room] else f"{room} may not import {top}"


@pytest.mark.parametrize(("name", "path"), modules(), ids=[name for name, _ in modules()])
def test_module_keeps_the_import_rule(name: str, path: Path) -> None:
    room = name.split(".")[0]
    assert room in MAY_IMPORT, f"{room} is not in the tables above: give it a place"
    broken = [
        f"{path.name}:{line}: {why}" for line, target in imports(name, path) if (why := broken_rule(name, target))
    ]
    assert not broken, "\n".join(broken)


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("core.scheduler", "numpy"),
        ("core.scheduler", "time.monotonic"),
        ("core.scheduler", "threading"),
        ("core.scheduler", "random"),
        ("core.scheduler", "octavo.engine.llm.LLM"),
        ("core.step", "octavo.backends.protocol"),
        ("engine.llm", "octavo.worker.model_runner.ModelRunner"),
        ("engine.llm", "octavo.executor.local"),
        ("worker.model_runner", "octavo.core.scheduler.Scheduler"),
        ("backends.cpu", "octavo.models.spec"),
        ("backends.cpu", "torch"),
        ("server.app", "octavo.cli.main"),
        ("server.app", "octavo.weights.sources"),
        ("weights.gguf", "tokenizers"),
        ("config", "octavo.messages"),
        ("sim.simulator", "time.monotonic"),
        ("sim.simulator", "octavo.traces.lengths"),
        ("core.scheduler", "octavo.sim.clock"),
        ("figures.draw", "octavo.engine.llm.LLM"),
    ],
)
def test_the_rule_forbids(name: str, target: str) -> None:
    """The rule's own test: what must not be, is caught."""
    assert broken_rule(name, target) is not None


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "import a.b\nfrom typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import c\n"
        "def f():\n    from ..core import scheduler\n    from . import near\n"
    )
    found = {target for _, target in imports("engine.module", source)}
    assert found == {"a.b", "typing.TYPE_CHECKING", "c", "octavo.core.scheduler", "octavo.engine.near"}
