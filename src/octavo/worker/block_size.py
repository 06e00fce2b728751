"""How many tokens a KV block holds when nobody says. The answer comes with its arithmetic.

Two costs pull apart. Large blocks leave more of each sequence's last block empty: half a block on average, a share
`block_size / 2 / tokens` of its KV memory. Small blocks make attention change blocks more often: a share
`_SWITCH_BYTES / (block_size * bytes per token)` of its time. The two shares are added as they stand: where memory
limits the batch and reading it the step, lost memory costs the reading of the weights and lost time that of the KV,
and these are of one size.

Measured with benchmarks/block_size.py (two-core AMD EPYC Zen 4, one thread, decode at 512 tokens; docs/performance.md):

* a change of blocks costs 9 to 33 ns per layer and KV head, over six shapes of bfloat16 and float32, as much as reading
  180 to 760 bytes of KV; 350 is the median;
* blocks shorter than a vector of tokens must be gathered first, which makes attention 2.4 to 3.0 times slower;
* copies and swaps take time by the byte, with less than 1 us per block besides, and an entry of a block table is 4
  bytes beside a block of thousands: neither counts.
"""

from __future__ import annotations

import msgspec

CHOICES = (8, 16, 32, 64)

_SWITCH_BYTES = 350
_GATHER_SHARE = 1.5
_VECTOR_TOKENS = {"avx512": 16, "avx2": 8, "portable": 8}
"""By kernel path; paths that are not named never gather."""


class BlockSize(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens per block."""

    num_tokens: int
    reason: str
    """How it came about, in a sentence."""


class _Costs(msgspec.Struct, frozen=True):
    """Shares lost to one block size."""

    tail: float
    """Of a sequence's KV memory."""
    attention: float
    """Of the time that attention takes."""

    @property
    def total(self) -> float:
        return self.tail + self.attention

    def __str__(self) -> str:
        return f"{self.tail:.1%} + {self.attention:.1%}"


def choose_block_size(*, num_tokens: int, bytes_per_token: int, kernel_path: str) -> BlockSize:
    """Choose among `CHOICES` the size with the smallest cost, the smaller among equals.

    Args:
        num_tokens: What a typical sequence keeps: prompt plus answer, or a window where all layers have one.
        bytes_per_token: Key and value of one token, layer and KV head.
        kernel_path: As `Backend.describe` names it.
    """
    costs = {size: _costs(size, num_tokens, bytes_per_token, kernel_path) for size in CHOICES}
    best = min(CHOICES, key=lambda size: costs[size].total)
    others = "; ".join(f"{size}: {costs[size]}" for size in CHOICES if size != best)
    reason = (
        f"{best} tokens: with {num_tokens} tokens per sequence of {bytes_per_token} bytes per layer and KV head, "
        f"half-empty last blocks cost {costs[best].tail:.1%} of KV memory and changes of blocks "
        f"{costs[best].attention:.1%} of attention's time ({others})"
    )
    return BlockSize(num_tokens=best, reason=reason)


def _costs(block_size: int, num_tokens: int, bytes_per_token: int, kernel_path: str) -> _Costs:
    gathers = block_size < _VECTOR_TOKENS.get(kernel_path, 0)
    switches = _SWITCH_BYTES / (block_size * bytes_per_token)
    return _Costs(block_size / 2 / num_tokens, switches + (_GATHER_SHARE if gathers else 0.0))
