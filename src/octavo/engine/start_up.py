"""What a process that serves does around its start."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


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
