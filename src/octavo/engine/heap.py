"""Memory that was freed and that the C library keeps."""

from __future__ import annotations

import ctypes


def give_back() -> None:
    """Return freed memory to the system. glibc keeps most of what threads have freed for what they may ask for next:
    after one text of megabytes that is a gigabyte. Takes some tens of milliseconds, in which other threads run.

    Nothing where the C library has no such call.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


_malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
