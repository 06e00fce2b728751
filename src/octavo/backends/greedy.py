"""The greedy choice from logits that are all there: what `Program.run_greedy` means."""

from __future__ import annotations

import numpy as np

from octavo.backends.protocol import Array, Int32Array


def greedy(logits: Array) -> Int32Array:
    """Of `[S, vocab]` the index of each row's largest, the lowest among equals; -1 where one is NaN or the largest is
    not finite."""
    largest = logits.max(axis=1)  # NaN if there is one
    return np.where(np.isfinite(largest), logits.argmax(axis=1), -1).astype(np.int32)
