"""Requests as the paper's experiments make them from lengths and arrivals."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.sim.executor import TOKEN
from octavo.sim.request import TimedRequest
from octavo.sim.simulator import simulate
from octavo.sim.system import System
from octavo.sim.workload import chat_rounds, from_lengths, in_order, multi_turn, own_prompt, shared_prefix
from support.simulations import LinearCost

PAIRS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=20)
ARRIVALS = st.lists(st.floats(0, 100), max_size=50).map(sorted)


def lengths(requests: list[TimedRequest]) -> list[tuple[int, int]]:
    return [(len(request.token_ids), request.num_output_tokens) for request in requests]


def common_prefix(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@settings(max_examples=60, deadline=None)
@given(pairs=PAIRS, arrivals=ARRIVALS, seed=st.integers(0, 2**32))
def test_the_first_pairs_are_used_again_and_shuffled(
    pairs: list[tuple[int, int]], arrivals: list[float], seed: int
) -> None:
    requests = from_lengths(pairs, arrivals, Random(seed), n=3)
    assert [request.arrival_s for request in requests] == arrivals
    assert Counter(lengths(requests)) == Counter(pairs[i % len(pairs)] for i in range(len(arrivals)))
    assert all(request.n == 3 and request.beam_width is None for request in requests)
    assert requests == from_lengths(pairs, arrivals, Random(seed), n=3)


def test_requests_are_shuffled_and_have_seeds_of_their_own() -> None:
    pairs = [(i, i) for i in range(1, 101)]
    requests = from_lengths(pairs, [0.0] * 100, Random(1), beam_width=4)
    assert lengths(requests) != pairs
    assert len({request.seed for request in requests}) == 100
    assert all(request.beam_width == 4 and request.n == 1 for request in requests)
    assert lengths(in_order(pairs, [0.0] * 100, Random(1))) == pairs


@settings(max_examples=60, deadline=None)
@given(a=st.integers(0, 1000), b=st.integers(0, 1000), num_tokens=st.integers(2, 50))
def test_own_prompts_share_nothing(a: int, b: int, num_tokens: int) -> None:
    shared = common_prefix(own_prompt(a, num_tokens), own_prompt(b, num_tokens))
    assert shared == (num_tokens if a == b else 0)


@pytest.mark.parametrize(("num_prefix_tokens", "shared"), [(80, 80), (341, 336), (0, 0), (15, 0)])
def test_a_shared_prefix_is_whole_blocks_and_the_rest_goes_to_the_task(num_prefix_tokens: int, shared: int) -> None:
    pairs = [(10, 5), (20, 6), (1, 7)]
    requests = shared_prefix(pairs, [0.0, 1.0, 2.0], Random(0), num_prefix_tokens=num_prefix_tokens)
    assert Counter(lengths(requests)) == Counter((num_prefix_tokens + i, o) for i, o in pairs)
    first, second, third = (request.token_ids for request in requests)
    assert common_prefix(first, second) == common_prefix(second, third) == shared


def test_a_prefix_is_cut_to_the_blocks_of_the_engine() -> None:
    requests = shared_prefix([(10, 5)], [0.0, 1.0], Random(0), num_prefix_tokens=80, block_size=64)
    assert common_prefix(requests[0].token_ids, requests[1].token_ids) == 64


CONVERSATION = [(10, 20), (5, 2000), (7, 30), (3, 4)]


def test_a_chat_prompt_is_the_end_of_history_and_query() -> None:
    requests = chat_rounds([CONVERSATION], [0.0, 1.0, 2.0, 3.0], Random(0), new_prob=0)
    assert lengths(requests) == [(10, 20), (35, 1016), (1024, 30), (1024, 4)]
    assert lengths(chat_rounds([CONVERSATION], [0.0] * 2, Random(0), new_prob=0, max_output_tokens=1024))[1][1] == 1024


def test_a_chat_goes_on_or_begins_with_the_probability_given() -> None:
    # An answer of 1 token is a first round's, one of 2 a later round's.
    conversations = [[(1, 1)] + [(1, 2)] * 9] * 2000
    requests = chat_rounds(conversations, [0.0] * 20_000, Random(5), new_prob=0.25)
    # Some 1,000 conversations have begun by then; all begin at last.
    assert sum(request.num_output_tokens == 1 for request in requests[:4000]) / 4000 == pytest.approx(0.25, abs=0.02)
    assert sum(request.num_output_tokens == 1 for request in requests) == 2000


@settings(max_examples=40, deadline=None)
@given(
    conversations=st.lists(
        st.lists(st.tuples(st.integers(1, 99), st.integers(1, 99)), min_size=1, max_size=5), min_size=1
    ),
    count=st.integers(0, 40),
    new_prob=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_every_round_of_the_first_conversations_comes_once(
    conversations: list[list[tuple[int, int]]], count: int, new_prob: float, seed: int
) -> None:
    requests = chat_rounds(conversations, [0.0] * count, Random(seed), new_prob=new_prob)
    answers = [answer for rounds in conversations for _, answer in rounds]
    wanted = (answers * count)[:count]
    assert Counter(request.num_output_tokens for request in requests) == Counter(wanted)


def test_rounds_of_a_conversation_share_all_that_was_said() -> None:
    requests = multi_turn([[(10, 20), (5, 6), (7, 8)]], [0.0, 1.0, 2.0], Random(0), new_prob=0)
    assert lengths(requests) == [(10, 20), (35, 6), (48, 8)]
    first, second, third = (request.token_ids for request in requests)
    assert second[:30] == first + [TOKEN] * 20
    assert third[:41] == second + [TOKEN] * 6


def test_a_round_finds_the_round_before_it_in_the_cache() -> None:
    """Answers included: all but the last token of each, whose KV nobody needed."""
    requests = multi_turn([[(40, 20), (50, 60), (70, 8)]], [0.0, 1000.0, 2000.0], Random(0), new_prob=0)
    system = System(num_blocks=100, enable_prefix_caching=True)
    assert simulate(system, LinearCost(), requests).num_prefix_hit_tokens == (40 + 20 - 1) + (110 + 60 - 1)


def test_different_conversations_share_nothing() -> None:
    requests = multi_turn([[(10, 20)]] * 3, [0.0] * 3, Random(0))
    prompts = [request.token_ids for request in requests]
    assert all(common_prefix(a, b) == 0 for i, a in enumerate(prompts) for b in prompts[:i])


def test_a_conversation_ends_where_it_no_longer_fits() -> None:
    requests = multi_turn([[(10, 20), (5, 6), (7, 8)]], [0.0] * 4, Random(0), new_prob=0, max_model_len=45)
    assert lengths(requests) == [(10, 20), (35, 6)] * 2


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ConfigError, match="lengths"):
        from_lengths([], [0.0], Random(0))
    with pytest.raises(ConfigError, match="num_prefix_tokens"):
        shared_prefix([(1, 1)], [0.0], Random(0), num_prefix_tokens=-1)
    with pytest.raises(ConfigError, match="conversations"):
        chat_rounds([], [0.0], Random(0))
    with pytest.raises(ConfigError, match="new_prob"):
        chat_rounds([CONVERSATION], [0.0], Random(0), new_prob=1.5)
    with pytest.raises(ConfigError, match="max_model_len"):
        multi_turn([[(10, 20)]], [0.0], Random(0), max_model_len=29)
