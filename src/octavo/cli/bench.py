"""`octavo bench`: the measuring commands."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.bench_serve", "load an OpenAI-compatible server and time its streams"),
    "offline": ("octavo.cli.bench_offline", "time a workload through the Python API"),
    "latency": ("octavo.cli.bench_latency", "time one batch of fixed size and lengths, again and again"),
    "step": ("octavo.cli.bench_step", "time the scheduler's own work per step"),
    "kernels": ("octavo.cli.bench_kernels", "each kernel beside the least time that this machine allows"),
    "fit": ("octavo.cli.bench_fit", "measure steps and fit the cost model that simulator and planner use"),
    "quality": ("octavo.cli.bench_quality", "perplexity of a text in each format beside float32"),
}
