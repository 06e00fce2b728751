"""Every way to compute that the tests know: back end, dtype and kernel path."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from octavo import _native, registry

PATHS: list[str] = _native.supported_paths()
DTYPES = ("float32", "bfloat16")


class Way(msgspec.Struct, frozen=True):
    """One way to compute."""

    backend: str
    dtype: str
    isa: str | None = None

    def __str__(self) -> str:
        return "-".join(part for part in (self.backend, self.isa, self.dtype) if part)

    def open(self, *, num_threads: int | None = 2) -> Any:
        if self.backend == "torch":
            num_threads = 1  # its tensors are tiny here, and its threads wait for each other by spinning
        return registry.resolve("backends", self.backend)(self.dtype, num_threads=num_threads, isa=self.isa)


CPU_WAYS = [Way("cpu", dtype, isa) for isa in PATHS for dtype in DTYPES]
ALL_WAYS = [Way("reference", dtype) for dtype in DTYPES] + CPU_WAYS + [Way("torch", dtype) for dtype in DTYPES]


def ways(chosen: list[Way]) -> list[Any]:
    """As parameters of a test; those on torch carry its mark."""
    return [pytest.param(w, id=str(w), marks=[pytest.mark.torch] if w.backend == "torch" else []) for w in chosen]
