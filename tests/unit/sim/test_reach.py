"""What layers with windows see, against counting one token after another."""

from __future__ import annotations

import random

import pytest

from octavo.core.kv_spec import KVGroup
from octavo.sim.cost_model import Chunk
from octavo.sim.reach import EVERYTHING, Reach

WINDOWS = (7, 7, None, 7, 20, 7)
GROUPS = (
    KVGroup(layers=(0, 1), window=7),
    KVGroup(layers=(3, 5), window=7),
    KVGroup(layers=(2,)),
    KVGroup(layers=(4,), window=20),
)


def seen(position: int, window: int | None) -> range:
    """Positions that the token at one attends to."""
    return range(0 if window is None else max(0, position - window + 1), position + 1)


def mean(counts: list[int]) -> float:
    return sum(counts) / len(WINDOWS)


@pytest.mark.parametrize("seed", range(20))
def test_windows_bound_what_is_seen(seed: int) -> None:
    rng = random.Random(seed)
    reach = Reach.of(GROUPS)
    contexts = [rng.randrange(1, 40) for _ in range(5)]
    assert reach.attended(contexts) == pytest.approx(mean([len(seen(n - 1, w)) for n in contexts for w in WINDOWS]))
    num_tokens, num_before = rng.randrange(1, 30), rng.randrange(40)
    chunk, new = Chunk(num_tokens, num_before, reach), range(num_before, num_before + num_tokens)
    assert chunk.num_pairs == pytest.approx(mean([len(seen(i, w)) for i in new for w in WINDOWS]))
    before = [{p for i in new for p in seen(i, w) if p < num_before} for w in WINDOWS]
    assert chunk.num_read == pytest.approx(mean([len(positions) for positions in before]))


def test_full_attention_is_counted_exactly() -> None:
    """Shares of layers are no reason for a figure to move in its last bit."""
    reach = Reach.of([KVGroup(layers=tuple(range(13)))])
    assert reach == EVERYTHING
    assert reach.attended([123, 456]) == 579 and reach.attended([0.1 + 0.2]) == 0.1 + 0.2
    assert (Chunk(3, 10).num_read, Chunk(3, 10).num_pairs) == (10, 11 + 12 + 13)
