"""Perplexity by `octavo bench quality` against transformers in float32. Needs torch and transformers."""

from __future__ import annotations

import math
from typing import Any

import pytest

from golden.test_int8_quality import TEXT
from octavo import LLM
from octavo.cli.bench_quality import score
from octavo.weights.sources import resolve
from support.paths import TINYSTORIES
from unit.cli.test_bench_quality import NATS_BY_TRANSFORMERS

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]

LENGTH, STRIDE = 64, 32


def nats_by_transformers(model: Any, token_ids: list[int], length: int, stride: int) -> float:
    from golden.perplexity import nats_of_each

    found = nats_of_each(model, token_ids, length, stride)
    assert len(found) == len(token_ids) - 1
    return sum(found) / len(found)


@pytest.mark.parametrize(("length", "stride"), NATS_BY_TRANSFORMERS)
def test_the_committed_figures_of_the_tiny_model(length: int, stride: int) -> None:
    from golden.make_goldens import stories_model

    with LLM(str(TINYSTORIES), num_blocks=16) as llm:
        token_ids = llm.tokenizer.encode(TEXT)
    again = nats_by_transformers(stories_model(), token_ids, length, stride)
    assert again == pytest.approx(NATS_BY_TRANSFORMERS[length, stride], abs=1e-5)


@pytest.mark.model
def test_the_default_model() -> None:
    from golden.make_goldens import real_model

    with LLM("smollm2-135m", quantization="none", dtype="float32", kv_cache_dtype="float32", num_blocks=64) as llm:
        token_ids = llm.tokenizer.encode(TEXT)
        ours = score(llm, token_ids, LENGTH, STRIDE).nats
    theirs = nats_by_transformers(real_model(resolve("smollm2-135m").path), token_ids, LENGTH, STRIDE)
    assert abs(math.expm1(ours - theirs)) < 1e-3
