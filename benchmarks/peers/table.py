"""Results of `run.py` as Markdown: ratios to the best peer beside their gates, then every engine's figures.

    python benchmarks/peers/table.py results.jsonl ... [--scaling between] [--ratios-only]

A timing is void, and left out with its reason, when a request failed or had a wrong length, when other processes took
more than 0.15 of a core, or when a peer is more than 20 % off its reference figure (`reference.json`) scaled by the
bandwidth measured beside it: on a processor of the same kind; on another the page says so. `--scaling between` allows
everything between the unscaled and the scaled figure, for a workload that is bound by computing does not follow the
bandwidth.

A ratio is Octavo over the best peer of the same group and workload (the one with the largest median), taken within a
round; the table has the median over the rounds and the range.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engines import ENGINES, OCTAVO

MAX_OTHER_CPU = 0.15
"""Of a core. When other processes took more during a timing, it does not count."""

GATES = {
    "bf16": {"single": 1.25, "chat": 1.6, "prefix": 1.6, "nsample": 1.6, "long": 1.1},
    "quantised": {"single": 2.5, "chat": 2.2, "prefix": 1.9, "nsample": 2.0, "long": 1.25},
    "qwen": {},
}
"""Least ratio of output tokens a second that Octavo wants to reach, for each group that has one."""

Row = dict[str, Any]


@dataclass(frozen=True)
class Reference:
    """The peers' figures on the reference machine, and how far from them a timing still counts."""

    output_tok_s: dict[str, dict[str, float]]
    triad_gb_per_s: float
    tolerance: float
    cpu_features: frozenset[str] = frozenset()
    """What the reference machine's processor has; on one without them the peers have other figures."""

    @classmethod
    def read(cls, path: Path) -> Reference:
        data = json.loads(path.read_text())
        features = frozenset(data["cpu_features"])
        return cls(data["output_tok_s"], data["triad_gb_per_s"], data["tolerance"], features)

    def missing(self, machine: dict[str, Any]) -> list[str]:
        """The features that a machine lacks; empty when the figures can be compared with it."""
        return sorted(self.cpu_features - set(machine.get("cpu_features", ())))

    def deviation(self, row: Row, scaling: str) -> str | None:
        """Why the timing does not fit the reference; None when it does or there is none."""
        expected = self.output_tok_s.get(row["engine"], {}).get(row["workload"])
        if expected is None:
            return None
        scaled = expected * row["triad_gb_per_s"] / self.triad_gb_per_s
        low, high = (scaled, scaled) if scaling == "linear" else sorted((expected, scaled))
        if low * (1 - self.tolerance) <= row["output_throughput"] <= high * (1 + self.tolerance):
            return None
        return (
            f"{row['output_throughput']:.1f} tok/s is {row['output_throughput'] / scaled:.2f} of its reference figure "
            f"{expected:.1f} scaled to {row['triad_gb_per_s']:.1f} GB/s"
        )


def void_reason(row: Row, reference: Reference | None, scaling: str) -> str | None:
    """Why a timing does not count; None when it does."""
    if row["failed"] or row["wrong_length"]:
        return f"{row['failed']} requests failed, {row['wrong_length']} answers of wrong length"
    if row["other_cpu"] > MAX_OTHER_CPU:
        return f"other processes took {row['other_cpu']:.2f} of a core"
    return None if reference is None else reference.deviation(row, scaling)


class Results:
    """The timings that count, by engine and workload and round, and the reasons why others do not."""

    def __init__(self, rows: Iterable[Row], reference: Reference, scaling: str) -> None:
        self.runs: list[Row] = []
        self.starts: dict[str, list[Row]] = defaultdict(list)
        self.void: list[str] = []
        self._good: dict[tuple[str, str], dict[int, Row]] = defaultdict(dict)
        self._all: dict[tuple[str, str], int] = defaultdict(int)
        self.notes: list[str] = []
        applies: Reference | None = reference
        for row in rows:
            if "run" in row:
                self.runs.append(row["run"])
                applies = self._reference_for(row["run"], reference)
            elif "workload" not in row:
                self.void.append(f"{row['engine']}, round {row['round']}: {row['failed']}")
            elif row["workload"] == "start":
                self.starts[row["engine"]].append(row)
            else:
                self._sort_in(row, void_reason(row, applies, scaling))

    def _reference_for(self, run: Row, reference: Reference) -> Reference | None:
        missing = reference.missing(run["machine"])
        if not missing:
            return reference
        self.notes.append(
            f"The peers' reference figures do not apply to the run of {run['date']}: its processor lacks "
            f"{', '.join(missing)}, with which they were measured. No timing of it is void on their account."
        )
        return None

    def _sort_in(self, row: Row, reason: str | None) -> None:
        key = row["engine"], row["workload"]
        self._all[key] += 1
        if reason is None:
            self._good[key][row["round"]] = row
        else:
            self.void.append(f"{row['engine']}, {row['workload']}, round {row['round']}: {reason}")

    def engines(self) -> list[str]:
        """In the order of the table of engines."""
        seen = {engine for engine, _ in self._all} | set(self.starts)
        return [name for name in ENGINES if name in seen]

    def workloads(self) -> list[str]:
        """In the order of their first timing."""
        return list(dict.fromkeys(workload for _, workload in self._all))

    def good(self, engine: str, workload: str) -> dict[int, Row]:
        """Timings that count, by round."""
        return self._good.get((engine, workload), {})

    def num_timed(self, engine: str, workload: str) -> int:
        return self._all[engine, workload]

    def median(self, engine: str, workload: str, figure: str) -> float | None:
        """Over the rounds that count and have the figure."""
        values = [row[figure] for row in self.good(engine, workload).values() if row[figure] is not None]
        return statistics.median(values) if values else None

    def best_peer(self, group: str, workload: str) -> str | None:
        """The peer of a group that is fastest on a workload, in output tokens a second."""
        found = [
            (value, name)
            for name in self.engines()
            if ENGINES[name].kind != OCTAVO and ENGINES[name].group == group
            and (value := self.median(name, workload, "output_throughput")) is not None
        ]  # fmt: skip
        return max(found)[1] if found else None


@dataclass(frozen=True)
class Ratio:
    """One figure of two engines, divided within each round that has both."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, results: Results, ours: str, peer: str, workload: str, figure: str) -> Ratio:
        a, b = results.good(ours, workload), results.good(peer, workload)
        pairs = [(a[n][figure], b[n][figure]) for n in sorted(a.keys() & b.keys())]
        return cls(tuple(x / y for x, y in pairs if x is not None and y))

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    def __str__(self) -> str:
        if self.median is None:
            return "-"
        return f"{self.median:.2f} ({min(self.values):.2f} to {max(self.values):.2f})"


def ratio_table(results: Results) -> Iterator[str]:
    """Octavo beside the best peer of each group and workload."""
    yield _row(
        "workload", "Octavo: weights, KV", "tok/s", "best peer: weights, KV", "tok/s", "ratio", "rounds", "gate",
        "TTFT p50", "TPOT p95",
    )  # fmt: skip
    yield "|" + "---|" * 10
    for group, gates in GATES.items():
        for workload in results.workloads():
            peer = results.best_peer(group, workload)
            if peer is None:
                continue
            for ours in results.engines():
                if ENGINES[ours].kind == OCTAVO and ENGINES[ours].group == group and results.good(ours, workload):
                    yield _ratio_row(results, workload, ours, peer, gates.get(workload))


def _ratio_row(results: Results, workload: str, ours: str, peer: str, gate: float | None) -> str:
    ratio = Ratio.of(results, ours, peer, workload, "output_throughput")
    ttft, tpot = (Ratio.of(results, ours, peer, workload, name) for name in ("p50_ttft_ms", "p95_tpot_ms"))
    a, b = ENGINES[ours], ENGINES[peer]
    verdict = "-"
    if gate is not None and ratio.median is not None:
        verdict = f"{gate:g} {'met' if ratio.median >= gate else 'missed'}"
    cells = [
        workload, f"{a.weights}, {a.kv}", _number(results.median(ours, workload, "output_throughput")),
        f"{b.kind} {b.weights}, {b.kv}", _number(results.median(peer, workload, "output_throughput")),
        str(ratio), str(len(ratio.values)), verdict, _no_worse(ttft), _no_worse(tpot),
    ]  # fmt: skip
    return _row(*cells)


def _no_worse(ratio: Ratio) -> str:
    """A ratio of latencies: the smaller the better, and above 1 is worse than the peer."""
    if ratio.median is None:
        return "-"
    return f"{ratio.median:.2f}" + (" worse" if ratio.median > 1 else "")


def engine_table(results: Results) -> Iterator[str]:
    """Every engine's figures: medians over the rounds that count."""
    yield _row(
        "workload", "engine", "weights", "KV", "counted", "output tok/s (range)", "TTFT p50 / p95, ms",
        "TPOT p50 / p95, ms", "peak RSS, MB", "triad, GB/s",
    )  # fmt: skip
    yield "|" + "---|" * 10
    for workload in results.workloads():
        for name in results.engines():
            if results.num_timed(name, workload):
                yield _engine_row(results, workload, name)


def _engine_row(results: Results, workload: str, name: str) -> str:
    engine, rows = ENGINES[name], results.good(name, workload)
    speeds = [row["output_throughput"] for row in rows.values()]
    span = f" ({min(speeds):.1f} to {max(speeds):.1f})" if speeds else ""
    rss = results.median(name, workload, "peak_rss_bytes")
    cells = [
        workload, engine.kind, engine.weights, engine.kv,
        f"{len(rows)} of {results.num_timed(name, workload)}",
        _number(results.median(name, workload, "output_throughput")) + span,
        " / ".join(_number(results.median(name, workload, f"{p}_ttft_ms"), 0) for p in ("p50", "p95")),
        " / ".join(_number(results.median(name, workload, f"{p}_tpot_ms")) for p in ("p50", "p95")),
        _number(None if rss is None else rss / 1e6, 0), _number(results.median(name, workload, "triad_gb_per_s")),
    ]  # fmt: skip
    return _row(*cells)


def start_table(results: Results) -> Iterator[str]:
    """Process start to first token, with the model's file in the page cache or not, as it was."""
    yield _row("engine", "weights", "starts", "ready, s", "first token, s")
    yield "|" + "---|" * 5
    for name in results.engines():
        rows = results.starts.get(name, [])
        if rows:
            ready, first = (statistics.median(row[key] for row in rows) for key in ("ready_s", "first_token_s"))
            yield _row(ENGINES[name].kind, ENGINES[name].weights, str(len(rows)), f"{ready:.2f}", f"{first:.2f}")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def about(runs: list[Row]) -> Iterator[str]:
    """Commit, date and machine of each run."""
    for run in runs:
        machine = run["machine"]
        memory = f", {machine['memory_bytes'] / 2**30:.0f} GiB" if machine["memory_bytes"] else ""
        yield (
            f"Commit {run['commit']}, {run['date']}, {machine['cpus']} CPUs of {machine['cpu']}{memory}, "
            f"{run['rounds']} rounds, servers {run['servers']}."
        )


def render(results: Results, *, ratios_only: bool = False) -> str:
    """The whole page."""
    parts = [*about(results.runs), "", *ratio_table(results)]
    if not ratios_only:
        parts += ["", *engine_table(results), "", *start_table(results)]
    parts += ["", *results.notes] if results.notes else []
    if results.void:
        parts += ["", "Left out:", "", *(f"* {reason}" for reason in results.void)]
    return "\n".join(parts) + "\n"


def read_rows(paths: Iterable[Path]) -> Iterator[Row]:
    for path in paths:
        for line in path.read_text().splitlines():
            yield json.loads(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--scaling", choices=("linear", "between"), default="linear")
    parser.add_argument("--ratios-only", action="store_true", help="leave out the table of every engine's figures")
    parser.add_argument("--reference", type=Path, default=Path(__file__).parent / "reference.json")
    args = parser.parse_args()
    results = Results(read_rows(args.results), Reference.read(args.reference), args.scaling)
    sys.stdout.write(render(results, ratios_only=args.ratios_only))


if __name__ == "__main__":
    main()
