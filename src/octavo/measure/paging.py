"""What paging costs in the attention kernel: decode over scattered blocks beside the same tokens in one long array.

The paper compares its kernel with FasterTransformer's, which is another program (section 7.1). Here one kernel reads
both, so the ratio holds what paging itself adds: the block table, and jumps between blocks. Forms take turns, and
ratios are taken within a turn, so a machine that changes its speed between turns changes no ratio.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from octavo import _native
from octavo.measure.attention import CONTIGUOUS, PAGED, AttentionPass, Batch, Layout
from octavo.measure.cases import Clock, take_turns
from octavo.measure.shapes import Shapes

IN_ORDER = replace(PAGED, name="blocks of 16, in order", scattered=False)
LAYOUTS = (CONTIGUOUS, IN_ORDER, PAGED)
"""The long array, then what the table adds to it, then what scattering adds to that."""

OPT_13B = Shapes(num_heads=40, num_kv_heads=40, head_dim=128, num_layers=1)
"""Attention of one layer of OPT-13B, whose kernel the paper times."""

_MOST_BYTES = 192 << 20
"""KV of a pass: enough to come from memory and not from a cache, little enough for a small machine."""


@dataclass(frozen=True)
class PagingPoint:
    """One layout of one batch. Times are medians over the turns."""

    num_seqs: int
    context: int
    """Tokens per sequence."""
    layout: str
    block_size: int
    us_per_layer: float
    ratio: float
    """Time over that of the first layout: the median of the turns' own ratios, and their quartiles."""
    ratio_low: float
    ratio_high: float


def paging_points(
    shapes: Shapes,
    batches: Sequence[Batch],
    pool: _native.ThreadPool,
    isa: str,
    *,
    layouts: Sequence[Layout] = LAYOUTS,
    dtype: str = "bfloat16",
    repeats: int = 15,
    clock: Clock = time.perf_counter,
) -> Iterator[PagingPoint]:
    """Time every layout of every batch, the layouts of a batch in turn.

    Args:
        shapes: Of the model; of its layers only as many are timed as fit a memory of moderate size.
        repeats: Turns, two at least.

    Yields:
        Batch by batch, in the order of `layouts`; the first of them is what the others are compared with.
    """
    for batch in batches:
        fitting = replace(shapes, num_layers=_num_layers(shapes, batch, dtype))
        fitted = [_without_holes(layout, batch) for layout in layouts]
        cases = [AttentionPass(fitting, batch, dtype, pool, isa, layout).case() for layout in fitted]
        seconds = take_turns([case.run for case in cases], repeats, clock)
        for layout, own in zip(fitted, seconds, strict=True):
            low, middle, high = statistics.quantiles(
                (a / b for a, b in zip(own, seconds[0], strict=True)), n=4, method="inclusive"
            )
            yield PagingPoint(
                num_seqs=batch.num_seqs,
                context=batch.context,
                layout=layout.name,
                block_size=layout.block_size,
                us_per_layer=statistics.median(own) / fitting.num_layers * 1e6,
                ratio=middle,
                ratio_low=low,
                ratio_high=high,
            )


def _without_holes(layout: Layout, batch: Batch) -> Layout:
    """The contiguous layout in blocks that the sequences fill: what follows a half-filled one would lie further off."""
    if layout is not CONTIGUOUS:
        return layout
    return replace(layout, block_size=min(layout.block_size, 1 << (batch.context.bit_length() - 1)))


def _num_layers(shapes: Shapes, batch: Batch, dtype: str) -> int:
    element_bytes = {"float32": 4, "bfloat16": 2, "int8": 1}[dtype]
    layer_bytes = batch.num_seqs * batch.context * 2 * shapes.kv_width * element_bytes
    return max(1, min(shapes.num_layers, _MOST_BYTES // layer_bytes))


def scattered(block_size: int) -> Layout:
    """Blocks of another size, in random order."""
    return replace(PAGED, name=f"blocks of {block_size}", block_size=block_size)
