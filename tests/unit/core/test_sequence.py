"""Statuses, limits and stop tokens of a sequence."""

from __future__ import annotations

import pytest

from octavo.core.accounts import Accounts
from octavo.core.request import SequenceStatus, make_sequences
from octavo.errors import InvariantError
from octavo.messages import EngineRequest
from support.core_scripts import prompt, request

LEGAL = {
    ("waiting", "running"),
    ("waiting", "finished"),
    ("running", "preempted"),
    ("running", "swapped"),
    ("running", "finished"),
    ("preempted", "running"),
    ("preempted", "finished"),
    ("swapped", "running"),
    ("swapped", "preempted"),
    ("swapped", "finished"),
}


def sequences(source: EngineRequest) -> list:  # type: ignore[type-arg]
    return make_sequences(source, 10, 2, Accounts().open(source.tenant))


@pytest.mark.parametrize("start", list(SequenceStatus))
@pytest.mark.parametrize("end", list(SequenceStatus))
def test_only_legal_moves_are_made(start: SequenceStatus, end: SequenceStatus) -> None:
    (sequence,) = sequences(request())
    sequence.status = start
    if (start.value, end.value) in LEGAL:
        sequence.move_to(end)
        assert sequence.status is end
    else:
        with pytest.raises(InvariantError, match=f"went from {start.value} to {end.value}"):
            sequence.move_to(end)


def test_n_sequences_have_their_own_index_and_arrival() -> None:
    made = sequences(request(n=3, first_index=2, prompt_logprobs=1))
    assert [(s.index, s.arrival) for s in made] == [(2, 10), (3, 11), (4, 12)]
    assert all(s.sampling.prompt_logprobs is None for s in made)
    made[0].answer.append(1)
    assert (made[0].token_ids, made[1].token_ids) == ([*prompt(1, 5), 1], prompt(1, 5))


@pytest.mark.parametrize("first", range(8))
def test_known_tokens_are_read_across_the_end_of_the_prompt(first: int) -> None:
    (sequence,) = sequences(request())
    sequence.answer += [1, 2, 3]
    for last in range(first, 9):
        assert sequence.tokens_between(first, last) == sequence.token_ids[first:last]


def test_only_the_first_sequence_reports_on_the_prompt() -> None:
    source = request(n=2, prompt_logprobs=1)
    first, second = sequences(source)
    assert first.sampling is source.sampling
    assert second.sampling.prompt_logprobs is None and second.sampling.n == 2


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, {}),
        ({"eos_token_ids": (2, 3)}, {2: None, 3: None}),
        ({"eos_token_ids": (2,), "ignore_eos": True}, {}),
        ({"eos_token_ids": (2,), "stop_token_ids": (2, 9)}, {2: None, 9: 9}),
        ({"eos_token_ids": (2,), "stop_token_ids": (2, 9), "ignore_eos": True}, {2: 2, 9: 9}),
    ],
)
def test_what_stops_it_and_why(changes: dict[str, object], expected: dict[int, int | None]) -> None:
    assert sequences(request(**changes))[0].stop_tokens == expected


@pytest.mark.parametrize(("num_resumed", "max_tokens", "limit"), [(0, 4, 9), (3, 4, 9), (0, 0, 6)])
def test_limits_count_from_the_end_of_the_prompt(num_resumed: int, max_tokens: int, limit: int) -> None:
    source = request(
        num_prompt=5, max_tokens=max_tokens, token_ids=list(range(5 + num_resumed)), min_tokens=min(2, max_tokens)
    )
    (sequence,) = sequences(source)
    assert sequence.max_num_tokens == limit
    assert sequence.max_answer_tokens == max_tokens - num_resumed
    assert sequence.num_tokens == 5 + num_resumed
