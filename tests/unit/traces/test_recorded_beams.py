"""Recorded beam searches: the bundled ones can be replayed; bad files are refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.traces.beams import BASE, CHAT, read_beams, recorded_beams

NUM_SEARCHES = {BASE: 21, CHAT: 42}


@pytest.mark.parametrize("model", NUM_SEARCHES)
def test_the_bundled_searches(model: str) -> None:
    replay = recorded_beams(model)
    assert replay.widths == [2, 4, 6]
    for width in replay.widths:
        steps = [replay.parents(seed, width, step) for seed in range(NUM_SEARCHES[model]) for step in range(1, 160)]
        assert all(len(step) == width and set(step) <= set(range(width)) for step in steps)
        # Real searches: mostly the order of the beams is kept, but far from always, and beams die out.
        assert any(len(set(step)) < width for step in steps)
        assert len(set(steps)) > 2 * width - 1


@pytest.mark.parametrize(
    ("model", "width", "wanted"),
    [(BASE, 2, 1.18), (BASE, 4, 1.93), (BASE, 6, 3.12), (CHAT, 2, 1.11), (CHAT, 4, 1.31), (CHAT, 6, 1.66)],
)
def test_how_long_beams_stay_apart(model: str, width: int, wanted: float) -> None:
    """Different beams among the ancestors 16 steps back, as docs/workloads.md has them."""
    assert mean_ancestors(model, width) == pytest.approx(wanted, abs=0.005)


def mean_ancestors(model: str, width: int) -> float:
    replay, counts = recorded_beams(model), []
    for seed in range(NUM_SEARCHES[model]):
        for last in range(16, 160):
            beams = set(range(width))
            for step in range(last, last - 16, -1):
                parents = replay.parents(seed, width, step)
                beams = {parents[beam] for beam in beams}
            counts.append(len(beams))
    return sum(counts) / len(counts)


def test_a_users_searches(tmp_path: Path) -> None:
    path = tmp_path / "beams.jsonl"
    path.write_text('{"width": 2, "prompt_tokens": 9, "parents": "000110"}\n')
    replay = read_beams(path)
    assert [replay.parents(0, 2, step) for step in range(3)] == [(0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("nothing", "line 1: record = 'nothing'"),
        ('{"width": 2, "parents": "0000"}', "line 1: record = "),
        ('{"width": 0, "prompt_tokens": 1, "parents": "0000"}', "line 1: width = 0"),
        ('{"width": 40, "prompt_tokens": 1, "parents": "0000"}', "line 1: width = 40"),
        ('{"width": 2, "prompt_tokens": 1, "parents": "00"}', "line 1: parents = '00'"),
        ('{"width": 2, "prompt_tokens": 1, "parents": "00011"}', "two or more steps of 2 digits"),
        ('{"width": 2, "prompt_tokens": 1, "parents": "0002"}', "digits below 2"),
        ('{"width": 2, "prompt_tokens": 1, "parents": "00?1"}', "digits below 2"),
        ('{"width": 2, "prompt_tokens": 1, "parents": "0101"}', "a search begins with one beam"),
    ],
)
def test_bad_searches_are_refused_by_line(tmp_path: Path, line: str, where: str) -> None:
    path = tmp_path / "beams.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(ConfigError) as caught:
        read_beams(path)
    assert where in str(caught.value)
