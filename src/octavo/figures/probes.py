"""What is looked at while a simulation runs.

A probe walks the running sequences in each step; the core knows nothing of it. All averages are over the steps in a
window of time, as the authors' artifact takes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.core.contiguous import ContiguousKVManager
from octavo.core.engine_core import EngineCore
from octavo.figures import paper
from octavo.figures.figure import Numbers
from octavo.sim.cost_model import StepWork


class WindowedProbe(Protocol):
    """A probe that is asked what it saw when the run is over."""

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None: ...
    def numbers(self) -> Numbers: ...


class _Means:
    """Sums over the steps of a window, divided at the end."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._begin_s, self._end_s = begin_s, end_s
        self._count = 0
        self._sums: dict[str, float] = {}

    def covers(self, now_s: float) -> bool:
        return self._begin_s <= now_s < self._end_s

    def add(self, values: Numbers) -> None:
        self._count += 1
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def numbers(self) -> Numbers:
        """The means; none if no step fell into the window."""
        return {name: total / self._count for name, total in self._sums.items()} | {"num_steps": self._count}


class MemoryProbe:
    """Where the token slots of KV memory are, in per cent (paper, section 3 and Figure 2).

    A running sequence's slots hold its tokens; are reserved for the rest of its answer; or lie past the end of that,
    up to what its system sets aside for it (internal fragmentation). All other slots are external fragmentation, the
    rounding of chunks, or free. A paged system binds blocks when they are needed, so it reserves nothing.
    """

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._means = _Means(begin_s, end_s)

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        if not duration_s or not self._means.covers(now_s):
            return
        kv = core.scheduler.kv
        tokens = reserved = internal = 0
        for sequence in core.scheduler.running.values():
            tokens += sequence.num_computed_tokens
            if isinstance(kv, ContiguousKVManager):
                source, whole = sequence.source, sequence.max_num_tokens
                reserved += whole - sequence.num_computed_tokens
                internal += kv.reserved_tokens(source.num_prompt_tokens, source.max_tokens) - whole
        share = 100 / (kv.pool.num_blocks * kv.block_size)
        self._means.add(
            {
                paper.TOKENS: tokens * share,
                paper.RESERVED: reserved * share,
                paper.INTERNAL: internal * share,
                paper.REST: 100 - (tokens + reserved + internal) * share,
            }
        )

    def numbers(self) -> Numbers:
        return self._means.numbers()


class BatchProbe:
    """How many requests are in a step (paper, Figure 13)."""

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._means = _Means(begin_s, end_s)

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        if duration_s and self._means.covers(now_s):
            self._means.add({"requests": work.num_decodes + len(work.chunks)})

    def numbers(self) -> Numbers:
        return self._means.numbers()


class SharingProbe:
    """How much memory sequences save by sharing blocks (paper, Figure 15).

    `factor` is the mean of blocks that sequences name over distinct blocks among them; what is saved is 1 - 1/factor.
    """

    def __init__(self, begin_s: float, end_s: float) -> None:
        self._means = _Means(begin_s, end_s)

    def observe(self, core: EngineCore, work: StepWork, now_s: float, duration_s: float) -> None:
        if not duration_s or not self._means.covers(now_s):
            return
        num_named = 0
        distinct: set[int] = set()
        for sequence in core.scheduler.running.values():
            table = sequence.block_tables[0]
            num_named += len(table)
            distinct.update(table)
        if distinct:
            self._means.add({"factor": num_named / len(distinct)})

    def numbers(self) -> Numbers:
        return self._means.numbers()


PROBES: dict[str, Callable[[float, float], WindowedProbe]] = {
    "memory": MemoryProbe,
    "batch": BatchProbe,
    "sharing": SharingProbe,
}
"""By name: made for a window, seconds from and to."""
