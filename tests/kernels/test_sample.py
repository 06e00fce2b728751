"""The sampler of every kernel path against a plain float64 twin, its distributions, its independence of the batch."""

from __future__ import annotations

import math
from functools import cache

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import _native
from octavo.backends.protocol import SampleBatch, SampleOutput, uniform
from support.sampling import Logits, Row, expected_token, kept_probabilities, make_batch, random_logits

PATHS = _native.supported_paths()
POOL = _native.ThreadPool(2)


def sample(logits: Logits, rows: list[Row], isa: str = PATHS[0]) -> SampleOutput:
    return sample_batch(logits, make_batch(rows), isa)


def sample_batch(logits: Logits, batch: SampleBatch, isa: str) -> SampleOutput:
    fields = msgspec.structs.astuple(batch)
    names = SampleOutput.__struct_fields__
    return SampleOutput(**dict(zip(names, _native.sample(logits, *fields, POOL, isa), strict=True)))


def test_uniform_equals_the_contract() -> None:
    words = [0, 1, 2, 7, 12345, (1 << 31) - 1, (1 << 63) - 1, -1, -(1 << 63)]
    for seed in words:
        for index, position in [(0, 0), (1, 0), (0, 1), (65535, 1 << 20)]:
            assert _native.uniform(seed, index, position) == uniform(seed, index, position)
    draws = [_native.uniform(1, 0, position) for position in range(4000)]
    assert all(0 <= u < 1 for u in draws)
    assert abs(np.mean(draws) - 0.5) < 0.02
    assert abs(np.var(draws) - 1 / 12) < 0.005


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("vocab", [1, 2, 15, 256, 257, 1000, 49152])
def test_greedy_takes_the_largest_and_the_lowest_among_equals(isa: str, vocab: int) -> None:
    logits = random_logits(6, vocab)
    logits[3, :] = -2.5
    logits[4, vocab // 2 :] = 50.0
    logits[5, [0, vocab - 1]] = 60.0
    out = sample(logits, [Row(temperature=t) for t in (0.0, 1e-5, 0.0, 0.0, 0.0, 0.0)], isa)
    assert out.token_ids.tolist() == logits.argmax(axis=1).tolist()
    assert out.logprobs is out.ranks is out.top_ids is out.top_logprobs is None


ROWS = {
    "plain": Row(),
    "hot": Row(temperature=50.0),
    "cold": Row(temperature=0.2),
    "top_k": Row(top_k=7),
    "top_k_1": Row(top_k=1),
    "top_p": Row(top_p=0.7),
    "top_p_tiny": Row(top_p=1e-6),
    "top_p_wide": Row(top_p=0.999, temperature=20.0),
    "min_p": Row(min_p=0.05),
    "all": Row(top_k=40, top_p=0.8, min_p=0.02, temperature=1.5),
    "wide_k": Row(top_k=250, top_p=0.9, temperature=4.0),
}


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("name", ROWS)
def test_draws_equal_the_twin(isa: str, name: str) -> None:
    """Token for token: only a draw within rounding of a border between two tokens may differ, and none here does."""
    logits = random_logits(200, 700)
    rows = [msgspec.structs.replace(ROWS[name], seed=5, position=i) for i in range(len(logits))]
    actual = sample(logits, rows, isa).token_ids.tolist()
    assert actual == [expected_token(x, row) for x, row in zip(logits, rows, strict=True)]


@cache
def draws_of(name: str, draws: int) -> SampleBatch:
    """The same for every path."""
    return make_batch(
        [msgspec.structs.replace(ROWS[name], seed=i, sequence_index=i % 3, position=i) for i in range(draws)]
    )


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("name", ROWS)
def test_distribution(isa: str, name: str) -> None:
    """Pearson's chi-square over 20,000 draws from one row, seeds fixed; bound at about five sigma."""
    draws, logits = 20_000, random_logits(1, 300, seed=3, spread=2.0)
    tokens = sample_batch(np.repeat(logits, draws, axis=0), draws_of(name, draws), isa).token_ids
    expected = kept_probabilities(logits[0], ROWS[name]) * draws
    counts = np.bincount(tokens, minlength=300)
    assert not counts[expected == 0].any()
    common = expected >= 5
    observed = [*counts[common], counts[~common].sum()]
    wanted = [*expected[common], expected[~common].sum()]
    terms = [(o - e) ** 2 / e for o, e in zip(observed, wanted, strict=True) if e > 0]
    freedom = len(terms) - 1
    assert sum(terms) <= freedom + 5 * math.sqrt(2 * freedom) + 1e-6


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("vocab", [1, 17, 49152])
@pytest.mark.parametrize("temperature", [1.0001e-5, 1.0, 1e4])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e30])
def test_extreme_temperatures_give_a_token(isa: str, vocab: int, temperature: float, scale: float) -> None:
    logits = random_logits(8, vocab, spread=scale)
    filters = [Row(), Row(top_p=0.9), Row(top_k=50), Row(min_p=0.1), Row(top_p=0.9999999), Row(top_k=vocab)]
    rows = [msgspec.structs.replace(r, temperature=temperature, seed=i) for i, r in enumerate([*filters, Row(), Row()])]
    tokens = sample(logits, rows, isa).token_ids
    assert ((tokens >= 0) & (tokens < vocab)).all()
    if scale == 1e30:  # the winner takes all
        assert tokens.tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("isa", PATHS)
def test_ties_at_the_borders_keep_the_lower_ids(isa: str) -> None:
    logits = np.zeros((2000, 600), np.float32)
    logits[:, 590:] = -1
    rows = [Row(top_k=3, seed=i) for i in range(1000)] + [Row(top_p=0.01, top_k=500, seed=i) for i in range(1000)]
    tokens = sample(logits, rows, isa).token_ids
    assert set(tokens[:1000].tolist()) == {0, 1, 2}
    assert set(tokens[1000:].tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("isa", PATHS)
def test_rows_that_cannot_be_sampled_give_minus_one_and_hurt_nobody(isa: str) -> None:
    logits = random_logits(8, 1000)
    clean = sample(logits, [Row(seed=i, num_logprobs=2) for i in range(8)], isa)
    logits[1, 999] = np.nan
    logits[2, 0] = -np.nan
    logits[3, :] = -np.inf
    logits[4, 5] = np.inf
    rows = [Row(seed=i, num_logprobs=2) for i in range(8)]
    rows[5] = Row(banned=list(range(1000)), num_logprobs=2)
    rows[1] = Row(temperature=0.0, num_logprobs=2)
    out = sample(logits, rows, isa)
    assert out.logprobs is not None and out.ranks is not None and out.top_ids is not None
    assert out.token_ids[1:6].tolist() == [-1] * 5
    assert (out.logprobs[1:6] == -np.inf).all() and (out.ranks[1:6] == 0).all() and (out.top_ids[1:6] == -1).all()
    for i in (0, 6, 7):
        assert out.token_ids[i] == clean.token_ids[i]
        assert clean.logprobs is not None and out.logprobs[i] == clean.logprobs[i]


@pytest.mark.parametrize("isa", PATHS)
def test_penalties_bias_and_bans_equal_the_twin(isa: str) -> None:
    rng = np.random.default_rng(8)
    logits = random_logits(150, 40)
    rows = []
    for i in range(150):
        history = rng.integers(0, 40, rng.integers(1, 60)).tolist()
        rows.append(
            Row(
                temperature=float(rng.choice([0.0, 0.7])),
                repetition_penalty=float(rng.choice([0.8, 1.0, 1.3])),
                presence_penalty=float(rng.uniform(-2, 2)),
                frequency_penalty=float(rng.uniform(-2, 2)),
                history=history,
                num_prompt=int(rng.integers(0, len(history) + 1)),
                bias={int(t): float(rng.uniform(-5, 5)) for t in rng.integers(0, 40, 3)},
                banned=rng.integers(0, 40, 3).tolist(),
                seed=i,
            )
        )
    out = sample(logits, rows, isa).token_ids.tolist()
    assert out == [expected_token(x, row) for x, row in zip(logits, rows, strict=True)]
    assert not any(token in row.banned for token, row in zip(out, rows, strict=True))


def test_ids_outside_the_vocabulary_are_ignored() -> None:
    logits = random_logits(2, 30)
    odd = Row(temperature=0.0, history=[-5, 30, 1 << 30], presence_penalty=2.0, bias={30: 9.0}, banned=[-1, 99])
    out = sample(logits, [odd, odd])
    assert out.token_ids.tolist() == logits.argmax(axis=1).tolist()


@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("vocab", [5, 300, 5000])
def test_logprobs_come_from_the_raw_logits(isa: str, vocab: int) -> None:
    logits = np.round(random_logits(6, vocab), 1)  # ties are common
    rows = [
        Row(num_logprobs=0),
        Row(num_logprobs=3, temperature=0.0),
        Row(),
        Row(num_logprobs=5, banned=[0, 1], bias={2: 80.0}, temperature=3.0),
        Row(num_logprobs=vocab, top_k=2),
        Row(num_logprobs=1, history=[1, 1], frequency_penalty=2.0),
    ]
    out = sample(logits, rows, isa)
    assert out.logprobs is not None and out.ranks is not None
    assert out.top_ids is not None and out.top_logprobs is not None
    assert out.top_ids.shape == out.top_logprobs.shape == (6, vocab)
    assert out.token_ids[3] == 2
    for i, row in enumerate(rows):
        x = logits[i].astype(np.float64)
        logprobs = x - x.max() - np.log(np.exp(x - x.max()).sum())
        k = max(0, row.num_logprobs)
        assert (out.top_ids[i, k:] == -1).all()
        if row.num_logprobs < 0:
            continue
        token = out.token_ids[i]
        assert out.logprobs[i] == pytest.approx(logprobs[token], rel=1e-5, abs=1e-5)
        assert out.ranks[i] == 1 + (logits[i] > logits[i, token]).sum()
        best = np.lexsort((np.arange(vocab), -logits[i]))[:k]
        assert out.top_ids[i, :k].tolist() == best.tolist()
        np.testing.assert_allclose(out.top_logprobs[i, :k], logprobs[best], rtol=1e-5, atol=1e-5)


def test_more_logprobs_than_tokens_gives_them_all() -> None:
    out = sample(random_logits(1, 4), [Row(num_logprobs=(1 << 31) - 1)])
    assert out.top_ids is not None
    assert sorted(out.top_ids[0].tolist()) == [0, 1, 2, 3]


def test_no_rows() -> None:
    assert sample(np.empty((0, 10), np.float32), []).token_ids.shape == (0,)


row_settings = st.builds(
    Row,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 100.0]),
    top_k=st.sampled_from([0, 1, 5, 300, 1 << 30]),
    top_p=st.sampled_from([0.1, 0.5, 0.95, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 1.0]),
    seed=st.integers(-(1 << 63), (1 << 63) - 1),
    position=st.integers(0, 1 << 20),
    history=st.lists(st.integers(0, 499), max_size=20),
    banned=st.lists(st.integers(0, 499), max_size=5),
    num_logprobs=st.sampled_from([-1, 0, 4]),
)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(row_settings, min_size=1, max_size=6), seed=st.integers(0, 1000), isa=st.sampled_from(PATHS))
def test_a_row_depends_on_nothing_but_itself(rows: list[Row], seed: int, isa: str) -> None:
    logits = random_logits(len(rows), 500, seed)
    before = logits.copy()
    together = sample(logits, rows, isa)
    assert np.array_equal(logits, before)
    for i, row in enumerate(rows):
        alone = sample(logits[i : i + 1], [row], isa)
        assert alone.token_ids[0] == together.token_ids[i]
        assert alone.token_ids[0] not in row.banned
        if row.num_logprobs >= 0:
            assert alone.logprobs is not None and together.logprobs is not None
            assert alone.top_ids is not None and together.top_ids is not None
            assert alone.logprobs[0] == together.logprobs[i]
            k = row.num_logprobs
            assert alone.top_ids[0, :k].tolist() == together.top_ids[i, :k].tolist()


@settings(max_examples=60, deadline=None)
@given(row=row_settings, seed=st.integers(0, 1000), isa=st.sampled_from(PATHS))
def test_the_draw_is_one_of_the_kept_tokens(row: Row, seed: int, isa: str) -> None:
    logits = random_logits(1, 500, seed)
    token = sample(logits, [row], isa).token_ids[0]
    if row.temperature == 0:
        assert token == expected_token(logits[0], row)
    else:
        # A hair of tolerance at the borders of min_p and top_p, where float32 may round the other way.
        wider = msgspec.structs.replace(row, min_p=row.min_p * 0.9999, top_p=min(1.0, row.top_p * 1.0001))
        assert kept_probabilities(logits[0], wider)[token] > 0


@pytest.mark.parametrize(
    ("field", "value", "match"),
    [
        ("temperature", -1.0, "temperature of row 0 must be finite, at least 0"),
        ("temperature", math.nan, "temperature of row 0"),
        ("top_k", -1, "top_k of row 0 must be at least 0"),
        ("top_p", 0.0, "top_p of row 0 must be above 0"),
        ("top_p", math.nan, "top_p of row 0"),
        ("min_p", 1.5, "min_p of row 0 must be from 0 to 1"),
        ("repetition_penalty", 0.0, "repetition_penalty of row 0 must be above 0"),
        ("presence_penalty", math.inf, "presence_penalty of row 0 must be finite"),
        ("num_prompt", -1, "num_prompt of row 0"),
    ],
)
def test_bad_settings_are_refused(field: str, value: float, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        sample(random_logits(1, 10), [Row(**{field: value})])


def test_bad_arrays_are_refused() -> None:
    logits = random_logits(2, 10)
    with pytest.raises(ValueError, match="temperature must have one entry per row"):
        sample(logits, [Row()])
    fields = list(msgspec.structs.astuple(make_batch([Row(), Row()])))
    position = SampleBatch.__struct_fields__.index("history_start")
    for bad in ([0, 2, 1], [0, 0, 1], [-1, 0, 0], [0, 0]):
        fields[position] = np.array(bad, np.int64)
        with pytest.raises(ValueError, match="history_start must"):
            _native.sample(logits, *fields, POOL, PATHS[0])
    with pytest.raises(TypeError):
        _native.sample(logits.astype(np.float64), *fields, POOL, PATHS[0])
