"""Weights in groups, for back ends that compute with floats."""

from __future__ import annotations

import numpy as np

from octavo.backends.protocol import Float32Array, GroupedWeight


def expand(weight: GroupedWeight) -> Float32Array:
    """What the codes stand for, `[N, K]`, by the formula of `GroupedWeight`."""
    columns = weight.codes.shape[1]

    def of_elements(values: Float32Array) -> Float32Array:
        return np.repeat(values, weight.group, axis=1)[:, :columns]

    with np.errstate(all="ignore"):  # stored scales may be infinite or NaN
        expanded = of_elements(weight.scales) * (weight.codes.astype(np.float32) - np.float32(weight.zero))
        if weight.minimums is not None:
            expanded += of_elements(weight.minimums)
    return expanded
