"""Bounds that every refusal must keep: under a second, and no large allocation."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from octavo.errors import ModelError


def refused(action: Callable[[], Any], *words: str, kind: type[ModelError], max_bytes: int = 4 << 20) -> ModelError:
    """Run `action`, which must raise `kind` with all `words` in its message, in bounded time and memory."""
    tracemalloc.start()
    begin = time.perf_counter()
    try:
        with pytest.raises(kind) as caught:
            action()
        took = time.perf_counter() - begin
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.type is kind
    for word in words:
        assert word in str(caught.value)
    assert took < 1.0
    assert peak < max_bytes
    return caught.value
