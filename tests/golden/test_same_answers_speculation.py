"""Guessing tokens changes no answer: greedy or sampled, penalised, with logprobs, stopped, forked, preempted, shared.

Every answer is compared with the same request run alone and unguessed, to the last bit; and each run is asked whether
drafts were accepted and rejected in it.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from golden import memory_scenarios as scenarios
from golden.memory_scenarios import INT8, PLAIN, STORIES, Format, Model
from octavo.engine.llm import LLM
from octavo.messages import EngineRequest, EngineStats, SamplingParams
from octavo.weights.sources import resolve
from support.core_runs import Answers, Seen, assert_same, random_requests, run, run_alone
from support.memory_runs import Preempting
from support.tiny_models import TinyLlama, write_tiny_llama

LOOKUP = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_min": 1, "adaptive": False}
"""Looks up single tokens, so that it guesses often and is often wrong."""
OWN_MODEL = {"model": str(STORIES.path), "num_speculative_tokens": 3, "adaptive": False}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_tiny_llama(tmp_path_factory.mktemp("target"), TinyLlama(seed=3)), 96)


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_tiny_llama(tmp_path_factory.mktemp("window"), TinyLlama(window=24, tied=False, seed=6)), 96)


@pytest.fixture(scope="session")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target's first layer: it often agrees, and often does not."""
    return write_tiny_llama(tmp_path_factory.mktemp("draft"), TinyLlama(seed=3, num_layers=1))


@cache
def repetitive_requests(vocab_size: int, count: int) -> list[EngineRequest]:
    """Requests of every kind, whose prompts repeat themselves and whose scores favour few tokens."""
    rng = random.Random(23)
    made = []
    for plain in random_requests(rng, count, vocab_size=vocab_size, max_prompt=60, max_tokens=40, eos=(2,)):
        prompt = (plain.token_ids * 3)[: rng.randint(2, 70)]
        few = {rng.randrange(3, vocab_size): 14.0 for _ in range(3)}
        bias = rng.choice([plain.sampling.logit_bias, few, few])
        sampling = msgspec.structs.replace(plain.sampling, logit_bias=bias)
        made.append(msgspec.structs.replace(plain, token_ids=prompt, num_prompt_tokens=len(prompt), sampling=sampling))
    return made


@cache
def alone(model: Model, form: Format) -> Answers:
    return run_alone(model.path, repetitive_requests(model.vocab_size, 120), num_threads=1, **form._asdict())


def guessed_run(model: Model, form: Format, speculation: dict[str, Any], *, small: bool, **settings: Any) -> Seen:
    size = settings.setdefault("block_size", 16)
    per_sequence = (160 // size + 1) * settings.pop("num_groups", 1)
    found, seen = run(
        model.path,
        repetitive_requests(model.vocab_size, 120),
        arrivals=random.Random(2),
        max_num_seqs=10,
        max_model_len=160,
        num_blocks=1 + (per_sequence * 5 // 3 if small else per_sequence * 10),
        speculative_config=speculation,
        **form._asdict(),
        **settings,
    )
    assert_same(found, alone(model, form))
    assert seen.stats is not None
    assert_guessed(seen.stats)
    assert (seen.stats.num_preemptions > 0) is small
    return seen


def assert_guessed(stats: EngineStats, least: int = 10) -> None:
    assert stats.num_accepted_tokens >= least, "few drafts were right"
    assert stats.num_draft_tokens - stats.num_accepted_tokens >= least, "few drafts were wrong"


@pytest.mark.parametrize("form", [PLAIN, Format(dtype="float32"), INT8], ids=["bfloat16", "float32", "int8"])
@pytest.mark.parametrize(
    ("chunk", "block_size", "threads", "small"), [(16, 8, 2, True), (64, 16, 1, False), (512, 4, 2, True)]
)
def test_prompt_lookup(form: Format, chunk: int, block_size: int, threads: int, small: bool) -> None:
    seen = guessed_run(
        STORIES,
        form,
        LOOKUP,
        small=small,
        max_num_batched_tokens=chunk,
        block_size=block_size,
        num_threads=threads,
    )
    assert seen.num_forks > 0


@pytest.mark.parametrize("form", [PLAIN, INT8], ids=["bfloat16", "int8"])
@pytest.mark.parametrize(("chunk", "small"), [(16, True), (64, False)])
def test_a_draft_model(target: Model, draft: Path, form: Format, chunk: int, small: bool) -> None:
    settings = {"model": str(draft), "num_speculative_tokens": 4, "adaptive": False}
    guessed_run(target, form, settings, small=small, max_num_batched_tokens=chunk, num_threads=1)


def test_windows(windowed: Model) -> None:
    seen = guessed_run(windowed, PLAIN, LOOKUP, small=True, block_size=8, num_threads=1, max_num_batched_tokens=32)
    assert seen.num_windows_left > 0


def test_adapting_to_what_pays_changes_no_answer() -> None:
    for settings in ({**LOOKUP, "adaptive": True}, {**OWN_MODEL, "adaptive": True}):
        found, seen = run(
            STORIES.path,
            repetitive_requests(512, 120),
            arrivals=random.Random(2),
            max_num_seqs=6,
            max_model_len=160,
            num_blocks=100,
            speculative_config=settings,
            num_threads=1,
            **PLAIN._asdict(),
        )
        assert_same(found, alone(STORIES, PLAIN))
        assert seen.stats is not None and seen.stats.num_drafts > 0


@pytest.mark.parametrize("way", ["swap", "recompute"])
@pytest.mark.parametrize("by_model", [False, True], ids=["ngram", "draft_model"])
def test_preempted_at_any_step(target: Model, draft: Path, way: str, by_model: bool) -> None:
    """The draft model meets rows again that have moved, and rows whose tokens are another sequence's now."""
    own = {"model": str(draft), "num_speculative_tokens": 4, "adaptive": False}
    rng = random.Random(4)
    with scenarios.open_engine(
        target,
        PLAIN,
        max_num_seqs=8,
        num_blocks=200,
        block_size=8,
        preemption=way,
        swap_space_bytes=8 << 20,
        erase_freed_blocks=True,
        speculative_config=own if by_model else LOOKUP,
    ) as engine:
        Preempting(engine, lambda gang: rng.random() < 0.2)
        assert_same(engine.drive(repetitive_requests(96, 120), random.Random(1)), alone(target, PLAIN))
        assert_guessed(engine.stats)
        assert engine.stats.num_preemptions > 100
        assert (engine.stats.num_swap_preemptions > 0) is (way == "swap")


@pytest.mark.parametrize("speculation", [LOOKUP, OWN_MODEL], ids=["ngram", "draft_model"])
def test_shared_and_lost_memory(speculation: dict[str, Any]) -> None:
    scenarios.shared_prefixes(INT8, block_size=8, speculative_config=speculation)
    scenarios.parallel_samples(speculative_config=speculation)
    scenarios.tiny_pool(INT8, way="auto", erase_freed_blocks=True, speculative_config=speculation)
    scenarios.failing_tier(put_every=2, get_every=3, speculative_config=speculation)
    scenarios.aborts(erase_freed_blocks=True, speculative_config=speculation)


def test_the_target_as_its_own_draft_is_always_right() -> None:
    """Sampled requests too: both draw with the noise of the position, so equal scores give equal tokens."""
    with LLM(str(STORIES.path), dtype="bfloat16", num_threads=1, speculative_config=OWN_MODEL) as llm:
        params = [
            SamplingParams(temperature=t, seed=7, max_tokens=60, ignore_eos=True, repetition_penalty=p, top_p=0.95)
            for t in (0.0, 0.8, 1.3)
            for p in (1.0, 1.2)
        ]
        llm.generate(["Once upon a time", "The cat sat"] * 3, params)
        stats = llm.stats()
        assert stats.num_draft_tokens == stats.num_accepted_tokens > 200


TEXTS = [
    SamplingParams(temperature=0.0, max_tokens=48, stop=("park", "friends", " the")),
    SamplingParams(temperature=0.7, seed=1, n=4, max_tokens=48, stop=(" was", "."), logprobs=2),
    SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=9, min_tokens=5, include_stop_str_in_output=True),
    SamplingParams(temperature=0.9, seed=4, n=2, best_of=5, max_tokens=40),
    SamplingParams(beam_width=3, n=2, max_tokens=30),
    SamplingParams(temperature=0.0, max_tokens=1),
]


@pytest.mark.parametrize("speculation", [LOOKUP, OWN_MODEL], ids=["ngram", "draft_model"])
def test_text_stop_strings_and_limits(speculation: dict[str, Any]) -> None:
    story = "Once upon a time, there was a little girl. Once upon a time, there was a"
    found = []
    for settings in ({}, {"speculative_config": speculation}):
        with LLM(str(STORIES.path), dtype="bfloat16", num_threads=1, num_blocks=400, **settings) as llm:
            found.append([output.outputs for output in llm.generate([story] * len(TEXTS), TEXTS)])
            assert not settings or llm.stats().num_accepted_tokens > 0
    assert found[0] == found[1]


# ---- the default model


@pytest.mark.model
@pytest.mark.parametrize("small", [False, True])
def test_the_default_model(small: bool) -> None:
    model = Model(resolve("smollm2-135m").path, 49152)
    rng = random.Random(8)
    requests = []
    for plain in random_requests(rng, 8, vocab_size=49152, max_prompt=30, max_tokens=24, eos=(2,)):
        prompt = (plain.token_ids * 4)[:48]
        requests.append(msgspec.structs.replace(plain, token_ids=prompt, num_prompt_tokens=len(prompt)))
    expected = run_alone(model.path, requests, dtype="bfloat16", num_threads=2)
    found, seen = run(
        model.path,
        requests,
        arrivals=random.Random(1),
        dtype="bfloat16",
        num_threads=2,
        max_num_seqs=6,
        max_model_len=96,
        num_blocks=1 + (9 if small else 60),
        block_size=16,
        speculative_config=LOOKUP,
    )
    assert_same(found, expected)
    assert seen.stats is not None
    if small:  # who is preempted for want of blocks has few left over for drafts
        assert seen.stats.num_draft_tokens > 0
    else:
        assert_guessed(seen.stats, 3)
