"""`octavo bench`: the measuring commands."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.bench_serve", "load an OpenAI-compatible server and time its streams"),
    "offline": ("octavo.cli.bench_offline", "time a workload through the Python API"),
    "step": ("octavo.cli.bench_step", "time the scheduler's own work per step"),
}
