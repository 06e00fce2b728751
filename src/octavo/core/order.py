"""In which order sequences are served: who comes first is admitted first, and gives way last."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from octavo.core.request import Sequence

Order = Callable[[Sequence], Any]
"""What sequences are sorted by: unique, and such that those of one request stay together."""

by_arrival: Order = attrgetter("arrival")


def by_priority(sequence: Sequence) -> tuple[int, int]:
    """Lower numbers first, then the earlier arrival."""
    return sequence.source.priority, sequence.arrival
