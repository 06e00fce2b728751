"""What a process that serves does around its start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator, Mapping


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """While a process imports and loads, look for no garbage: there is much to look at and little to find.

    What was made meanwhile stays for as long as the process does, so later collections leave it alone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()


def without_idle_threads(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment in which numpy's BLAS starts no threads: it would start one per core at import, and no kernel of
    ours ever calls it. A number that is already there stays."""
    return {"OPENBLAS_NUM_THREADS": "1", **environment}
