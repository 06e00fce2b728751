"""Requests that wait for their grammars."""

from __future__ import annotations

import threading
import time

import pytest

from octavo.engine import grammar_desk
from octavo.engine.grammar_desk import MAX_COMPILING, MAX_LOST, GrammarDesk, Ready
from octavo.errors import RequestError
from octavo.messages import EngineRequest, SamplingParams
from octavo.structured import REGEX, Grammar


class SlowGrammars:
    """Compiles a text when it is told to. Ids are 1, 2, ...; what is released is noted."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.released: list[int] = []
        self._doors: dict[str, threading.Event] = {}
        self._next = 0
        self.vocabulary = threading.Event()
        self.vocabulary.set()

    def use_vocabulary(self, load: object) -> None:
        raise AssertionError("nobody has one")

    def prepare(self, param: str) -> None:
        assert self.vocabulary.wait(10)

    def compile(self, grammar: Grammar) -> int:
        self.begun.append(grammar.text)
        assert self.door(grammar.text).wait(10)
        if grammar.text == "bad":
            raise RequestError(grammar.param, message="it is bad")
        if grammar.text == "panic":
            raise BaseException("a panic")
        self._next += 1
        return self._next

    def release(self, grammar_id: int) -> None:
        self.released.append(grammar_id)

    def door(self, text: str) -> threading.Event:
        return self._doors.setdefault(text, threading.Event())


def request(number: int, text: str, n: int = 1) -> EngineRequest:
    return EngineRequest(
        request_id=number,
        token_ids=[1],
        num_prompt_tokens=1,
        sampling=SamplingParams(n=n),
        seed=0,
        max_tokens=4,
        grammar=Grammar(REGEX, text, "here"),
    )


class Desk:
    def __init__(self) -> None:
        self.grammars = SlowGrammars()
        self.now_s = 0.0
        self.desk = GrammarDesk(self.grammars, lambda: self.now_s)

    def take(self, number: int, text: str, n: int = 1) -> None:
        given = request(number, text, n)
        assert given.grammar is not None
        self.desk.take(given, given.grammar)

    def begun(self, count: int) -> None:
        """Wait until so many compilations have begun."""
        until = time.monotonic() + 5
        while len(self.grammars.begun) < count:
            assert time.monotonic() < until
            time.sleep(0.001)

    def after(self, *texts: str) -> list[Ready]:
        """What is ready once these are compiled."""
        found: list[Ready] = []
        for text in texts:
            self.grammars.door(text).set()
        until = time.monotonic() + 5
        while len(found) < len(texts) and time.monotonic() < until:
            self.desk.wait(0.01)
            found += self.desk.ready()
        return found


def ids(found: list[Ready]) -> list[tuple[int, int | None]]:
    return [(ready.request.request_id, ready.request.grammar_id) for ready in found]


def test_a_request_goes_on_with_the_id_of_its_grammar() -> None:
    desk = Desk()
    desk.take(7, "a")
    assert desk.desk.has_waiting and desk.desk.ready() == []
    assert ids(desk.after("a")) == [(7, 1)]
    assert not desk.desk.has_waiting and desk.desk.has_grammars
    desk.desk.forget_ended({7: None})
    assert desk.grammars.released == []
    desk.desk.forget_ended({})
    assert desk.grammars.released == [1] and not desk.desk.has_grammars


def test_a_hard_grammar_holds_nobody_up() -> None:
    desk = Desk()
    for number, text in enumerate(["hard", "easy", "next"]):
        desk.take(number, text)
    time.sleep(0.05)
    assert sorted(desk.grammars.begun) == ["easy", "hard"] and MAX_COMPILING == 2
    assert ids(desk.after("easy", "next")) == [(1, 1), (2, 2)]
    assert ids(desk.after("hard")) == [(0, 3)]


def test_failures_are_told_with_their_reason() -> None:
    desk = Desk()
    desk.take(1, "bad")
    desk.take(2, "panic")
    bad, panic = sorted(desk.after("bad", "panic"), key=lambda ready: ready.request.request_id)
    assert str(bad.error) == "it is bad"
    assert isinstance(panic.error, RequestError) and panic.error.param == "here"
    assert not desk.desk.has_grammars


def test_what_takes_too_long_is_refused_and_gives_its_place_away() -> None:
    desk = Desk()
    for number in range(MAX_COMPILING + 1):
        desk.take(number, f"slow {number}")
    desk.begun(MAX_COMPILING)
    desk.now_s = grammar_desk.COMPILE_LIMIT_S + 0.1
    found = desk.desk.ready()
    assert [str(ready.error) for ready in found] == ["here: takes longer than 5 s to compile"] * MAX_COMPILING
    assert ids(desk.after(f"slow {MAX_COMPILING}")) == [(MAX_COMPILING, 1)]
    # What comes out of the others after all is let go.
    for number in range(MAX_COMPILING):
        desk.grammars.door(f"slow {number}").set()
    time.sleep(0.05)
    desk.take(9, "last")
    assert sorted(desk.grammars.released) == [2, 3]


def test_what_all_grammars_need_does_not_count() -> None:
    desk = Desk()
    desk.grammars.vocabulary.clear()
    desk.take(1, "first")
    desk.now_s = grammar_desk.COMPILE_LIMIT_S + 0.1
    assert desk.desk.ready() == []
    desk.grammars.vocabulary.set()
    desk.begun(1)
    desk.now_s += grammar_desk.COMPILE_LIMIT_S - 0.1
    assert desk.desk.ready() == []
    assert ids(desk.after("first")) == [(1, 1)]


def test_few_threads_are_lost_at_once() -> None:
    desk = Desk()
    for number in range(20):
        desk.take(number, f"slow {number}")
    for turn in range(1, 20):
        desk.begun(min(turn * MAX_COMPILING, MAX_LOST))
        desk.now_s = turn * (grammar_desk.COMPILE_LIMIT_S + 1)
        desk.desk.ready()
    time.sleep(0.05)
    assert len(desk.grammars.begun) <= MAX_LOST + MAX_COMPILING
    for number in range(20):
        desk.grammars.door(f"slow {number}").set()
    until = time.monotonic() + 5
    while desk.desk.has_waiting and time.monotonic() < until:
        desk.desk.wait(0.01)
        desk.desk.ready()
    assert not desk.desk.has_waiting


def test_who_is_given_up_meanwhile_is_not_told_of() -> None:
    desk = Desk()
    desk.take(1, "a", n=2)
    desk.take(2, "b", n=2)
    desk.desk.abort(1, None)
    desk.desk.abort(2, 1)
    desk.desk.abort(3, None)
    [ready] = desk.after("b")
    assert (ready.request.request_id, ready.aborted) == (2, {1})
    desk.grammars.door("a").set()
    until = time.monotonic() + 5
    while desk.desk.has_waiting and time.monotonic() < until:
        desk.desk.wait(0.01)
        assert desk.desk.ready() == []
    assert not desk.desk.has_waiting and len(desk.grammars.released) == 1


def test_an_engine_without_grammars_refuses_them() -> None:
    desk = GrammarDesk(None)
    given = request(1, "a")
    assert given.grammar is not None
    with pytest.raises(RequestError, match="here is not supported by this engine"):
        desk.take(given, given.grammar)
    assert desk.ready() == [] and not desk.has_waiting
