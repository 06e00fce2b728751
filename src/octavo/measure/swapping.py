"""Swapping a sequence out and in against computing it again, by block size: the paper's figure 19a, on this CPU.

One sequence in the real worker, by plans made by hand: its tokens are computed in one step, its blocks go to the host
tier and come back into other blocks. Times are the worker's own, which is what the engine chooses by.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from octavo.backends.protocol import KVShape
from octavo.core.step import RowSetup, StepPlan, StepResult
from octavo.errors import ConfigError
from octavo.measure.model import Model
from octavo.messages import SamplingParams
from octavo.models.decoder import decoder
from octavo.worker.batch_state import BatchState
from octavo.worker.model_runner import ModelRunner
from octavo.worker.tier_store import HostTier

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SWAPS = 5
"""In a turn: they take little beside computing the sequence."""


@dataclass(frozen=True)
class Turn:
    """Seconds of one turn of one block size."""

    out_s: float
    in_s: float
    recompute_s: float

    @property
    def both_s(self) -> float:
        return self.out_s + self.in_s


@dataclass(frozen=True)
class SwapPoint:
    """One block size: medians over its turns."""

    block_size: int
    out_s: float
    in_s: float
    both_s: float
    recompute_s: float
    ratio: float
    """Computing again over out and in: the median of the turns' own ratios."""


class SwapWorker:
    """A worker with one row. Blocks `1 .. columns` and `columns + 1 .. 2 * columns` hold it in turn.

    Args:
        kv_dtype: Of the KV memory; None for the model's dtype.
    """

    def __init__(self, model: Model, block_size: int, num_tokens: int, kv_dtype: str | None = None) -> None:
        spec, backend = model.spec, model.backend
        if spec.windows != (None,):
            raise ConfigError("model", model.name, "one with full attention in all layers")
        if not 1 <= num_tokens <= min(spec.max_position, spec.vocab_size):
            raise ConfigError("tokens", num_tokens, f"from 1 to {min(spec.max_position, spec.vocab_size)}")
        self._columns = -(-num_tokens // block_size)
        self._tokens = [i * i % spec.vocab_size for i in range(num_tokens)]
        kv = backend.allocate_kv(
            KVShape(
                layer_groups=(0,) * spec.num_layers,
                num_kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                dtype=kv_dtype or model.dtype,
                block_size=block_size,
                num_blocks=2 * self._columns + 1,
                max_num_seqs=1,
                max_blocks_per_seq=self._columns + 1,
            )
        )
        self._runner = ModelRunner(
            backend,
            backend.compile(decoder(spec, model.weights), kv, num_tokens),
            kv,
            BatchState(1, num_tokens),
            HostTier(self._columns, kv.shape.bytes_per_block),
        )
        self._num_plans = 0

    def turn(self) -> Turn:
        """Compute the sequence, and swap it out and bring it back `SWAPS` times, of which the medians count."""
        setup = RowSetup(
            row=0,
            token_ids=self._tokens,
            num_prompt_tokens=len(self._tokens),
            num_computed_tokens=0,
            sampling=SamplingParams(temperature=0),
            seed=0,
            sequence_index=0,
        )
        table = [(0, 0, column, column + 1) for column in range(self._columns)]
        computed = self._execute(rows=[0], num_new_tokens=[len(self._tokens)], setups=[setup], table_growth=table)
        self._execute(released_rows=[0])
        swaps = [self._swap(first=1 + number % 2 * self._columns) for number in range(SWAPS)]
        out_s, in_s = (statistics.median(seconds) for seconds in zip(*swaps, strict=True))
        return Turn(out_s, in_s, computed.forward_s)

    def _swap(self, first: int) -> tuple[float, float]:
        """Seconds to swap the blocks from `first` on out, and to bring them back as the others."""
        others = 2 + self._columns - first
        columns = range(self._columns)
        out = self._execute(swap_out=[(first + column, column) for column in columns])
        back = self._execute(swap_in=[(column, others + column) for column in columns])
        self._execute(discards=list(columns))
        if out.failed_swap_out or back.failed_swap_in:
            raise MemoryError("the host has no memory for the swapped blocks")
        return out.swap_s, back.swap_s

    def _execute(self, **parts: object) -> StepResult:
        self._num_plans += 1
        plan = StepPlan(self._num_plans, [], [], [], [], [], [])
        for name, value in parts.items():
            setattr(plan, name, value)
        return self._runner.execute(plan)


def swap_turns(
    model: Model, num_tokens: int, block_sizes: Sequence[int] = BLOCK_SIZES, repeats: int = 9
) -> dict[int, list[Turn]]:
    """The turns of each block size, taken in turn after one that does not count.

    Raises:
        ConfigError: If the model has no room for so many tokens.
    """
    workers = {size: SwapWorker(model, size, num_tokens) for size in block_sizes}
    turns: dict[int, list[Turn]] = {size: [] for size in block_sizes}
    for repeat in range(-1, repeats):
        for size, worker in workers.items():
            turn = worker.turn()
            if repeat >= 0:
                turns[size].append(turn)
    return turns


def swap_points(turns: dict[int, list[Turn]]) -> Iterator[SwapPoint]:
    """Medians, block size by block size."""
    for size, own in turns.items():
        yield SwapPoint(
            block_size=size,
            out_s=statistics.median(turn.out_s for turn in own),
            in_s=statistics.median(turn.in_s for turn in own),
            both_s=statistics.median(turn.both_s for turn in own),
            recompute_s=statistics.median(turn.recompute_s for turn in own),
            ratio=statistics.median(turn.recompute_s / turn.both_s for turn in own),
        )
