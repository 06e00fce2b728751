"""What kernels are measured with: the threads and the kernel path that a server would take."""

from __future__ import annotations

from functools import cache

from octavo import _native
from octavo.backends.cpu import chosen_path


@cache
def thread_pool() -> _native.ThreadPool:
    """One for the whole process, with the cores that affinity and cgroup allow."""
    return _native.ThreadPool(0)


def best_path() -> str:
    """OCTAVO_ISA, or the best path that this CPU has."""
    return chosen_path(None)
