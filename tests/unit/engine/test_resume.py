"""What a new engine is asked for after a death."""

from __future__ import annotations

import itertools
from typing import Any

from octavo.engine.resume import LiveRequest
from octavo.messages import EngineRequest, SamplingParams, TokenDelta, TokenLogprobs


def live(**params: Any) -> LiveRequest:
    return LiveRequest(
        EngineRequest(
            request_id=7,
            token_ids=[1, 2, 3],
            num_prompt_tokens=3,
            sampling=SamplingParams(**params),
            seed=11,
            max_tokens=16,
        )
    )


def new_ids() -> itertools.count[int]:
    return itertools.count(-1, -1)


def test_a_request_without_tokens_is_sent_again_as_it_was() -> None:
    request = live(n=2)
    assert request.resumed(new_ids()) == [request.request]


def test_an_answer_goes_on_after_its_tokens() -> None:
    request = live()
    assert request.receive(TokenDelta(7, 0, [40])) and request.receive(TokenDelta(7, 0, [41, 42]))
    (resumed,) = request.resumed(new_ids())
    assert resumed.token_ids == [1, 2, 3, 40, 41, 42] and resumed.num_prompt_tokens == 3
    assert (resumed.request_id, resumed.seed, resumed.max_tokens, resumed.first_index) == (-1, 11, 16, 0)
    assert request.request.token_ids == [1, 2, 3], "a second death starts from the same prompt"


def test_each_of_several_answers_goes_on_by_itself() -> None:
    request = live(n=3)
    request.receive(TokenDelta(7, 0, [40]))
    request.receive(TokenDelta(7, 1, [50, 51], "length"))
    resumed = request.resumed(new_ids())
    assert [(r.request_id, r.first_index, r.sampling.n, r.token_ids[3:]) for r in resumed] == [
        (-1, 0, 1, [40]),
        (-2, 2, 1, []),
    ]


def test_ended_and_given_up_answers_take_nothing_more() -> None:
    request = live(n=2)
    request.receive(TokenDelta(7, 0, [40], "stop"))
    assert not request.receive(TokenDelta(7, 0, [41]))
    assert not request.receive(TokenDelta(7, 5, [41])), "an index nobody asked for"
    request.give_up(1)
    assert not request.receive(TokenDelta(7, 1, [41]))
    assert request.finished and request.resumed(new_ids()) == []
    request.give_up(None)
    assert request.finished


def test_prompt_logprobs_are_told_once() -> None:
    entries = [None, *(TokenLogprobs(i, -1.0, 1, []) for i in range(5))]
    request = live(prompt_logprobs=1)
    request.receive(TokenDelta(7, 0, [], prompt_logprobs=entries[:2]))
    (again,) = request.resumed(new_ids())
    assert again.sampling.prompt_logprobs == 1
    chunks = [TokenDelta(7, 0, [], prompt_logprobs=entries[:1]), TokenDelta(7, 0, [40], prompt_logprobs=entries[1:])]
    for chunk in chunks:
        request.receive(chunk)
    assert [chunk.prompt_logprobs for chunk in chunks] == [[], entries[2:]]
    (begun,) = request.resumed(new_ids())
    assert begun.sampling.prompt_logprobs is None, "all of them are known"


def test_prompt_logprobs_are_told_once_however_many_engines_die() -> None:
    entries = [None, *(TokenLogprobs(i, -1.0, 1, []) for i in range(5))]
    request = live(prompt_logprobs=1)
    told = []
    for num_repeated in (3, 2, 4, 6):  # each engine gets so far before it dies
        delta = TokenDelta(7, 0, [], prompt_logprobs=entries[:num_repeated])
        request.receive(delta)
        told += delta.prompt_logprobs or []
        request.resumed(new_ids())
    assert told == entries


def test_a_beam_search_starts_again_from_its_prompt() -> None:
    request = live(n=2, beam_width=4)
    assert request.resumed(new_ids()) == [request.request]
    request.give_up(0)
    assert request.resumed(new_ids()) == [request.request], "a search cannot be resumed by halves"
    assert not request.receive(TokenDelta(7, 0, [40], "length")), "and what was given up is not passed on"
    assert request.receive(TokenDelta(7, 1, [41, 42], "length", score=-0.5))
    assert request.finished and request.resumed(new_ids()) == []


def test_only_the_first_engine_says_how_much_of_the_prompt_was_cached() -> None:
    request = live()
    first, again = TokenDelta(7, 0, [40], num_cached_tokens=2), TokenDelta(7, 0, [41], num_cached_tokens=3)
    request.receive(first)
    request.receive(again)
    assert (first.num_cached_tokens, again.num_cached_tokens) == (2, 0)
