"""`sample` of every back end: the same tokens and logprobs from the same logits, by the rules of the protocol."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from octavo.backends.protocol import uniform
from support.sampling import Row, edited, expected_token, kept_probabilities, make_batch, random_logits

VOCAB = 211
KINDS = {
    "greedy": Row(temperature=0.0),
    "almost greedy": Row(temperature=1e-5),
    "plain": Row(),
    "hot": Row(temperature=30.0),
    "top_k": Row(top_k=5),
    "top_k of one": Row(top_k=1, temperature=5.0),
    "top_k of more than there are": Row(top_k=(1 << 31) - 1),
    "top_p": Row(top_p=0.6),
    "min_p": Row(min_p=0.1),
    "all filters": Row(top_k=30, top_p=0.8, min_p=0.01, temperature=1.7),
    "penalties": Row(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.7),
    "greedy penalties": Row(temperature=0.0, repetition_penalty=0.7, presence_penalty=2.0, frequency_penalty=1.0),
    "bias": Row(bias={3: 4.0, 100: -50.0}),
    "bans": Row(banned=[0, 7, 210], temperature=0.0),
    "greedy mask": Row(allowed=[*range(3, 90, 3), 31, 32, 63, 64, 210], temperature=0.0),
    "mask": Row(allowed=list(range(5, 200, 2)), temperature=2.0),
    "mask that ends early": Row(allowed=list(range(64)), top_p=0.9, min_p=0.01),
    "mask that ends late": Row(allowed=[1, 50, 999], temperature=9.0, banned=[1], bias={7: 90.0}),
}


def border_distance(logits: Any, row: Row) -> float:
    """How far the draw is from the nearest border between two tokens, as a part of the kept mass."""
    borders = np.cumsum(kept_probabilities(logits, row))
    return float(np.abs(borders - uniform(row.seed, row.sequence_index, row.position)).min())


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_twin(backend: Any, kind: str) -> None:
    rng = np.random.default_rng(4)
    logits = random_logits(120, VOCAB, seed=len(kind))
    rows = []
    for i in range(len(logits)):
        history = rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
        rows.append(
            msgspec.structs.replace(
                KINDS[kind],
                history=history,
                num_prompt=int(rng.integers(0, len(history) + 1)),
                seed=int(rng.integers(-(1 << 63), (1 << 63) - 1)),
                sequence_index=i % 3,
                position=i,
            )
        )
    found = backend.sample(logits.copy(), make_batch(rows))
    assert found.token_ids.dtype == np.int32
    assert found.logprobs is found.ranks is found.top_ids is found.top_logprobs is None
    for x, row, token in zip(logits, rows, found.token_ids.tolist(), strict=True):
        greedy = row.temperature <= 1e-5
        assert token == expected_token(x, row) or (not greedy and border_distance(x, row) < 1e-6)


def test_among_equals_the_lowest_id_is_greedy_and_first_into_the_filters(backend: Any) -> None:
    logits = np.zeros((300, 50), np.float32)
    logits[:, :10] = -1.0
    rows = [Row(temperature=0.0)] * 100
    rows += [Row(top_k=3, seed=i) for i in range(100)] + [Row(top_p=0.01, top_k=30, seed=i) for i in range(100)]
    tokens = backend.sample(logits, make_batch(rows)).token_ids.tolist()
    assert set(tokens[:100]) == {10}
    assert set(tokens[100:200]) == {10, 11, 12}
    assert set(tokens[200:]) == {10}


def test_bans_come_last(backend: Any) -> None:
    logits = random_logits(1, VOCAB)
    best = int(logits[0].argmax())
    row = Row(temperature=0.0, banned=[best], bias={best: 100.0})
    token = int(backend.sample(logits.copy(), make_batch([row])).token_ids[0])
    assert token == int(edited(logits[0], row).argmax()) != best


def test_penalties_tell_prompt_from_answer(backend: Any) -> None:
    logits = np.zeros((4, 8), np.float32)
    logits[:, 3], logits[:, 5] = 2.0, 1.5
    history = {"history": [3, 5, 5], "temperature": 0.0}
    rows = [
        Row(frequency_penalty=1.0, num_prompt=3, **history),  # all prompt: nothing happens
        Row(frequency_penalty=1.0, num_prompt=0, **history),  # 3 falls to 1.0, 5 to -0.5
        Row(presence_penalty=1.9, num_prompt=1, **history),  # only 5 falls
        Row(repetition_penalty=2.5, num_prompt=3, **history),  # the prompt counts: 0.8, 0.6
    ]
    logits[1, 6], logits[3, 6] = 0.9, 0.9
    assert backend.sample(logits, make_batch(rows)).token_ids.tolist() == [3, 3, 3, 6]


def test_logprobs_and_ranks_come_from_the_raw_logits(backend: Any) -> None:
    logits = np.round(random_logits(5, VOCAB), 1)  # ties are common
    rows = [
        Row(num_logprobs=0),
        Row(num_logprobs=4, temperature=0.0),
        Row(),
        Row(num_logprobs=2, banned=[0], bias={9: 90.0}, temperature=3.0, top_k=2),
        Row(num_logprobs=VOCAB),
    ]
    found = backend.sample(logits.copy(), make_batch(rows))
    assert found.top_ids.shape == found.top_logprobs.shape == (5, VOCAB)
    assert found.token_ids[3] == 9
    for i, row in enumerate(rows):
        assert (found.top_ids[i, max(row.num_logprobs, 0) :] == -1).all()
        if row.num_logprobs < 0:
            continue
        x = logits[i].astype(np.float64)
        logprobs = x - x.max() - np.log(np.exp(x - x.max()).sum())
        token = found.token_ids[i]
        assert found.logprobs[i] == pytest.approx(logprobs[token], rel=1e-5)
        assert found.ranks[i] == 1 + (x > x[token]).sum()
        best = np.lexsort((np.arange(VOCAB), -x))[: row.num_logprobs]
        assert found.top_ids[i, : row.num_logprobs].tolist() == best.tolist()
        np.testing.assert_allclose(found.top_logprobs[i, : row.num_logprobs], logprobs[best], rtol=1e-5, atol=1e-6)


def test_more_logprobs_than_tokens_gives_them_all(backend: Any) -> None:
    found = backend.sample(random_logits(1, 4), make_batch([Row(num_logprobs=(1 << 31) - 1)]))
    assert sorted(found.top_ids[0].tolist()) == [0, 1, 2, 3]


def test_a_row_that_cannot_be_sampled_fails_alone(backend: Any) -> None:
    logits = random_logits(5, VOCAB)
    rows = [Row(seed=i, num_logprobs=1) for i in range(5)]
    clean = backend.sample(logits.copy(), make_batch(rows))
    logits[1, 200], logits[2, :], logits[3, 0] = np.nan, -np.inf, np.nan
    rows[3] = Row(temperature=0.0, num_logprobs=1)
    found = backend.sample(logits, make_batch(rows))
    assert found.token_ids[1:4].tolist() == [-1, -1, -1]
    assert (found.logprobs[1:4] == -np.inf).all()
    assert found.ranks[1:4].tolist() == [0, 0, 0]
    for i in (0, 4):
        assert found.token_ids[i] == clean.token_ids[i]
        assert found.logprobs[i] == clean.logprobs[i]


def test_everything_banned_cannot_be_sampled(backend: Any) -> None:
    assert backend.sample(random_logits(1, 6), make_batch([Row(banned=list(range(6)))])).token_ids.tolist() == [-1]
