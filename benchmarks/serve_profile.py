"""Who takes the cores while a server answers: CPU time and context switches of every thread, by token.

    python benchmarks/serve_profile.py [MODEL] [--dataset-name chat] [--requests 64] [--json FILE] [server flags]

A server is started, warmed up and put under one of `octavo bench serve`'s workloads. What each thread of the front end,
the engine's process and the client took of the CPUs comes from the kernel's counters, so it hardly depends on what else
the machine does; only times by the clock do.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from octavo.cli.bench_report import save

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Usage:
    """Counters of the threads of some processes, summed by the role of the process and the thread's name."""

    def __init__(self, roles: dict[str, int]) -> None:
        self.cpu_s: dict[str, float] = defaultdict(float)
        self.system_s: dict[str, float] = defaultdict(float)
        self.switches: dict[str, int] = defaultdict(int)
        for role, pid in roles.items():
            for number, task in enumerate(sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda path: int(path.name))):
                self._add(f"{role}: {_label(task, number)}", task)

    def _add(self, name: str, task: Path) -> None:
        try:
            runtime_ns = int((task / "schedstat").read_text().split()[0])
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            status = (task / "status").read_text()
        except OSError:  # it has ended
            return
        self.cpu_s[name] += runtime_ns / 1e9
        self.system_s[name] += int(fields[12]) / TICKS_PER_S
        self.switches[name] += sum(int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line)


def _label(task: Path, number: int) -> str:
    try:
        name = (task / "comm").read_text().strip()
    except OSError:
        name = "?"
    return "main" if number == 0 else f"{number} {name}"


def children(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.perf_counter() + 120
    while time.perf_counter() < until and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except OSError:
            time.sleep(0.02)
    raise RuntimeError("the server did not start")


def client_words(args: argparse.Namespace, port: int, count: int) -> list[str]:
    words = [sys.executable, "-m", "octavo.cli.main", "bench", "serve", args.model]
    words += ["--base-url", f"http://127.0.0.1:{port}", "--served-model-name", "m"]
    words += ["--dataset-name", args.dataset_name, "--num-prompts", str(count)]
    return words


def measure(args: argparse.Namespace, server: subprocess.Popen[bytes], port: int) -> dict[str, Any]:
    subprocess.run(client_words(args, port, 4), check=True, stdout=subprocess.DEVNULL)
    (engine,) = children(server.pid)
    roles = {"front end": server.pid, "engine": engine}
    count = scrape(port)  # the first one imports what writes metrics
    before, started = Usage(roles), time.perf_counter()
    client = subprocess.Popen(client_words(args, port, args.requests), stdout=subprocess.DEVNULL)
    _, status, spent = os.wait4(client.pid, 0)
    if status:
        raise RuntimeError("the client failed")
    after, wall_s = Usage(roles), time.perf_counter() - started
    now = scrape(port)
    tokens, steps = (now[name] - count[name] for name in ("octavo:generation_tokens_total", "octavo:steps_total"))
    threads = {
        name: {
            "cpu_s": after.cpu_s[name] - before.cpu_s[name],
            "system_s": after.system_s[name] - before.system_s[name],
            "switches": after.switches[name] - before.switches[name],
        }
        for name in after.cpu_s
    }
    threads["client, its start included"] = {
        "cpu_s": spent.ru_utime + spent.ru_stime,
        "system_s": spent.ru_stime,
        "switches": spent.ru_nvcsw + spent.ru_nivcsw,
    }
    return {"tokens": tokens, "steps": steps, "wall_s": wall_s, "threads": threads}


def scrape(port: int) -> dict[str, float]:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as reply:
        lines = reply.read().decode().splitlines()
    return {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


def print_table(found: dict[str, Any]) -> None:
    tokens, steps = found["tokens"], found["steps"]
    print(f"{tokens:.0f} tokens in {steps:.0f} steps and {found['wall_s']:.1f} s, start of the client included")
    print(f"{'thread':<40}{'CPU s':>8}{'of it system':>14}{'us per token':>14}{'us per step':>13}{'switches/step':>15}")
    for name, row in sorted(found["threads"].items(), key=lambda item: -item[1]["cpu_s"]):
        if row["cpu_s"] >= 0.005:
            print(
                f"{name:<40}{row['cpu_s']:>8.2f}{row['system_s']:>14.2f}{row['cpu_s'] / tokens * 1e6:>14.1f}"
                f"{row['cpu_s'] / steps * 1e6:>13.0f}{row['switches'] / steps:>15.1f}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2-135m")
    parser.add_argument("--dataset-name", default="chat")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--paced", action="store_true", help="with an executor that sleeps for 15 ms in every step")
    parser.add_argument("--json", metavar="FILE")
    args, flags = parser.parse_known_args()
    port = free_port()
    words = [sys.executable, "-m", "octavo.cli.main", "serve", args.model, "--port", str(port)]
    words += ["--served-model-name", "m", *flags, *(["--executor", "paced:PacedExecutor"] if args.paced else [])]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)} if args.paced else None
    server = subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment)
    try:
        wait_for_port(port, server)
        found = measure(args, server, port)
    finally:
        server.terminate()
        server.wait(60)
    print_table(found)
    if args.json:
        save(Path(args.json), {"model": args.model, "dataset": args.dataset_name, "flags": flags}, found)


if __name__ == "__main__":
    main()
