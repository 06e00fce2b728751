"""Against Hugging Face transformers in float32: teacher-forced logits, and greedy tokens. See make_goldens.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import octavo._native as _native
from golden import cases, compare
from octavo.models.families import decoder_spec
from octavo.weights.sources import resolve
from support.core_runs import run
from support.paths import TINYSTORIES
from support.tiny_models import write_tiny_llama

PATHS = _native.supported_paths()
TINY = pytest.mark.parametrize("name", cases.TINY)
WAYS = pytest.mark.parametrize("isa", [*PATHS, "reference", pytest.param("torch", marks=pytest.mark.torch)])


def where(isa: str) -> dict[str, Any]:
    """A kernel path, or another back end. torch's threads would wait for each other by spinning: all is tiny here."""
    return {"isa": isa} if isa in PATHS else {"backend": isa, "num_threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("tiny")
    return lambda name: write_tiny_llama(root / name, (cases.TINY | cases.FAMILIES)[name])


@TINY
@WAYS
@pytest.mark.parametrize("chunk", [7, 512])
def test_tiny_logits(name: str, isa: str, chunk: int, folder: Callable[[str], Path]) -> None:
    prompts = cases.tiny_prompts(cases.TINY[name])
    worst = compare.worst_logits(folder(name), prompts, compare.load(name), chunk=chunk, **where(isa))
    assert worst < compare.LOGITS_TOLERANCE


@TINY
@pytest.mark.parametrize("isa", PATHS)
@pytest.mark.parametrize("block_size", [8, 32])
def test_tiny_greedy(name: str, isa: str, block_size: int, folder: Callable[[str], Path]) -> None:
    requests = compare.greedy_requests(cases.tiny_prompts(cases.TINY[name]), cases.TINY_TOKENS)
    answers, _ = run(folder(name), requests, dtype="float32", isa=isa, block_size=block_size, num_blocks=80)
    assert compare.near_ties(answers, compare.load(name)) == 0


LONG = {"allow_long_max_model_len": True}
"""A dynamic rotary embedding is a plain one up to the trained context."""
FAMILY = pytest.mark.parametrize("name", cases.FAMILIES)


@FAMILY
@WAYS
def test_family_logits(name: str, isa: str, folder: Callable[[str], Path]) -> None:
    """In chunks that end inside blocks and inside windows."""
    model = cases.FAMILIES[name]
    settings = where(isa) | ({} if model.context is None else LONG | {"max_model_len": model.context})
    worst = compare.worst_logits(folder(name), cases.tiny_prompts(model), compare.load(name), chunk=37, **settings)
    assert worst < compare.LOGITS_TOLERANCE


@FAMILY
@WAYS
def test_family_greedy(name: str, isa: str, folder: Callable[[str], Path]) -> None:
    """Cut into chunks, over the borders of small blocks, in a pool that holds one sequence and a little."""
    model = cases.FAMILIES[name]
    requests = compare.greedy_requests(cases.tiny_prompts(model), cases.FAMILY_TOKENS)
    windows = decoder_spec(model.config(), model.context).windows
    settings = {"block_size": 8, "num_blocks": 2 + 16 * len(windows), "max_num_batched_tokens": 24}
    settings |= {"max_model_len": model.context or 128, "max_num_seqs": 2, "dtype": "float32", **LONG}
    answers, seen = run(folder(name), requests, **settings, **where(isa))
    assert compare.near_ties(answers, compare.load(name)) == 0
    assert seen.stats is not None and (windows != (None,) or seen.stats.num_preemptions > 0)


@pytest.mark.parametrize("isa", PATHS)
def test_tinystories(isa: str) -> None:
    expected = compare.load("tinystories")
    requests = compare.greedy_requests(cases.STORIES_PROMPTS, cases.STORIES_TOKENS)
    answers, _ = run(TINYSTORIES, requests, dtype="float32", isa=isa, max_num_batched_tokens=33, num_blocks=60)
    assert compare.near_ties(answers, expected) == 0
    assert compare.worst_logits(TINYSTORIES, cases.STORIES_PROMPTS, expected, isa=isa) < compare.LOGITS_TOLERANCE


@pytest.mark.model
def test_the_default_model() -> None:
    """Four prompts of fifty; the rest is in test_full.py."""
    model = resolve("smollm2-135m").path
    prompts, expected = cases.real_prompts()[:4], compare.load("smollm2")[:4]
    assert compare.worst_logits(model, prompts, expected, ids=cases.REAL_IDS) < compare.LOGITS_TOLERANCE
    settings = {"dtype": "float32", "quantization": "none", "num_blocks": 200, "max_num_seqs": 4}
    answers, _ = run(model, compare.greedy_requests(prompts, 32), **settings)
    assert compare.near_ties(answers, expected) == 0
