"""Steps of a measured engine: a sum of a few terms, each a count times the seconds that one of it was found to take.

    step        once for every step that computes anything: weights are streamed, threads are woken, the step is planned
    chunked     once more where the step holds prompt chunks: its arrays are made anew
    tokens      by number of tokens, piecewise linear: arithmetic hides behind the weights at first, then does not
    logits      once where anything is sampled: the output projection is streamed
    sampled     per sampled row: its logits and the draw
    decode      per sequence that decodes: its part of planning and applying
    context     per token that decodes attend to: its keys and values are read
    chunk       per prompt chunk: admission, block tables, keys of blocks
    pairs       per pair of a chunk's token and one that it attends to
    behind      per token before a chunk: its keys and values are read
    copied, swapped_out, swapped_in     per block

Where layers have windows, context, pairs and behind count what is within them, as means over the layers. A mixture of
experts needs no term of its own: how many experts a step touches depends on its number of tokens.

`octavo bench fit` finds the seconds by least squares, none below 0. Everything the engine does between two steps is in
them too: in a simulation the core itself takes no time.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from typing import Any

import msgspec

from octavo.errors import ConfigError
from octavo.sim.cost_model import StepCost, StepWork

KNOTS = (0, 2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of tokens between which a step's time is linear; beyond the last along the last line."""

COUNTS = ("step", "chunked", "logits", "sampled", "decode", "context", "chunk", "pairs", "behind")
"""Terms of a step besides tokens, in the order of `counts`."""


def counts(work: StepWork) -> tuple[float, ...]:
    """How often each of `COUNTS` occurs in a step."""
    chunks = work.chunks
    return (
        1.0 if work.num_tokens else 0.0,
        1.0 if chunks else 0.0,
        1.0 if work.num_sampled else 0.0,
        work.num_sampled,
        work.num_decodes,
        work.decode_context_tokens,
        len(chunks),
        sum(chunk.num_pairs for chunk in chunks),
        sum(chunk.num_read for chunk in chunks),
    )


def spans(num_tokens: int, knots: tuple[int, ...] = KNOTS) -> list[float]:
    """How much of `num_tokens` lies between each two neighbouring knots; what is past the last knot is in the last."""
    found = [float(min(max(num_tokens - low, 0), high - low)) for low, high in itertools.pairwise(knots)]
    found[-1] += max(0, num_tokens - knots[-1])
    return found


class FittedCost(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A CostModel. All figures are in seconds; see the top of this file.

    Raises:
        ConfigError: For a figure below 0, or as many seconds per token as there are not spans.
    """

    knots: tuple[int, ...]
    token_s: tuple[float, ...]
    """Seconds per token in each span between two knots."""
    step_s: float
    chunked_s: float
    logits_s: float
    sampled_s: float
    decode_s: float
    context_s: float
    chunk_s: float
    pairs_s: float
    behind_s: float
    copied_s: float = 0.0
    swapped_out_s: float = 0.0
    swapped_in_s: float = 0.0

    def __post_init__(self) -> None:
        knots = self.knots
        if len(knots) < 2 or knots[0] != 0 or any(a >= b for a, b in itertools.pairwise(knots)):
            raise ConfigError("knots", knots, "rising numbers of tokens, the first 0")
        if len(self.token_s) != len(knots) - 1:
            raise ConfigError("token_s", self.token_s, f"one figure for each of {len(knots) - 1} spans")
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if field != "knots" and any(
                not 0 <= x < float("inf") for x in (value if isinstance(value, tuple) else [value])
            ):
                raise ConfigError(field, value, "seconds, not below 0")
        if not self.step_s + sum(self.token_s) > 0:
            raise ConfigError("step_s", self.step_s, "above 0, or a step would take no time")

    @classmethod
    def of(
        cls, coefficients: list[float], knots: tuple[int, ...] = KNOTS, blocks: dict[str, float] | None = None
    ) -> FittedCost:
        """From seconds in the order of `row`; `blocks` are the figures per block."""
        num_spans = len(knots) - 1
        rest = {f"{name}_s": value for name, value in zip(COUNTS, coefficients[num_spans:], strict=True)}
        return cls(knots=knots, token_s=tuple(coefficients[:num_spans]), **rest, **(blocks or {}))

    def step(self, work: StepWork) -> StepCost:
        forward_s = work.num_copied_blocks * self.copied_s
        if work.num_tokens:
            forward_s += (
                self.step_s
                + self.tokens_s(work.num_tokens)
                + work.num_decodes * self.decode_s
                + work.decode_context_tokens * self.context_s
            )
        if work.num_sampled:
            forward_s += self.logits_s + work.num_sampled * self.sampled_s
        if work.chunks:
            forward_s += self.chunked_s
            for chunk in work.chunks:
                forward_s += self.chunk_s + chunk.num_read * self.behind_s
                forward_s += chunk.num_pairs * self.pairs_s
        swap_s = work.num_swapped_out_blocks * self.swapped_out_s + work.num_swapped_in_blocks * self.swapped_in_s
        return StepCost(forward_s=forward_s, swap_s=swap_s)

    def tokens_s(self, num_tokens: int) -> float:
        """Of the term `tokens`."""
        knots, slopes = self.knots, self.token_s
        span = min(max(bisect_left(knots, num_tokens) - 1, 0), len(slopes) - 1)
        whole = sum(slopes[i] * (knots[i + 1] - knots[i]) for i in range(span))
        return whole + slopes[span] * (num_tokens - knots[span])


def row(work: StepWork, knots: tuple[int, ...] = KNOTS) -> list[float]:
    """A step as a line of the least squares: spans of tokens, then counts."""
    return [*spans(work.num_tokens, knots), *counts(work)]


class Residual(msgspec.Struct, frozen=True, kw_only=True):
    """How far the fit is from the steps it was made from, as shares of the measured times."""

    num_steps: int
    median: float
    p90: float
    bias: float
    """Mean of fitted over measured, less 1."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A cost model with where it comes from: the content of the file that `octavo bench fit` writes."""

    model: str
    date: str
    machine: dict[str, Any]
    engine: dict[str, Any]
    """What was measured: formats, threads, kernel path, and settings that change a step's time."""
    cost: FittedCost
    residuals: dict[str, Residual]
    """By kind of step: decode, chunks, mixed."""
    num_steps: int
    """Medians that went into the fit."""
    rounds: int
    round_s: tuple[float, ...] = ()
    """What each round took, all steps together: how much the machine's own speed moved."""


def read_fit(text: bytes, name: str) -> Fit:
    """A fit from its JSON.

    Args:
        name: Of the file, for messages.

    Raises:
        ConfigError: If it is not one, naming what is wrong.
    """
    try:
        return msgspec.json.decode(text, type=Fit)
    except (msgspec.DecodeError, ConfigError) as error:
        raise ConfigError("fit", name, f"a file written by `octavo bench fit` ({error})") from None
