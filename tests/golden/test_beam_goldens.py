"""The engine's beam search against transformers' in float32, and what it holds meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import octavo._native as _native
from golden import beams, cases
from octavo.config import EngineConfig
from octavo.engine.build import build_engine
from octavo.messages import EngineRequest, SamplingParams
from octavo.weights.sources import resolve
from support.core_runs import Seen, run
from support.paths import TINYSTORIES
from support.tiny_models import TinyLlama, write_tiny_llama

PATHS = _native.supported_paths()
EVERY = range(len(cases.BEAMS))
FEW = (4, 9, 12, 13, 14)
"""Widths 4 and 6, every kind of stopping, several ends, processed scores."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("tiny")
    return lambda name: write_tiny_llama(root / name, cases.TINY[name])


def compare(name: str, model: Path, chosen: Sequence[int] = EVERY, **settings: Any) -> tuple[int, Seen]:
    """Run the chosen cases on one engine; returns how many went another way at a near tie."""
    requests = beams.requests(name, chosen)
    answers, seen = run(model, requests, dtype="float32", **settings)
    expected = [(c, p, each) for c in chosen for p, each in enumerate(beams.load(name)[c])]
    differ = [
        not beams.same(beams.found(answers, request), wanted, f"{name}, case {c}, prompt {p}")
        for request, (c, p, wanted) in zip(requests, expected, strict=True)
    ]
    return sum(differ), seen


@pytest.mark.parametrize("name", cases.TINY)
def test_tiny_models(name: str, folder: Callable[[str], Path]) -> None:
    differ, seen = compare(name, folder(name), block_size=8, num_blocks=2000, max_num_seqs=64)
    assert differ <= 1
    assert seen.stats is not None and seen.stats.num_copy_faults > 0, "no beam shared a block it wrote to"


@pytest.mark.parametrize("isa", [*PATHS, "reference"])
def test_every_back_end(isa: str, folder: Callable[[str], Path]) -> None:
    where = {"backend": "reference"} if isa == "reference" else {"isa": isa}
    differ, _ = compare("window", folder("window"), FEW, num_blocks=600, max_num_seqs=24, **where)
    assert differ <= 1


@pytest.mark.parametrize("preemption", ["swap", "recompute"])
def test_under_preemption(preemption: str, folder: Callable[[str], Path]) -> None:
    """Chunked prompts, two steps in flight, and too few blocks for the beams that run together."""
    differ, seen = compare(
        "gqa-tied",
        folder("gqa-tied"),
        FEW,
        block_size=4,
        num_blocks=96,
        max_num_batched_tokens=19,
        max_num_seqs=64,
        depth=2,
        preemption=preemption,
    )
    assert differ <= 1
    assert seen.num_chunked > 0
    assert seen.stats is not None and seen.stats.num_preemptions > 0
    assert (seen.stats.num_swap_preemptions > 0) == (preemption == "swap")


def test_tinystories() -> None:
    differ, _ = compare("tinystories", TINYSTORIES, num_blocks=1000)
    assert differ <= 1


@pytest.mark.model
@pytest.mark.parametrize("chosen", [(2, 5, 9, 14), pytest.param(EVERY, marks=pytest.mark.full)], ids=["few", "every"])
def test_the_default_model(chosen: Sequence[int]) -> None:
    differ, _ = compare("smollm2", resolve("smollm2-135m").path, chosen, quantization="none", num_blocks=1000)
    assert differ <= 1


def test_the_cases_tell_settings_apart() -> None:
    """Each kind of stopping, length penalty and width changes some answer; ends are met, and choices were clear."""
    found = {name: beams.load(name) for name in [*cases.TINY, "tinystories", "smollm2"]}
    answers = {name: [[each.answers for each in case] for case in loaded] for name, loaded in found.items()}
    for first, second in [(4, 5), (8, 9), (4, 6), (4, 8), (12, 6)]:
        assert any(each[first] != each[second] for each in answers.values()), (first, second)
    every = [each for loaded in found.values() for case in loaded for each in case]
    assert len({len(answer) for each in every for answer in each.answers}) > 20
    assert np.mean([each.margin < beams.NEAR_TIE for each in every]) < 0.02


def most_held_blocks(model: Path, prompt: list[int], beam_width: int | None, block_size: int) -> int:
    """Blocks held after the step after which they are most, for 64 new tokens."""
    config = EngineConfig.of(model=str(model), dtype="float32", block_size=block_size, num_blocks=200, max_num_seqs=8)
    core, _, close = build_engine(config, resolve(str(model)))
    sampling = SamplingParams(beam_width=beam_width, temperature=0.0, max_tokens=64, ignore_eos=True)
    try:
        core.add(
            EngineRequest(
                request_id=0, token_ids=prompt, num_prompt_tokens=512, sampling=sampling, seed=0, max_tokens=64
            )
        )
        most = 0
        while core.has_work:
            core.step(0.0)
            most = max(most, core.stats().num_held_blocks)
        return most
    finally:
        close()


@pytest.mark.parametrize("block_size", [8, 16, 64])
def test_beams_hold_little_more_than_greedy(block_size: int, tmp_path: Path) -> None:
    """One prompt of 512 tokens, 4 beams. The default model's are counted in test_shared_blocks.py."""
    model = write_tiny_llama(tmp_path / "long", TinyLlama(max_position=1024))
    prompt = np.random.default_rng(7).integers(3, 96, 512).tolist()
    greedy, beam = (most_held_blocks(model, prompt, width, block_size) for width in (None, 4))
    assert greedy == -(-(512 + 63) // block_size)
    assert greedy < beam <= 1.4 * greedy
