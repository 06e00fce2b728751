"""What a step takes: the contract between the simulated executor and the models of devices."""

from __future__ import annotations

from typing import Protocol

import msgspec


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """Prompt tokens of one sequence in one step."""

    num_tokens: int
    num_before: int
    """Tokens of the sequence that were there already; they are read."""


class StepWork(msgspec.Struct, kw_only=True):
    """A plan as a cost model sees it. A row with one new token after its prompt is a decode; other rows are chunks."""

    num_tokens: int = 0
    """New tokens of all rows: rows of every matrix product."""
    num_decodes: int = 0
    decode_context_tokens: int = 0
    """Tokens that all decodes attend to, their own included."""
    chunks: list[Chunk] = []
    num_sampled: int = 0
    """Rows whose next token is sampled."""
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
