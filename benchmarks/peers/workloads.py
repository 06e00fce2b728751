"""What is sent: `octavo bench serve`'s workloads, one with more streams, and open loops at shares of capacity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.cli.bench_workload import CONCURRENCY, Item, synthetic


@dataclass(frozen=True, kw_only=True)
class Workload:
    """How one of the made workloads is sent."""

    made: str
    """Its name in `octavo.cli.bench_workload`."""
    in_flight: int | None
    """Requests at once; None: as they arrive."""
    copies: int = 1
    """How many times the workload's requests, in other words each time."""
    share: float | None = None
    """Poisson arrivals at this share of the requests a second that the closed loop of `chat` reached before it."""


WORKLOADS: dict[str, Workload] = {
    **{name: Workload(made=name, in_flight=count) for name, count in CONCURRENCY.items()},
    "chat64": Workload(made="chat", in_flight=64, copies=2),
    "poisson50": Workload(made="chat", in_flight=None, share=0.50),
    "poisson80": Workload(made="chat", in_flight=None, share=0.80),
    "poisson95": Workload(made="chat", in_flight=None, share=0.95),
}


def make_items(name: str, tokenizer: Any, seed: int) -> list[Item]:
    """The requests of a workload. Another seed gives other words of the same lengths, which no prefix cache knows."""
    workload = WORKLOADS[name]
    # Far apart, so that no other workload, round or copy draws the same words.
    seeds = (1000 * seed + 10 * list(WORKLOADS).index(name) + copy for copy in range(workload.copies))
    return [item for each in seeds for item in synthetic(workload.made, tokenizer, each)]


def one_answer_each(items: list[Item]) -> list[Item]:
    """For servers that give one answer a request: n requests instead of one with n answers."""
    return [msgspec.structs.replace(item, n=1) for item in items for _ in range(item.n)]
