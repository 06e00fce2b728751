"""A simulated run as data, and the numbers that are kept of it."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.figures.figure import Numbers
from octavo.figures.probes import PROBES
from octavo.sim.paper_systems import BATCH_SIZES, REQUEST_LEVEL, PaperSystem, paper_system
from octavo.sim.result import SimResult
from octavo.sim.simulator import simulate
from octavo.traces.beams import BASE, recorded_beams
from octavo.traces.catalogue import workload

Option = tuple[str, int | float | str | bool | None]

SEED = 0
"""The artifact's."""


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """One system under one workload."""

    model: str
    """Of `sim.model_shape.PAPER_MODELS`; it stands for its GPUs, too."""
    system: str
    """Of `sim.paper_systems.POLICIES`."""
    workload: str
    """Of `traces.catalogue`."""
    rate: float
    """Requests per second."""
    duration_s: float
    """For which requests arrive; they are then served to the end, or to `until_s`."""
    workload_options: tuple[Option, ...] = ()
    """More arguments of the workload's, as pairs."""
    system_options: tuple[Option, ...] = ()
    """More arguments of `sim.paper_systems.paper_system`, as pairs."""
    probe: str | None = None
    """Of `figures.probes.PROBES`: what is looked at after each step."""
    window_s: tuple[float, float] = (0.0, float("inf"))
    """Between which times the probe looks."""
    until_s: float | None = None
    """When to stop, though requests may be unfinished."""
    arrivals: str = "artifact"
    """Of `traces.catalogue.ARRIVALS`; with "artifact" the requests are the paper's own draw."""
    seed: int = SEED
    beams: str = BASE
    """Of `traces.beams`: whose searches are replayed."""

    @property
    def label(self) -> str:
        return f"{self.system}, {self.model}, {self.workload}, {self.rate:g} requests/s"

    @property
    def is_alone(self) -> bool:
        return False

    @property
    def weight(self) -> float:
        options = dict(self.workload_options)
        return self.rate * self.duration_s * int(options.get("n") or options.get("beam_width") or 1)

    def run(self) -> Numbers:
        """See `summary`; what the probe saw is added under its own names."""
        system, cost = self._build()
        options = dict(self.workload_options)
        requests = workload(self.workload, self.rate, self.duration_s, self.seed, arrivals=self.arrivals, **options)
        probe = None if self.probe is None else PROBES[self.probe](*self.window_s)
        beams = recorded_beams(self.beams) if "beam_width" in options else None
        probes = [] if probe is None else [probe]
        result = simulate(system, cost, requests, probes=probes, until_s=self.until_s, beams=beams)
        return summary(result) | ({} if probe is None else probe.numbers())

    def _build(self) -> PaperSystem:
        options: dict[str, Any] = dict(self.system_options)
        if self.system == REQUEST_LEVEL:
            on_sharegpt, on_alpaca = BATCH_SIZES[self.model]
            options.setdefault("batch_size", on_alpaca if self.workload == "alpaca" else on_sharegpt)
        return paper_system(self.model, self.system, **options)


def summary(result: SimResult) -> Numbers:
    """A run in a few numbers, named as `SimResult` names them."""
    return {
        "latency_s": result.normalized_latency_s,
        "least_latency_s": least_latency_s(result),
        "num_requests": len(result.records),
        "num_unfinished": sum(not record.is_finished for record in result.records),
        "mean_running": result.mean_running,
        "end_s": result.end_s,
        "num_simulated_steps": result.num_steps,
        "num_preemptions": result.num_preemptions,
    }


def least_latency_s(result: SimResult) -> float:
    """What the normalised latency is at least, if the run ended before all were answered: who was not done by then
    counts as done at that moment. Of a run to the end it is the normalised latency itself."""
    latencies = [
        (finish_s - record.arrival_s) / record.num_output_tokens
        for record in result.records
        for finish_s in record.finishes_s or [result.end_s]
    ]
    return sum(latencies) / len(latencies)
