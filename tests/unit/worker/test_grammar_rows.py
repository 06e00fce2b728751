"""Where rows are in their grammars, and what may follow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.core.step import RowFork, RowSetup
from octavo.messages import SamplingParams
from octavo.structured import LARK, REGEX, Grammar
from octavo.worker import grammar_rows
from octavo.worker.batch_state import BatchState
from octavo.worker.grammar_rows import GrammarRows
from octavo.worker.grammar_store import GrammarStore
from support.byte_vocabulary import EOS, byte_vocabulary


class Rows:
    def __init__(self) -> None:
        self.store = GrammarStore()
        self.store.use_vocabulary(byte_vocabulary)
        self.state = BatchState(4, 32)
        self.rows = GrammarRows(self.store, self.state)

    def admit(self, row: int, regex: str | Grammar, answer: bytes = b"", **sampling: Any) -> None:
        grammar = Grammar(REGEX, regex) if isinstance(regex, str) else regex
        setup = RowSetup(
            row=row,
            token_ids=[1, 2, *answer],
            num_prompt_tokens=2,
            num_computed_tokens=0,
            sampling=SamplingParams(max_tokens=20, **sampling),
            seed=0,
            sequence_index=0,
            eos_token_ids=(EOS,),
            grammar_id=self.store.compile(grammar),
        )
        self.state.set_up(setup)
        self.rows.set_up(setup)

    def allowed(self, *rows: int) -> list[str]:
        """What may follow, as a text per row; the end as a full stop."""
        self.rows.begin(rows)
        found = []
        for mask in self.rows.masks().values():
            ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            found.append("".join("." if i == EOS else chr(i) for i in ids if i < 256 or i == EOS))
        return found

    def accept(self, **tokens: int | str) -> None:
        numbers = {int(name[1:]): ord(t) if isinstance(t, str) else t for name, t in tokens.items()}
        rows, ids = np.array([*numbers], np.int32), np.array([*numbers.values()], np.int32)
        self.state.append(rows, ids)
        self.rows.accept(rows, ids)


@pytest.fixture
def rows() -> Any:
    made = Rows()
    yield made
    made.rows.close()


def test_each_row_follows_its_own(rows: Rows) -> None:
    rows.admit(0, "[ab]c")
    rows.admit(2, "x?")
    assert rows.allowed(0, 1, 2) == ["ab", "x."]
    rows.accept(_0="a", _2="x")
    assert rows.allowed(2, 0) == [".", "c"]
    rows.accept(_2=EOS)
    assert rows.allowed(2) == ["."]


def test_nothing_is_built_for_others(rows: Rows) -> None:
    assert not rows.rows
    rows.rows.begin([0, 1])
    assert rows.rows.masks() == {}
    rows.admit(3, "a")
    assert rows.rows and 3 in rows.rows and 0 not in rows.rows
    rows.rows.release(3)
    assert not rows.rows


def test_a_row_that_comes_back_follows_its_answer_again(rows: Rows) -> None:
    rows.admit(0, "abc", answer=b"ab")
    assert rows.allowed(0) == ["c"]
    rows.admit(0, "abc", answer=b"abc")
    assert rows.allowed(0) == ["."]


def test_twins_go_their_own_ways(rows: Rows) -> None:
    rows.admit(0, "[ab]+c?")
    rows.accept(_0="a")
    rows.state.fork(RowFork(0, 1, 1))
    rows.rows.fork(RowFork(0, 1, 1))
    rows.accept(_0="c", _1="b")
    assert rows.allowed(0, 1) == [".", "abc."]


def test_a_twin_of_a_plain_row_has_no_grammar(rows: Rows) -> None:
    rows.admit(1, "a")
    rows.rows.fork(RowFork(0, 1, 1))
    assert 1 not in rows.rows


def test_a_token_that_may_not_follow_fails_its_row_alone(rows: Rows) -> None:
    rows.admit(0, "ab")
    rows.admit(1, "ab")
    rows.accept(_0="b", _1="a")
    assert rows.allowed(0, 1) == ["", "b"]
    assert rows.rows.failure(0) == f"token {ord('b')} is none that may follow" and rows.rows.failure(1) is None
    rows.accept(_0="a")
    assert rows.allowed(0) == [""]


def test_a_grammar_with_too_many_readings_is_said_to_be_too_complex(rows: Rows) -> None:
    rules = [f'r{i}: "a" r{i} "a" | r{i} r{i} | "a"' for i in range(150)]
    start = "start: " + " | ".join(f"r{i}" for i in range(150))
    rows.admit(0, Grammar(LARK, "\n".join([start, *rules])))
    for _ in range(15):
        if rows.rows.failure(0) is None:
            rows.accept(_0="a")
    assert rows.rows.failure(0) == "is too complex: the answer so far can be read in too many ways"


def test_an_answer_that_never_obeyed_fails(rows: Rows) -> None:
    rows.admit(0, "ab", answer=b"x")
    assert rows.allowed(0) == [""] and rows.rows.failure(0)


def test_the_end_waits_where_it_shall_and_can(rows: Rows) -> None:
    rows.admit(0, "ab*", ignore_eos=True)
    rows.admit(1, "ab?", min_tokens=3)
    rows.admit(2, "ab?", min_tokens=9, stop_token_ids=[ord("b")])
    rows.accept(_0="a", _1="a", _2="a")
    assert rows.allowed(0, 1, 2) == ["b", "b", "b."], "when only ends are left, any of them will do"
    rows.accept(_1="b")
    assert rows.allowed(1) == ["."]


def test_min_tokens_is_over_when_there_are_so_many(rows: Rows) -> None:
    rows.admit(0, "a*", min_tokens=2)
    assert rows.allowed(0) == ["a"]
    rows.accept(_0="a")
    rows.accept(_0="a")
    assert rows.allowed(0) == ["a."]


def test_a_row_whose_grammar_is_gone_fails_alone() -> None:
    state = BatchState(2, 32)
    for store in (None, GrammarStore()):
        rows = GrammarRows(store, state)
        rows.set_up(RowSetup(0, [1], 1, 0, SamplingParams(), 0, 0, grammar_id=77))
        rows.begin([0])
        [mask] = rows.masks().values()
        assert not mask.any() and rows.failure(0) == "the grammar is gone"
        rows.accept(np.array([0], np.int32), np.array([3], np.int32))
        rows.close()


def test_a_grammar_that_takes_too_much_time_fails_alone(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    rows.admit(0, "(a|b)*")
    rows.admit(1, "(a|b)*")
    rows.rows._rows[0].time_left_s = -grammar_rows.TIME_PER_TOKEN_S  # as if its masks had taken it all
    assert rows.allowed(0, 1) == ["", "ab."]
    assert "takes too much time" in str(rows.rows.failure(0))
    assert rows.rows.failure(1) is None


def test_time_is_given_with_every_token(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(np.arange(0, 1000, 0.015).tolist())  # each part of a step takes 15 ms
    monkeypatch.setattr(grammar_rows.time, "thread_time", lambda: next(clock))
    rows.admit(0, "a*")
    steps = 0
    while rows.rows.failure(0) is None and steps < 1000:
        rows.allowed(0)
        rows.accept(_0="a") if steps < 20 else None
        steps += 1
    assert steps == 1000, "15 ms a token and 20 steps of twice as much are within what it has"
    slow = iter(np.arange(0, 1000, 0.1).tolist())
    monkeypatch.setattr(grammar_rows.time, "thread_time", lambda: next(slow))
    for _ in range(100):
        rows.allowed(0)
    assert "takes too much time" in str(rows.rows.failure(0))
