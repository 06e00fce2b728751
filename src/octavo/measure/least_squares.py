"""Least squares whose solution is nowhere below 0."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]


def nnls(matrix: Any, target: Any, max_steps: int = 1000) -> FloatArray:
    """The x >= 0 that minimises |matrix @ x - target| (Lawson and Hanson, "Solving Least Squares Problems", 1974,
    chapter 23).

    Columns are scaled to length 1 first, so that their units do not matter.

    Args:
        matrix: float `[rows, columns]`.
        target: float `[rows]`.
        max_steps: Times a column may enter the solution.

    Raises:
        ValueError: For shapes that do not go together.
    """
    a, b = np.asarray(matrix, np.float64), np.asarray(target, np.float64)
    if a.ndim != 2 or b.shape != (a.shape[0],):
        raise ValueError(f"a matrix of {a.shape} and a target of {b.shape}")
    lengths = np.linalg.norm(a, axis=0)
    used = lengths > 0
    scale = np.where(used, lengths, 1.0)
    a = a / scale
    x: FloatArray = np.zeros(a.shape[1])
    inside = np.zeros(a.shape[1], bool)
    tolerance = 1e-10 * (np.linalg.norm(b) or 1.0)
    for _ in range(max_steps):
        gradient = a.T @ (b - a @ x)
        candidates = np.flatnonzero(~inside & used & (gradient > tolerance))
        if not len(candidates):
            break
        inside[candidates[np.argmax(gradient[candidates])]] = True
        while True:
            solved = np.zeros_like(x)
            solved[inside] = np.linalg.lstsq(a[:, inside], b, rcond=None)[0]
            if (solved[inside] > 0).all():
                break
            # Go towards it as far as nothing becomes negative, and let go of what has become 0.
            falling = inside & (solved <= 0)
            share = np.min(x[falling] / (x[falling] - solved[falling]))
            x = x + share * (solved - x)
            inside &= x > tolerance * 1e-6
            x[~inside] = 0.0
        x = solved
    return x / scale
