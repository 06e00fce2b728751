"""What a step takes: the contract between the simulated executor and the models of devices."""

from __future__ import annotations

from typing import Protocol

import msgspec

from octavo.sim.reach import EVERYTHING, Reach


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens of one sequence in one step."""

    num_tokens: int
    num_before: int
    """Tokens of the sequence that were there already."""
    reach: Reach = EVERYTHING
    """How far its tokens look back."""

    @property
    def num_read(self) -> float:
        """Tokens before it that are read, the mean over layers."""
        return self.reach.read(self.num_before)

    @property
    def num_pairs(self) -> float:
        """Pairs of a token of it and one that it attends to, itself included; the mean over layers."""
        return self.reach.pairs(self.num_tokens, self.num_before)


class StepWork(msgspec.Struct, kw_only=True):
    """A plan as a cost model sees it. A row with one new token after its prompt is a decode; other rows are chunks."""

    num_tokens: int = 0
    """New tokens of all rows: rows of every matrix product."""
    num_decodes: int = 0
    decode_context_tokens: float = 0
    """Tokens that all decodes attend to, their own included; the mean over layers, which may have windows."""
    chunks: list[Chunk] = []
    num_sampled: int = 0
    """Rows whose next token is sampled."""
    num_siblings: int = 0
    """Of all sequences in the step, those beyond the first of their request: further answers, further beams."""
    num_copied_blocks: int = 0
    num_swapped_out_blocks: int = 0
    num_swapped_in_blocks: int = 0


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step. They add up: nothing overlaps."""

    forward_s: float
    """The model, sampling, and the host's own work."""
    swap_s: float = 0.0


class CostModel(Protocol):
    """What a device takes for a step."""

    def step(self, work: StepWork) -> StepCost: ...
