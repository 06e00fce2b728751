from __future__ import annotations

from random import Random

import msgspec
import pytest

from octavo.cli.bench_fit import fit_cost, residuals
from octavo.cli.step_watch import Step
from octavo.errors import ConfigError
from octavo.measure.least_squares import nnls
from octavo.sim.cost_model import Chunk, StepWork
from octavo.sim.fitted import COUNTS, KNOTS, Fit, FittedCost, Residual, counts, read_fit, row, spans
from octavo.sim.reach import Reach

TRUTH = FittedCost(
    knots=KNOTS,
    token_s=(3e-3, 2e-3, 1e-3, 1e-3, 1.1e-3, 1.3e-3, 1.4e-3, 1.5e-3, 1.6e-3),
    step_s=9e-3,
    chunked_s=0.5e-3,
    logits_s=2e-3,
    sampled_s=0.2e-3,
    decode_s=0.05e-3,
    context_s=1e-6,
    chunk_s=0.3e-3,
    pairs_s=2e-8,
    behind_s=5e-7,
    copied_s=1e-4,
    swapped_out_s=2e-4,
    swapped_in_s=3e-4,
)


def steps(count: int = 400) -> list[StepWork]:
    """Of all kinds and sizes."""
    rng, found = Random(5), []
    for _ in range(count):
        num_decodes = rng.choice([0, 1, 2, 3, 5, 9, 17, 33, 64])
        chunks = [Chunk(rng.choice([2, 7, 30, 100, 300]), rng.choice([0, 0, 64, 500])) for _ in range(rng.randrange(3))]
        if not chunks and not num_decodes:
            continue
        found.append(
            StepWork(
                num_tokens=num_decodes + sum(chunk.num_tokens for chunk in chunks),
                num_decodes=num_decodes,
                decode_context_tokens=num_decodes * rng.randrange(1, 900),
                chunks=chunks,
                num_sampled=num_decodes + rng.randint(0, len(chunks)),
            )
        )
    return found


def measured(work: list[StepWork], noise: float = 0.0) -> list[Step]:
    rng = Random(6)
    return [
        Step(work=w, num_admitted=0, seconds=TRUTH.step(w).forward_s * (1 + noise * rng.uniform(-1, 1))) for w in work
    ]


def test_a_step_takes_the_sum_of_its_terms() -> None:
    work = StepWork(
        num_tokens=1 + 3, num_decodes=1, decode_context_tokens=50, chunks=[Chunk(3, 10)], num_sampled=2,
        num_copied_blocks=2, num_swapped_out_blocks=3, num_swapped_in_blocks=4,
    )  # fmt: skip
    cost = TRUTH.step(work)
    tokens = 2 * 3e-3 + 2 * 2e-3
    pairs = 3 * 10 + 3 * 2  # the second and third token of the chunk also see those before them in it, and themselves
    once = 9e-3 + 0.5e-3 + 2e-3
    each = 2 * 0.2e-3 + 0.05e-3 + 50e-6 + 0.3e-3 + pairs * 2e-8 + 10 * 5e-7 + 2e-4
    assert cost.forward_s == pytest.approx(tokens + once + each)
    assert cost.swap_s == pytest.approx(3 * 2e-4 + 4 * 3e-4)


def test_chunks_cost_what_is_within_the_windows() -> None:
    """Half the layers see 4 tokens: 3 tokens read 3 of the 10 before them there, and are in 12 pairs."""
    work = StepWork(num_tokens=3, chunks=[Chunk(3, 10, Reach(((4, 0.5), (None, 0.5))))])
    pairs, behind = (12 + 36) / 2, (3 + 10) / 2
    assert dict(zip(COUNTS, counts(work), strict=True)) == {
        "step": 1, "chunked": 1, "logits": 0, "sampled": 0, "decode": 0, "context": 0, "chunk": 1, "pairs": pairs,
        "behind": behind,
    }  # fmt: skip
    expected = 2 * 3e-3 + 2e-3 + 9e-3 + 0.5e-3 + 0.3e-3 + pairs * 2e-8 + behind * 5e-7
    assert TRUTH.step(work).forward_s == pytest.approx(expected, rel=1e-12)


def test_a_plan_that_computes_nothing_takes_no_time() -> None:
    assert TRUTH.step(StepWork()).forward_s == 0.0
    assert TRUTH.step(StepWork(num_swapped_out_blocks=1)).forward_s == 0.0


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 31, 32, 33, 512, 700])
def test_the_term_of_tokens_is_linear_between_knots_and_past_the_last(num_tokens: int) -> None:
    assert sum(spans(num_tokens)) == num_tokens
    assert TRUTH.tokens_s(num_tokens) == pytest.approx(
        sum(part * slope for part, slope in zip(spans(num_tokens), TRUTH.token_s, strict=True))
    )


def test_the_line_of_the_least_squares_is_the_cost() -> None:
    flat = [*TRUTH.token_s, *(getattr(TRUTH, f"{name}_s") for name in COUNTS)]
    for work in steps(100):
        by_row = sum(x * c for x, c in zip(row(work), flat, strict=True))
        assert by_row == pytest.approx(TRUTH.step(work).forward_s)


def test_known_seconds_are_found_again() -> None:
    """What can be told apart: no step has a sampled row without logits, so those two may trade with the others."""
    fitted = fit_cost(measured(steps()))
    for work in steps(50):
        assert fitted.step(work).forward_s == pytest.approx(TRUTH.step(work).forward_s, rel=1e-6)
    assert fitted.context_s == pytest.approx(TRUTH.context_s, rel=1e-4)
    assert fitted.pairs_s == pytest.approx(TRUTH.pairs_s, rel=1e-4)
    assert fitted.behind_s == pytest.approx(TRUTH.behind_s, rel=1e-3)
    assert fitted.token_s[5:] == pytest.approx(TRUTH.token_s[5:], rel=1e-3)


def test_the_level_is_that_of_the_sum() -> None:
    """Steps that now and then take much longer are not lost: the sum of what is predicted is the sum of what was."""
    rng = Random(8)
    noisy = [msgspec.structs.replace(s, seconds=s.seconds * rng.choice([1, 1, 1, 3])) for s in measured(steps())]
    for given, total_s in ((None, sum(s.seconds for s in noisy)), (100.0, 100.0)):
        fitted = fit_cost(noisy, total_s=given)
        assert sum(fitted.step(s.work).forward_s for s in noisy) == pytest.approx(total_s)


def test_noise_is_averaged_and_told() -> None:
    noisy = measured(steps(), noise=0.1)
    fitted = fit_cost(noisy)
    for work in steps(100):
        assert fitted.step(work).forward_s == pytest.approx(TRUTH.step(work).forward_s, rel=0.05)
    found = residuals(noisy, fitted)
    assert set(found) == {"decode", "chunks", "mixed"}
    assert all(0.02 < one.median < 0.08 and abs(one.bias) < 0.02 for one in found.values())


def test_a_fit_survives_its_file() -> None:
    fit = Fit(
        model="m", date="2026-01-01T00:00:00Z", machine={"cpus": 2}, engine={"kv_dtype": "float32"}, cost=TRUTH,
        residuals={"decode": Residual(num_steps=3, median=0.01, p90=0.02, bias=0.0)}, num_steps=3, rounds=1,
    )  # fmt: skip
    assert read_fit(msgspec.json.encode(fit), "fit.json") == fit


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"step_s": -1.0}, "step_s = -1.0: must be seconds"),
        ({"context_s": float("nan")}, "context_s"),
        ({"token_s": [1.0]}, "one figure for each of 9 spans"),
        ({"knots": [0, 4, 4]}, "rising numbers of tokens"),
        ({"step_s": 0.0, "token_s": [0.0] * 9}, "would take no time"),
        ({"extra": 1}, "unknown field"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_wrong(change: dict[str, object], said: str) -> None:
    cost = msgspec.to_builtins(TRUTH) | change
    body = {"model": "m", "date": "", "machine": {}, "engine": {}, "residuals": {}, "num_steps": 1, "rounds": 1}
    text = msgspec.json.encode(body | {"cost": cost}).replace(b'"context_s":null', b'"context_s":1e999')
    with pytest.raises(ConfigError, match="a file written by `octavo bench fit`") as raised:
        read_fit(text, "x.json")
    assert said in str(raised.value) or "context_s" in said


def test_a_file_that_is_no_json_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"fit = 'x.json': must be a file written by"):
        read_fit(b"hello", "x.json")


def test_fitting_uses_relative_errors() -> None:
    """Ten long steps that are 10 % off must not drown ten short ones that are exact."""
    rows = [[1.0], [100.0]]
    seconds = [1.0, 110.0]
    relative = nnls([[r[0] / s] for r, s in zip(rows, seconds, strict=True)], [1.0, 1.0])[0]
    assert abs(relative - 1.0) < abs(nnls(rows, seconds)[0] - 1.0)
