"""Real weights against transformers in float32 on the dequantised tensors; run by `make test-models`.

transformers reads the GGUF files itself, so its names, layouts and config are its own.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import octavo._native as _native
from golden import compare
from models.figures import record
from models.real_cases import REAL_CASES, RealCase
from support.core_runs import Answers, RealEngine
from support.memory_runs import Preempting, once_at

pytestmark = [pytest.mark.models, pytest.mark.timeout(3600)]
PATHS = _native.supported_paths()
PORTABLE_TOKENS = 8
MOST_GROUPS = 6
"""Of KV, in the models here."""
LEAST_AGREEMENT = 0.5
"""Of the default form, in which activations are rounded too: far below what was found, so that only nonsense fails."""


class Real(msgspec.Struct):
    """A checkpoint here, and what transformers makes of it."""

    case: RealCase
    path: Path
    prompts: list[list[int]]
    expected: list[compare.Expectation]

    def greedy(self, num_tokens: int, *, preempted: bool = False, **settings: Any) -> Answers:
        """All prompts at once, with room for all of them; each preempted once in the middle of its answer, if asked."""
        longest = max(map(len, self.prompts)) + num_tokens
        settings = {
            "dtype": "float32",
            "quantization": "none",
            "block_size": self.case.block_size,
            "num_blocks": MOST_GROUPS * len(self.prompts) * (longest // self.case.block_size + 2),
            "max_model_len": longest,
            "max_num_seqs": len(self.prompts),
            **settings,
        }
        with RealEngine.open(self.path, **settings) as engine:
            preempting = Preempting(engine, once_at(num_tokens // 2)) if preempted else None
            answers = engine.drive(compare.greedy_requests(self.prompts, num_tokens))
            if preempting is not None:
                assert sorted(preempting.num_times.values()) == [1] * len(self.prompts)
                assert engine.seen.num_chunked > 0
        return answers


@pytest.fixture(scope="module", params=REAL_CASES, ids=lambda case: case.name)
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    case: RealCase = request.param
    if case.missing:
        pytest.skip(case.missing)
    path = case.path(tmp_path_factory.mktemp("real"))
    prompts = case.prompts(path)
    record(case.name, **case.facts(path))
    from models.oracle import expectations

    yield Real(case, path, prompts, expectations(path, prompts, case.num_tokens))
    gc.collect()


def test_logits(real: Real) -> None:
    """Teacher-forced, on the fastest path; a chunk ends inside the long prompts."""
    worst = compare.worst_logits(real.path, real.prompts, real.expected, isa=PATHS[0])
    record(real.case.name, logits_error=worst)
    assert worst < compare.LOGITS_TOLERANCE


def test_greedy_tokens_chunked_and_preempted(real: Real) -> None:
    """transformers' tokens; and the same ones with prompts cut into chunks and every answer preempted on its way."""
    plain = real.greedy(real.case.num_tokens, isa=PATHS[0])
    ties = compare.near_ties(plain, real.expected)
    record(real.case.name, prompts=len(real.prompts), tokens=real.case.num_tokens, near_ties=ties)
    squeezed = real.greedy(real.case.num_tokens, isa=PATHS[0], max_num_batched_tokens=24, preempted=True)
    assert {key: answer.token_ids for key, answer in squeezed.items()} == {
        key: answer.token_ids for key, answer in plain.items()
    }


def test_portable_path(real: Real) -> None:
    """Fewer prompts and tokens: it is slow."""
    short = Real(real.case, real.path, real.prompts[:2], real.expected[:2])
    answers = short.greedy(PORTABLE_TOKENS, isa="portable")
    compare.near_ties(answers, short.expected)
    worst = compare.worst_logits(real.path, short.prompts, short.expected, isa="portable")
    record(real.case.name, portable_logits_error=worst)
    assert worst < compare.LOGITS_TOLERANCE


def test_the_default_form_stays_close(real: Real) -> None:
    """Weights in the groups that are stored. What rounding costs is reported; only nonsense fails."""
    divergences, agreements, worst = [], [], 0.0
    for prompt, expectation in zip(real.prompts, real.expected, strict=True):
        found = compare.prompt_logits(real.path, [*prompt, *expectation.tokens[:-1]], quantization="auto")
        divergences.append(divergence(expectation.logits, found))
        agreements.append(found.argmax(axis=-1) == expectation.logits.argmax(axis=-1))
        worst = max(worst, float((np.abs(found - expectation.logits).max(axis=-1) / expectation.scale).max()))
    agreement = float(np.concatenate(agreements).mean())
    mean = float(np.concatenate(divergences).mean())
    record(real.case.name, stored_form={"agreement": agreement, "divergence": mean, "logits_error": worst})
    assert agreement > LEAST_AGREEMENT


def divergence(expected: Any, found: Any) -> Any:
    """Kullback-Leibler divergence of the found distribution from the expected one, in nats. [positions]"""
    log_p, log_q = (
        x - np.logaddexp.reduce(x, axis=-1, keepdims=True) for x in (np.float64(expected), np.float64(found))
    )
    return (np.exp(log_p) * (log_p - log_q)).sum(axis=-1)
