"""--stream-interval: deltas joined until they hold enough tokens."""

from __future__ import annotations

import pytest

from octavo.config import HTTPConfig
from octavo.engine.outputs import TextDelta
from octavo.errors import ConfigError
from octavo.server.openai.event_tap import Joined


def play(interval: int, *deltas: tuple[int, str, str | None]) -> list[tuple[int, str, int]]:
    """(choice, text, tokens) of what goes out of deltas of a token each: (choice, text, finish reason)."""
    out: list[tuple[int, str, int]] = []

    def frames_of(choice: int, delta: TextDelta) -> bytes:
        out.append((choice, delta.text, len(delta.token_ids)))
        return b"frame"

    joined = Joined(frames_of, interval)
    for choice, text, reason in deltas:
        number = len(out)
        frames = joined(choice, TextDelta(index=choice, text=text, token_ids=[7], finish_reason=reason))
        assert frames == b"frame" * (len(out) - number)
    return out


def test_the_first_at_once_then_every_so_many_and_the_rest_at_the_end() -> None:
    deltas = [(0, letter, None) for letter in "abcdefg"] + [(0, "h", "stop")]
    assert play(3, *deltas) == [(0, "a", 1), (0, "bcd", 3), (0, "efg", 3), (0, "h", 1)]
    assert play(5, *deltas) == [(0, "a", 1), (0, "bcdef", 5), (0, "gh", 2)]


def test_choices_are_counted_apart() -> None:
    deltas = [(0, "a", None), (1, "A", None), (0, "b", None), (1, "B", None), (0, "c", None), (1, "C", "length")]
    assert play(2, *deltas) == [(0, "a", 1), (1, "A", 1), (0, "bc", 2), (1, "BC", 2)]


def test_it_is_at_least_one() -> None:
    with pytest.raises(ConfigError, match="stream_interval = 0: must be from 1"):
        HTTPConfig(stream_interval=0)
