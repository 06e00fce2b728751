"""Stop strings: the same answer however the text is cut, and nothing held back without need."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.stop import StopStrings


def plain(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The obvious twin: look for every stop string at every end, shortest text first."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


def streamed(pieces: list[str], stops: list[str], include: bool = False) -> tuple[str, str | None]:
    """What comes out, with a check after every piece that only a beginning of a stop string is held back."""
    matcher = StopStrings(stops, include=include)
    out = ""
    for i, piece in enumerate(pieces):
        out += matcher.push(piece)
        if matcher.matched is not None:
            return out, matcher.matched
        held = "".join(pieces[: i + 1])[len(out) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    return out + matcher.finish(), None


WORDS = st.text(alphabet="abc", max_size=14)
STOPS = st.lists(st.text(alphabet="abc", min_size=1, max_size=5), min_size=1, max_size=3)


@given(WORDS, STOPS, st.booleans())
def test_every_split_in_two_equals_the_twin(text: str, stops: list[str], include: bool) -> None:
    expected = plain(text, stops, include)
    for cut in range(len(text) + 1):
        assert streamed([text[:cut], text[cut:]], stops, include) == expected
    assert streamed(list(text), stops, include) == expected


@given(st.lists(st.text(alphabet="ab\n é", max_size=4), max_size=8), STOPS)
def test_any_pieces_equal_the_twin(pieces: list[str], stops: list[str]) -> None:
    assert streamed(pieces, stops) == plain("".join(pieces), stops, include=False)


@pytest.mark.parametrize(
    ("pieces", "stops", "text"),
    [
        (["A", "B", "C", "D", "E"], ["CDE"], "AB"),
        ([" Paris"], ["Pari"], " "),
        (["?\n"], ["\n"], "?"),
        (["a", "aa", "ab"], ["aaab"], "a"),
        (["x", "ab", "a", "bc"], ["ababc"], "x"),
        (["same", "same"], ["same"], ""),
    ],
)
def test_known_cases(pieces: list[str], stops: list[str], text: str) -> None:
    assert streamed(pieces, stops) == (text, stops[0])


def test_the_string_complete_first_wins_and_of_equals_the_longest() -> None:
    assert streamed(["abcd"], ["abcd", "bc"]) == ("a", "bc")
    assert streamed(["xabc"], ["bc", "abc"]) == ("x", "abc")


def test_text_held_back_comes_out_at_the_end() -> None:
    matcher = StopStrings(["END."])
    assert matcher.push("the EN") == "the "
    assert matcher.push("D") == ""
    assert matcher.finish() == "END"
    assert matcher.finish() == ""


def test_a_long_stop_string_delays_nothing_that_cannot_begin_it() -> None:
    matcher = StopStrings(["#" + "x" * 1000])
    assert all(matcher.push(piece) == piece for piece in itertools.repeat("hello ", 50))


def test_include_keeps_the_string_and_drops_what_follows() -> None:
    matcher = StopStrings(["\n\n"], include=True)
    assert matcher.push("a\n") == "a"
    assert matcher.push("\nb") == "\n\n"
    assert matcher.matched == "\n\n"
