"""What waits for a reader who is slow: one delta, as it would have been, and small meanwhile."""

from __future__ import annotations

import math
import random
import tracemalloc
from collections.abc import Iterator

from octavo.engine.dispatch import Unread
from octavo.engine.outputs import TextDelta
from octavo.messages import TokenLogprobs


def deltas(count: int, num_top: int, seed: int = 0) -> Iterator[TextDelta]:
    rng = random.Random(seed)
    for i in range(count):
        top = [(rng.randrange(50000), -rng.expovariate(0.3)) for _ in range(num_top)]
        if i == 7:
            top[-1:] = [(3, -math.inf)]
        tokens = [rng.randrange(50000) for _ in range(i % 3)]
        logprobs = [TokenLogprobs(token, -rng.random(), rng.randrange(1, 9), top) for token in tokens]
        delta = TextDelta(index=0, text=f"word {i} ", token_ids=tokens, logprobs=logprobs)
        delta.num_cached_tokens = 16 if i == 0 else 0
        delta.finish_reason = "length" if i == count - 1 else None
        yield delta


def joined(coming: Iterator[TextDelta]) -> TextDelta:
    waiting = Unread(next(coming))
    for delta in coming:
        waiting.append(delta)
    return waiting.joined()


def test_what_waited_is_what_came() -> None:
    for count in (1, 2, 50):
        first, *later = deltas(count, num_top=20)
        for delta in later:
            first.append(delta)
        assert joined(deltas(count, num_top=20)) == first


def test_without_logprobs_there_are_none() -> None:
    parts = list(deltas(20, num_top=1))
    for part in parts:
        part.logprobs = None
    assert joined(iter(parts)).logprobs is None


def test_logprobs_from_a_later_delta_on() -> None:
    first, *later = deltas(5, num_top=2)
    expected = [entry for delta in later for entry in delta.logprobs or ()]
    first.logprobs = None
    assert joined(iter([first, *later])).logprobs == expected


def test_twenty_logprobs_for_a_token_take_less_than_their_text() -> None:
    """Of which each is some 40 bytes in an event."""
    count, num_top = 600, 20
    tracemalloc.start()
    try:
        coming = deltas(count, num_top)
        waiting = Unread(next(coming))
        before, _ = tracemalloc.get_traced_memory()
        for delta in coming:
            waiting.append(delta)
        del delta
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(waiting.joined().token_ids) == count
    assert grown < count * num_top * 25
