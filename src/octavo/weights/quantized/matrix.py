"""A matrix that a checkpoint keeps in several tensors: integers or 8-bit floats, and their scales."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from octavo.backends.protocol import Float32Array, GroupedWeight
from octavo.weights.groups import hollow_groups_of
from octavo.weights.quantized.packed import Codes
from octavo.weights.safetensors import SafeTensor
from octavo.weights.shards import Shards

SCALES = ("F16", "BF16", "F32")
"""Dtypes a scale may have."""


class StoredMatrix(Protocol):
    """`[N, K]`. `tensors` are the names of those it is stored in."""

    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def kind(self) -> str:
        """How it is stored, for people."""

    @property
    def tensors(self) -> tuple[str, ...]: ...
    def grouped(self) -> GroupedWeight | None:
        """As `Checkpoint.read_grouped`."""

    def hollow(self) -> GroupedWeight | None:
        """As `Checkpoint.hollow_grouped`."""

    def floats(self) -> Float32Array:
        """What is stored stands for this, each element rounded to float32 once."""


class IntegerMatrix(msgspec.Struct, frozen=True, kw_only=True):
    """Element [n, k] is `scales[n, g] * (codes[n, k] - zeros[n, g])`, g being the group of column k.

    It becomes a GroupedWeight where that is the same bit by bit: groups of 16 or a multiple of 32 neighbouring
    columns, or whole rows; and, with zeros of their own, scales of 16 bits, so that scale * zero is a float32.
    """

    kind: str
    shape: tuple[int, int]
    tensors: tuple[str, ...]
    bits: int
    """4 or 8."""
    group: int
    """Columns of a scale; K or more for whole rows."""
    scale_dtype: str
    """One of SCALES."""
    zero: int = 0
    """Of all groups, where there are no `zeros`."""
    codes: Callable[[], Codes]
    scales: Callable[[], Float32Array]
    """`[N, ceil(K / group)]`"""
    zeros: Callable[[], npt.NDArray[Any]] | None = None
    """Integers, as `scales`."""
    order: npt.NDArray[np.int32] | None = None
    """[K]: the group of each column, where groups are no neighbours."""

    def grouped(self) -> GroupedWeight | None:
        kept = self._kept_group()
        if kept is None:
            return None
        scales = self._spread(self.scales(), kept)
        minimums = None
        if self.zeros is not None:
            with np.errstate(all="ignore"):  # stored scales may be infinite or NaN
                minimums = -(scales * self._spread(self.zeros(), kept).astype(np.float32))
        return GroupedWeight(
            codes=self.codes(),
            scales=scales,
            minimums=minimums,
            bits=self.bits,
            group=kept,
            zero=self._kept_zero,
            half_scales=self._half_scales(kept),
        )

    def hollow(self) -> GroupedWeight | None:
        kept = self._kept_group()
        if kept is None:
            return None
        return hollow_groups_of(
            self.shape,
            self.bits,
            kept,
            self._kept_zero,
            has_minimum=self.zeros is not None,
            half_scales=self._half_scales(kept),
        )

    def floats(self) -> Float32Array:
        columns = np.arange(self.shape[1]) // self.group if self.order is None else self.order
        zeros = np.float32(self.zero) if self.zeros is None else self.zeros().astype(np.float32)[:, columns]
        values = self.codes().astype(np.float32)
        values -= zeros
        with np.errstate(all="ignore"):
            values *= self.scales()[:, columns]
        return values

    @property
    def _kept_zero(self) -> int:
        return self.zero if self.zeros is None else 0

    def _half_scales(self, kept: int) -> bool:
        return self.scale_dtype == "F16" and self.zeros is None and kept == 32

    def _kept_group(self) -> int | None:
        """Group of the GroupedWeight; None if there cannot be one."""
        if self.order is not None or (self.zeros is not None and self.scale_dtype == "F32"):
            return None
        if self.group >= self.shape[1] or self.group % 32 == 0:
            return 32
        return 16 if self.group == 16 and (self.zeros is None or self.bits == 4) else None

    def _spread(self, values: npt.NDArray[Any], kept: int) -> npt.NDArray[Any]:
        """Values of the stored groups for each of the groups that are kept."""
        if kept == self.group:
            return values
        starts = np.arange(0, self.shape[1], kept)
        return np.ascontiguousarray(values[:, starts // self.group])


class Float8Matrix(msgspec.Struct, frozen=True, kw_only=True):
    """Element [n, k] is `values[n, k] * scales[n // block[0], k // block[1]]`."""

    kind: str
    shape: tuple[int, int]
    shards: Shards
    values: str
    """The tensor's name."""
    scales: str
    block: tuple[int, int]

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.values, self.scales

    def grouped(self) -> None:
        return None

    def hollow(self) -> None:
        return None

    def floats(self) -> Float32Array:
        rows, columns = self.shape
        tall, wide = self.block
        values = self.shards.float32(self.values)
        scales = self.shards.float32(self.scales).reshape(-(-rows // tall), -(-columns // wide))
        with np.errstate(all="ignore"):
            if wide >= columns:
                values *= np.repeat(scales, tall, axis=0)[:rows]
                return values
            for i, row in enumerate(scales):
                values[i * tall : (i + 1) * tall] *= np.repeat(row, wide)[:columns]
        return values


def expect(shards: Shards, tensor: SafeTensor, dtypes: tuple[str, ...], *shapes: tuple[int, ...]) -> SafeTensor:
    """The tensor, if it has one of these dtypes and one of these shapes.

    Raises:
        ModelFileError: Naming the tensor.
    """
    if tensor.dtype not in dtypes:
        raise shards.error(tensor.name, f"is {tensor.dtype}; must be {' or '.join(dtypes)}")
    if tensor.shape not in shapes:
        raise shards.error(tensor.name, f"has shape {tensor.shape}; must be {' or '.join(map(str, shapes))}")
    return tensor


def expect_matrix(shards: Shards, tensor: SafeTensor, dtypes: tuple[str, ...]) -> SafeTensor:
    """The same for any matrix that is not empty."""
    if tensor.dtype not in dtypes:
        raise shards.error(tensor.name, f"is {tensor.dtype}; must be {' or '.join(dtypes)}")
    if len(tensor.shape) != 2 or 0 in tensor.shape:
        raise shards.error(tensor.name, f"has shape {tensor.shape}; must be a matrix")
    return tensor


def column_groups(shards: Shards, tensor: SafeTensor | None, columns: int, group: int) -> npt.NDArray[np.int32] | None:
    """The group of each column, from a tensor that lists it; None where groups are neighbours.

    Raises:
        ModelFileError: Naming the tensor, if it names a group that there is not.
    """
    if tensor is None:
        return None
    expect(shards, tensor, ("I32",), (columns,))
    order: npt.NDArray[np.int32] = shards.integers(tensor.name)
    num_groups = -(-columns // group)
    if order.min() < 0 or order.max() >= num_groups:
        raise shards.error(tensor.name, f"names groups from {order.min()} to {order.max()}; there are {num_groups}")
    return None if np.array_equal(order, np.arange(columns) // group) else order.copy()


def groups_for_people(group: int, columns: int) -> str:
    return "whole rows" if group >= columns else f"groups of {group}"
