"""Octavo and its peers on the same files and workloads, in interleaved rounds.

    python benchmarks/peers/run.py --rounds 5 --out results.jsonl
    python benchmarks/peers/run.py --engines octavo-bf16 llamacpp-bf16:single+chat --workloads single chat
    python benchmarks/peers/table.py results.jsonl > table.md

Peers and models must be there first: `bash benchmarks/peers/setup.sh`. By default every server stays up for the whole
run and a round takes the workloads one by one, each on all engines in turn, so that what is compared is seconds apart;
`--restart` starts each server anew in every round instead. Before a timing the machine has to come to rest. Beside it
stand the bandwidth of the moment (STREAM's triad, before and after) and the CPU time that neither the server nor this
process took; a timing that others disturbed is marked void and repeated once. Results are appended as JSON lines.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from engines import DEFAULT, ENGINES, ROOT, Engine
from probe import Shares, Triad, wait_until_idle
from table import MAX_OTHER_CPU
from workloads import WORKLOADS, make_items, one_answer_each

from octavo.cli.bench_load import Load, Record, send_all
from octavo.cli.bench_report import summarize
from octavo.cli.bench_workload import Item
from octavo.cli.http_client import Endpoint
from octavo.cli.machine import fingerprint
from octavo.cli.process_tree import pss_bytes, watch_memory
from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.engine.front_end import FrontEnd
from octavo.engine.tokenizer import Tokenizer

_WARM_UP_SEED = 999
_STOP_S = 20.0


class Failed(Exception):
    """An engine that cannot be measured; the run goes on without it."""


class Server:
    """A running server."""

    def __init__(self, name: str, log: Path) -> None:
        self.name, self.engine = name, ENGINES[name]
        self.port = _free_port()
        self.capacity_rps = 0.0
        """Requests a second that the last closed loop of `chat` reached."""
        started = time.perf_counter()
        with log.open("w") as out:
            self.process = subprocess.Popen(
                self.engine.command(self.port), stdout=out, stderr=out, start_new_session=True,
                env={**os.environ, **self.engine.environment},
            )  # fmt: skip
        try:
            self._wait(started + self.engine.ready_timeout_s, log)
        except BaseException:
            self.stop()
            raise
        self.ready_s = time.perf_counter() - started

    def _wait(self, deadline: float, log: Path) -> None:
        url = f"http://127.0.0.1:{self.port}{self.engine.ready_path}"
        while True:
            with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=2):
                return
            if self.process.poll() is not None or time.perf_counter() > deadline:
                raise Failed(f"did not start: {log.read_text(errors='replace')[-500:]}")
            time.sleep(0.02)

    def load(self, **settings: Any) -> Load:
        at = Endpoint("127.0.0.1", self.port)
        return Load(at=at, model=self.engine.model, rewrite=self.engine.rewrite, **settings)

    def stop(self) -> None:
        """End the server and what it started, politely first."""
        group = self.process.pid  # a session of its own, made by us
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _load_tokenizer(model: Path) -> Tokenizer:
    config = EngineConfig.of(model=str(model))
    return FrontEnd.load(config, find_files(config)).tokenizer


class Comparison:
    """The rounds: who is measured on what, and where the results go."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.chosen = dict(_chosen(words, args.workloads) for words in args.engines)
        self.triad = Triad(ROOT / "tools")
        models = {ENGINES[name].tokenizer for name in self.chosen}
        self.tokenizers = {model: _load_tokenizer(model) for model in models}
        self.servers: dict[str, Server] = {}
        self.logs = ROOT / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def run(self) -> None:
        self.emit({"run": _about(self.args)})
        try:
            for number in range(self.args.first_round, self.args.first_round + self.args.rounds):
                if self.args.restart:
                    self._engine_by_engine(number)
                else:
                    self._workload_by_workload(number)
        finally:
            for server in self.servers.values():
                server.stop()

    def _order(self, number: int) -> list[str]:
        """Each round another engine begins."""
        names = list(self.chosen)
        first = number % len(names) if names else 0
        return names[first:] + names[:first]

    def _workload_by_workload(self, number: int) -> None:
        for name in self._order(number):
            if name in self.chosen and name not in self.servers:
                self._attempt(name, number, lambda name=name: self.servers.update({name: self.start(name, number)}))
        for workload in self.args.workloads:
            for name in self._order(number):
                if workload in self.chosen[name]:
                    self._attempt(name, number, lambda n=name, w=workload: self.time(self.servers[n], w, number))

    def _engine_by_engine(self, number: int) -> None:
        for name in self._order(number):
            self._attempt(name, number, lambda name=name: self._alone(name, number))

    def _alone(self, name: str, number: int) -> None:
        server = self.start(name, number)
        try:
            for workload in self.args.workloads:
                if workload in self.chosen[name]:
                    self.time(server, workload, number)
        finally:
            server.stop()

    def _attempt(self, name: str, number: int, work: Any) -> None:
        """An engine that fails is left out from there on."""
        try:
            work()
        except (Failed, OSError) as error:
            self.emit({"engine": name, "round": number, "failed": str(error)[:600]})
            del self.chosen[name]
            if name in self.servers:
                self.servers.pop(name).stop()

    def start(self, name: str, number: int) -> Server:
        """A server that has answered: its first request is timed, four more warm it up."""
        idle = wait_until_idle(self.args.idle_s)
        server = Server(name, self.logs / f"{name}.{number}.log")
        try:
            warm = self._warm_up(server)
        except BaseException:
            server.stop()
            raise
        first_s = server.ready_s + (warm.ttft_s or float("nan"))
        times = {"ready_s": round(server.ready_s, 3), "first_token_s": round(first_s, 3)}
        self.emit({"engine": name, "round": number, "workload": "start", **times, "idle_before": idle})
        return server

    def _warm_up(self, server: Server) -> Record:
        items = [
            Item(prompt=item.prompt, output_token_count=16) for item in self._items(server, "prefix", _WARM_UP_SEED)[:5]
        ]
        first, _ = asyncio.run(send_all(server.load(max_concurrency=1), items[:1]))
        rest, _ = asyncio.run(send_all(server.load(max_concurrency=4), items[1:]))
        for record in (*first, *rest):
            if record.error:
                raise Failed(f"the warm-up failed: {record.error}")
        return first[0]

    def _items(self, server: Server, workload: str, seed: int) -> list[Item]:
        return make_items(workload, self.tokenizers[server.engine.tokenizer], seed)

    def time(self, server: Server, workload: str, number: int) -> None:
        """One timing, and a second one if others disturbed the first."""
        for attempt in range(2):
            row = self._time_once(server, workload, number, attempt)
            self.emit(row)
            if row["other_cpu"] <= MAX_OTHER_CPU:
                return

    def _time_once(self, server: Server, workload: str, number: int, attempt: int) -> dict[str, Any]:
        items = self._items(server, workload, 2 * number + attempt)
        sent = items if server.engine.takes_n else one_answer_each(items)
        load = server.load(**self._pace(server, workload, len(sent) // len(items)))
        idle = wait_until_idle(self.args.idle_s)
        before = self.triad.measure()
        shares = Shares(server.process.pid)
        records, duration_s, peak = asyncio.run(_send_watched(load, sent, server.process.pid))
        taken = shares.taken()
        triad = (before + self.triad.measure()) / 2
        figures = summarize(records, duration_s, ["ttft", "tpot", "itl"], [50, 95, 99])
        if workload == "chat":
            server.capacity_rps = figures["request_throughput"]
        if not server.engine.streams_n and any(item.n > 1 for item in items):
            figures |= {key: None for key in figures if key.endswith("_ms")}
        about = {"engine": server.name, "round": number, "attempt": attempt, "workload": workload}
        rate = None if load.request_rate == float("inf") else round(load.request_rate, 3)
        memory = {"peak_rss_bytes": peak, "pss_bytes": pss_bytes(server.process.pid)}
        return {
            **about, **figures, **memory, **taken, "triad_gb_per_s": round(triad, 2), "idle_before": idle,
            "in_flight": load.max_concurrency, "request_rate": rate,
        }  # fmt: skip

    def _pace(self, server: Server, workload: str, answers: int) -> dict[str, Any]:
        how = WORKLOADS[workload]
        if how.share is None:
            return {"max_concurrency": (how.in_flight or 1) * answers}
        return {"request_rate": how.share * server.capacity_rps}

    def emit(self, row: dict[str, Any]) -> None:
        with self.args.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(_line(row), flush=True)


async def _send_watched(load: Load, items: list[Item], pid: int) -> tuple[list[Record], float, int]:
    async with watch_memory(pid) as peak:
        records, duration_s = await send_all(load, items)
    return records, duration_s, peak.rss_bytes


def _chosen(words: str, workloads: list[str]) -> tuple[str, tuple[str, ...]]:
    """`engine` or `engine:workload+workload`: the engine and what it is to run."""
    name, colon, own = words.partition(":")
    if name not in ENGINES:
        sys.exit(f"no engine {name!r}; there are {', '.join(ENGINES)}")
    engine: Engine = ENGINES[name]
    allowed = own.split("+") if colon else engine.workloads
    return name, tuple(workload for workload in workloads if workload in allowed)


def _about(args: argparse.Namespace) -> dict[str, Any]:
    """What a table must name: commit, date, machine, command."""
    here = Path(__file__).parent
    git = ["git", "-C", str(here)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True).stdout.strip()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "commit": commit + (" with changes" if changed else ""),
        "machine": fingerprint(),
        "engines": args.engines,
        "workloads": args.workloads,
        "rounds": args.rounds,
        "servers": "anew in each round" if args.restart else "up for the whole run",
    }


def _line(row: dict[str, Any]) -> str:
    if "run" in row:
        return f"commit {row['run']['commit']}, {row['run']['date']}"
    if "failed" in row and isinstance(row["failed"], str):
        return f"{row['engine']}: left out: {row['failed']}"
    head = f"round {row['round']} {row['engine']:<19}{row['workload']:<10}"
    if row["workload"] == "start":
        return f"{head} ready after {row['ready_s']:.2f} s, first token after {row['first_token_s']:.2f} s"
    latency = "".join(
        f" {name} {row[key]:.1f}" for name, key in (("TTFT p50", "p50_ttft_ms"), ("TPOT p95", "p95_tpot_ms"))
        if row[key] is not None
    )  # fmt: skip
    notes = f" {row['failed']} failed" if row["failed"] else ""
    notes += f" {row['wrong_length']} of wrong length" if row["wrong_length"] else ""
    notes += " VOID" if row["other_cpu"] > MAX_OTHER_CPU else ""
    return (
        f"{head}{row['output_throughput']:8.1f} tok/s{latency}, {row['peak_rss_bytes'] / 1e6:.0f} MB,"
        f" triad {row['triad_gb_per_s']:.1f} GB/s, others {row['other_cpu']:.2f}, client {row['client_cpu']:.2f}{notes}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", nargs="+", default=list(DEFAULT), metavar="NAME[:WORKLOAD+...]",
                        help="of " + ", ".join(ENGINES))  # fmt: skip
    parser.add_argument("--workloads", nargs="+", default=["single", "chat", "prefix", "nsample", "long"],
                        choices=list(WORKLOADS), metavar="NAME", help="of " + ", ".join(WORKLOADS))  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--first-round", type=int, default=0, help="number of the first, to go on with an earlier run")
    parser.add_argument("--restart", action="store_true", help="start every server anew in every round")
    parser.add_argument("--idle-s", type=float, default=60.0, help="wait at most so long for an idle machine")
    parser.add_argument("--out", type=Path, default=Path("peers.jsonl"), help="results are appended here")
    args = parser.parse_args()
    shares = [name for name in args.workloads if WORKLOADS[name].share is not None]
    if shares and "chat" not in args.workloads[: args.workloads.index(shares[0])]:
        parser.error(f"{shares[0]} needs chat before it: its rate is a share of what chat reaches")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that servers are stopped, too
    Comparison(args).run()


if __name__ == "__main__":
    main()
