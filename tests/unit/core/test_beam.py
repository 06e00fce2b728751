"""Beam search by hand-made candidates, and against a slow search over whole score matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.core.beam import Advance, BeamSearch, Hypothesis, plan_moves
from octavo.errors import RequestError
from octavo.messages import FINISH_LENGTH, FINISH_STOP

EOS = 9
END = 8
EARLY_STOPPING: tuple[bool | str, ...] = (True, False, "never")
Array = np.ndarray[Any, Any]
Model = Callable[[tuple[int, ...]], Array]
"""Tokens so far to the logprobs of every next token, float32."""


def search(width: int, max_tokens: int = 10, **settings: Any) -> BeamSearch:
    return BeamSearch(width, max_tokens=max_tokens, **({"stop_tokens": {EOS: None}} | settings))


def survivors(advance: Advance) -> list[tuple[int, int, float]]:
    assert advance.finished == (not advance.survivors)
    return [(s.parent, s.token_id, s.score) for s in advance.survivors]


def tokens(found: Sequence[Hypothesis]) -> list[list[int]]:
    return [hypothesis.token_ids for hypothesis in found]


def drive(beams: BeamSearch, model: Model) -> list[Hypothesis]:
    """Search to the end, each beam reporting as many candidates as the search asks for, ties by token."""
    while not beams.is_finished:
        lists = []
        for beam in range(beams.num_running):
            scores = model(tuple(beams.token_ids(beam)))
            order = np.argsort(-scores, kind="stable")[: beams.num_candidates]
            lists.append([(int(token), float(scores[token])) for token in order])
        beams.advance(lists)
    return beams.results()


class TestSteps:
    def test_the_first_step_forks_one_beam(self) -> None:
        beams = search(3)
        assert beams.num_running == 1
        step = beams.advance([[(4, -0.5), (2, -1.0), (7, -1.5), (1, -2.0)]])
        assert survivors(step) == [(0, 4, -0.5), (0, 2, -1.0), (0, 7, -1.5)]
        assert beams.num_running == 3

    def test_beams_are_ranked_together(self) -> None:
        beams = search(2)
        beams.advance([[(1, -1.0), (2, -1.5)]])
        step = beams.advance([[(3, -2.0), (4, -3.0)], [(5, -0.25), (6, -0.5)]])
        assert survivors(step) == [(1, 5, -1.75), (1, 6, -2.0)]
        assert [beams.token_ids(i) for i in range(2)] == [[2, 5], [2, 6]]

    def test_equal_sums_rank_by_beam_then_by_place(self) -> None:
        beams = search(3)
        beams.advance([[(1, -1.0), (2, -1.0), (3, -1.0)]])
        step = beams.advance([[(6, -1.0), (5, -1.0)], [(4, -1.0)], [(7, -1.0)]])
        assert survivors(step) == [(0, 6, -2.0), (0, 5, -2.0), (1, 4, -2.0)]

    def test_sums_are_rounded_to_float32(self) -> None:
        """The second beam's is larger in double; in float32 they tie, and the first goes first."""
        far = float(np.float32(-1000.0))
        beams = search(2, stop_tokens={})
        beams.advance([[(1, far), (2, far)]])
        tiny = float(np.float32(1e-6))
        step = beams.advance([[(3, -2 * tiny)], [(4, -tiny)]])
        assert survivors(step) == [(0, 3, far), (1, 4, far)]

    def test_an_impossible_token_does_not_run(self) -> None:
        beams = search(3)
        assert len(beams.advance([[(1, -1.0), (2, -2.0), (3, -math.inf)]]).survivors) == 2
        assert beams.num_running == 2
        assert survivors(beams.advance([[(1, -math.inf)], []])) == []
        assert beams.is_finished and beams.results() == []

    def test_a_list_for_each_beam(self) -> None:
        with pytest.raises(ValueError, match="2 lists of candidates for 1 running"):
            search(2).advance([[(1, -1.0)], [(2, -1.0)]])

    def test_a_search_for_no_tokens(self) -> None:
        with pytest.raises(RequestError, match="max_tokens = 0: must be at least 1 with beam_width"):
            search(2, max_tokens=0)

    def test_how_many_candidates(self) -> None:
        assert search(4).num_candidates == 5
        assert search(4, stop_tokens={}).num_candidates == 4
        assert search(4, stop_tokens={7: None, 8: 8, 9: None}, num_logprobs=3).num_candidates == 7
        assert search(4, num_logprobs=20).num_candidates == 20


class TestEnds:
    def test_an_end_among_the_first_is_an_answer(self) -> None:
        beams = search(2)
        step = beams.advance([[(1, -0.5), (EOS, -1.0), (3, -2.0)]])
        assert survivors(step) == [(0, 1, -0.5), (0, 3, -2.0)]
        (found,) = beams.results()
        assert (found.token_ids, found.score, found.finish_reason, found.stop_reason) == ([EOS], -1.0, "stop", None)

    def test_an_end_behind_them_is_dropped(self) -> None:
        beams = search(2)
        step = beams.advance([[(1, -0.5), (3, -0.75), (EOS, -1.0)]])
        assert survivors(step) == [(0, 1, -0.5), (0, 3, -0.75)]
        assert beams.results() == []

    def test_an_end_behind_them_is_dropped_while_beams_are_still_looked_for(self) -> None:
        beams = search(2, stop_tokens={EOS: None, END: END})
        step = beams.advance([[(1, -0.5), (EOS, -0.75), (END, -1.0), (3, -1.25)]])
        assert survivors(step) == [(0, 1, -0.5), (0, 3, -1.25)]
        assert tokens(beams.results()) == [[EOS]]

    def test_more_ends_than_one(self) -> None:
        """Both take a place; those behind them run on; each says what it was."""
        beams = search(2, stop_tokens={EOS: None, END: END}, early_stopping="never")
        step = beams.advance([[(EOS, -0.1), (END, -0.2), (3, -0.3), (4, -0.4), (5, -0.5)]])
        assert survivors(step) == [(0, 3, float(np.float32(-0.3))), (0, 4, float(np.float32(-0.4)))]
        assert [(found.token_ids, found.stop_reason) for found in beams.results()] == [([EOS], None), ([END], END)]

    def test_the_last_token_ends_every_beam(self) -> None:
        beams = search(2, max_tokens=2)
        beams.advance([[(1, -1.0), (2, -2.0)]])
        step = beams.advance([[(3, -1.0), (EOS, -1.5), (4, -1.75)], [(5, -3.0)]])
        assert survivors(step) == []
        found = beams.results()
        assert [(f.token_ids, f.logprob_sum, f.score, f.finish_reason) for f in found] == [
            ([1, 3], -2.0, -1.0, FINISH_LENGTH),
            ([1, EOS], -2.5, -1.25, FINISH_STOP),
        ]
        assert beams.num_running == 0

    def test_better_answers_push_out_worse_ones(self) -> None:
        beams = search(1, early_stopping="never", length_penalty=2.0)
        beams.advance([[(EOS, -1.0), (1, -1.5)]])
        assert tokens(beams.results()) == [[EOS]]
        beams.advance([[(EOS, -0.5), (2, -2.0)]])
        (found,) = beams.results()
        assert (found.token_ids, found.logprob_sum, found.score) == ([1, EOS], -2.0, -0.5)

    def test_of_equal_answers_the_older_stays_ahead(self) -> None:
        beams = search(2, length_penalty=0.0, max_tokens=3)
        beams.advance([[(1, -1.0), (EOS, -2.0), (2, -3.0)]])
        beams.advance([[(EOS, -1.0), (3, -1.5)], [(4, -9.0)]])
        assert tokens(beams.results()) == [[EOS], [1, EOS]]


class TestStopping:
    FIRST = ([(EOS, -1.0), (1, -1.25)],)

    def test_true_ends_when_there_are_enough_answers(self) -> None:
        assert search(1, early_stopping=True).advance(self.FIRST).finished

    def test_false_ends_when_no_beam_is_better_at_its_length(self) -> None:
        assert search(1, early_stopping=False).advance(self.FIRST).finished

    def test_false_goes_on_while_one_is(self) -> None:
        beams = search(2, early_stopping=False)
        beams.advance([[(1, -1.0), (EOS, -3.0), (2, -4.0)]])
        assert len(beams.results()) == 1
        assert not beams.advance([[(3, -0.5), (EOS, -8.0)], [(EOS, -0.5), (4, -6.0)]]).finished
        assert tokens(beams.results()) == [[2, EOS], [EOS]]

    def test_never_hopes_for_the_longest_answer(self) -> None:
        assert not search(1, early_stopping="never", max_tokens=10).advance(self.FIRST).finished
        assert search(1, early_stopping="never", max_tokens=10, length_penalty=0.0).advance(self.FIRST).finished
        assert search(1, early_stopping="never", max_tokens=1).advance(self.FIRST).finished

    def test_never_with_a_penalty_on_length_hopes_for_now(self) -> None:
        """Ten times as long an answer would only be worse."""
        beams = search(2, early_stopping="never", max_tokens=10, length_penalty=-1.0)
        beams.advance([[(1, -1.0), (EOS, -6.0), (2, -7.0)]])
        assert tokens(beams.results()) == [[EOS]]
        assert not beams.advance([[(3, -0.5), (EOS, -1.75)], [(4, -9.0)]]).finished
        assert [found.score for found in beams.results()] == [-5.5, -6.0]

    def test_hope_counts_the_new_token(self) -> None:
        """-3 over two tokens beats -1.75; over one it would not."""
        beams = search(2, early_stopping=False)
        beams.advance([[(1, -0.5), (EOS, -1.0), (2, -2.0)]])
        assert not beams.advance([[(3, -2.5), (EOS, -3.0)], [(4, -9.0)]]).finished
        assert [found.score for found in beams.results()] == [-1.0, -1.75]

    def test_to_equal_is_not_to_beat(self) -> None:
        assert search(1, early_stopping=False).advance([[(EOS, -1.0), (1, -1.0)]]).finished

    @pytest.mark.parametrize("penalty", [-100.0, 100.0])
    def test_extreme_penalties(self, penalty: float) -> None:
        """Powers beyond float32, and beyond double, still end in finite scores."""
        beams = search(1, max_tokens=4000, length_penalty=penalty, early_stopping="never")
        beams.advance([[(1, -1.0)]])
        beams.advance([[(EOS, 0.0), (2, -1.0)]])
        for found in drive(beams, lambda _: np.log(np.full(10, 0.1, np.float32))):
            assert math.isfinite(found.score)


class TestAnswers:
    def test_logprobs_of_each_token(self) -> None:
        beams = search(2, max_tokens=2, num_logprobs=1)
        beams.advance([[(1, -1.0), (2, -2.0), (3, -3.0)]])
        beams.advance([[(3, -7.0), (4, -8.0)], [(5, -0.25), (6, -0.5)]])
        best, second = beams.results()
        assert [(p.token_id, p.logprob, p.rank, p.top) for p in second.logprobs] == [
            (2, -2.0, 2, [(1, -1.0)]),
            (6, -0.5, 2, [(5, -0.25)]),
        ]
        assert second.logprobs[0].top is best.logprobs[0].top, "kept once"
        assert best.logprob_sum == sum(p.logprob for p in best.logprobs)

    def test_long_chains(self) -> None:
        """They are freed without a recursion, and common heads are stored once."""
        beams = search(2, max_tokens=100_000, stop_tokens={})
        while not beams.is_finished:
            beams.advance([[(1, -1.0), (2, -1.5)]] * beams.num_running)
        assert [len(found.token_ids) for found in beams.results()] == [100_000] * 2
        del beams

    @given(st.data())
    def test_width_one_is_greedy(self, data: st.DataObject) -> None:
        model = random_model(data, vocab_size=6, stop_tokens={})
        beams = search(1, max_tokens=6, stop_tokens={5: None}, early_stopping=data.draw(st.booleans()))
        greedy: list[int] = []
        while len(greedy) < 6 and 5 not in greedy:
            greedy.append(int(model(tuple(greedy)).argmax()))
        assert tokens(drive(beams, model)) == [greedy]


class TestMoves:
    def test_the_first_survivor_stays(self) -> None:
        moves = plan_moves([2, 0, 2, 2], [0, 1, 2, 3], 4)
        assert moves.slots == [2, 0, 1, 3]
        assert moves.forks == [(2, 1), (2, 3)]
        assert moves.drops == [1, 3]

    def test_the_first_step_uses_new_slots(self) -> None:
        assert plan_moves([0, 0, 0], [0], 3) == ([0, 1, 2], [(0, 1), (0, 2)], [])

    def test_fewer_survivors_leave_slots_empty(self) -> None:
        assert plan_moves([1], [0, 1, 2], 3) == ([1], [], [0, 2])

    @given(st.data())
    def test_no_more_forks_than_it_takes(self, data: st.DataObject) -> None:
        width = data.draw(st.integers(1, 8))
        occupied = data.draw(st.sets(st.integers(0, width - 1), min_size=1))
        parents = data.draw(st.lists(st.sampled_from(sorted(occupied)), min_size=1, max_size=width))
        moves = plan_moves(parents, occupied, width)
        content = {slot: slot for slot in occupied if slot not in moves.drops}
        for source, target in moves.forks:
            assert target not in content and target < width
            content[target] = content[source]
        assert [content[slot] for slot in moves.slots] == parents
        assert sorted(moves.slots) == sorted(content)
        assert len(moves.forks) == len(parents) - len(set(parents)), "each beam's first survivor stays"


def random_model(data: st.DataObject, vocab_size: int, stop_tokens: dict[int, int | None]) -> Model:
    """A next-token distribution for every text. Logprobs on a coarse grid make equal sums common."""
    seed = data.draw(st.integers(0, 2**32 - 1))
    grid = data.draw(st.sampled_from([0.0, 0.25, 1.0]))
    liking = data.draw(st.sampled_from([0.0, 1.0, 2.0]))
    min_tokens = data.draw(st.integers(0, 3))

    def model(text: tuple[int, ...]) -> Array:
        logits = np.random.default_rng([seed, len(text), *text]).normal(size=vocab_size) * 2
        logits[list(stop_tokens)] += liking
        scores = logits - np.log(np.exp(logits).sum())
        if len(text) < min_tokens:
            scores[list(stop_tokens)] = -np.inf
        return np.asarray(np.round(scores / grid) * grid if grid else scores, np.float32)

    return model


def slow_search(
    model: Model,
    width: int,
    max_tokens: int,
    stop_tokens: Sequence[int],
    length_penalty: float,
    early_stopping: bool | str,
) -> list[tuple[list[int], float]]:
    """The rules as transformers states them: whole score matrices, placeholders at -1e9, everything in float32."""
    big = np.float32(-1e9)
    running: list[tuple[tuple[int, ...], Any]] = [((), np.float32(0.0)), *[((), big)] * (width - 1)]
    answers: list[tuple[tuple[int, ...], Any, bool]] = [((), big, False)] * width
    keep = max(2, 1 + len(stop_tokens)) * width
    for length in itertools.count(1):
        matrix = np.stack([model(text) + score for text, score in running])
        assert matrix.dtype == np.float32
        beams, ids = np.divmod(np.arange(matrix.size), matrix.shape[1])
        single = np.concatenate([model(text) for text, _ in running])
        ranked = np.lexsort((ids, -single, beams, -matrix.ravel()))[:keep]
        ended: list[tuple[tuple[int, ...], Any, bool]] = []
        going: list[tuple[tuple[int, ...], Any]] = []
        for rank, flat in enumerate(ranked):
            text = (*running[beams[flat]][0], int(ids[flat]))
            total = matrix.ravel()[flat]
            hits = text[-1] in stop_tokens or length == max_tokens
            counts = hits and rank < width
            penalised = total / np.float32(length**length_penalty) + (np.float32(0.0) if counts else big)
            ended.append((text, penalised, counts))
            going.append((text, total + (big if hits else np.float32(0.0))))
        answers = sorted([*answers, *ended], key=lambda a: -a[1])[:width]
        running = sorted(going, key=lambda g: -g[1])[:width]
        far = max_tokens if early_stopping == "never" and length_penalty > 0 else length
        hoped = running[0][1] / np.float32(far**length_penalty)
        all_there = all(there for _, _, there in answers)
        worst = min(score for _, score, _ in answers) if all_there else big
        if not hoped > worst or (all_there and early_stopping is True) or length == max_tokens:
            return [(list(text), float(score)) for text, score, there in answers if there]
    raise AssertionError


@settings(max_examples=300)
@given(st.data())
def test_equals_the_search_over_whole_matrices(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 5), "width")
    stop_tokens: dict[int, int | None] = dict.fromkeys(range(data.draw(st.integers(0, 3), "ends")))
    vocab_size = max(2, 1 + len(stop_tokens)) * width + data.draw(st.integers(1, 5))
    model = random_model(data, vocab_size, stop_tokens)
    max_tokens = data.draw(st.integers(1, 7), "max_tokens")
    length_penalty = data.draw(st.sampled_from([1.0, 0.0, -1.0, 0.6, 2.0]), "length_penalty")
    early_stopping: bool | str = data.draw(st.sampled_from(EARLY_STOPPING), "early_stopping")
    beams = BeamSearch(
        width,
        max_tokens=max_tokens,
        stop_tokens=stop_tokens,
        length_penalty=length_penalty,
        early_stopping=early_stopping,
    )
    found = [(hypothesis.token_ids, hypothesis.score) for hypothesis in drive(beams, model)]
    assert found == slow_search(model, width, max_tokens, list(stop_tokens), length_penalty, early_stopping)
