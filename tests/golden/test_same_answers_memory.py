"""Sharing, copying, swapping, evicting and losing KV change no answer: see `memory_scenarios` for what each asserts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from golden import memory_scenarios as scenarios
from golden.memory_scenarios import INT8, PLAIN, STORIES, Format, Model
from octavo.engine.host import InlineHost
from octavo.engine.llm import LLM
from octavo.engine.outputs import CompletionOutput
from octavo.messages import SamplingParams
from octavo.weights.sources import resolve
from support.core_runs import WATCHED, RealEngine
from support.memory_runs import Preempting, at_every_step, once_at
from support.tiny_models import TinyLlama, write_tiny_llama

FLOAT32 = Format(dtype="float32")
INT4_WEIGHTS = Format(quantization="int4")
FORMATS = pytest.mark.parametrize("form", [PLAIN, INT8, INT4_WEIGHTS], ids=["bfloat16", "int8", "int4-weights"])
ALL_FORMATS = pytest.mark.parametrize("form", [PLAIN, FLOAT32, INT8], ids=["bfloat16", "float32", "int8"])
DEPTHS = pytest.mark.parametrize("depth", [1, 2])
WAYS = pytest.mark.parametrize("way", ["swap", "recompute"])


@pytest.fixture(scope="session")
def windowed(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A model whose layers see 24 tokens, so that blocks are given back while their sequence runs."""
    folder = tmp_path_factory.mktemp("window")
    return Model(write_tiny_llama(folder, TinyLlama(window=24, tied=False, seed=6)), 96)


# ---- the prefix cache


@FORMATS
@pytest.mark.parametrize(
    ("depth", "block_size", "small", "eviction"),
    [(1, 16, False, "lru"), (2, 8, False, "lru"), (2, 16, True, "lru"), (1, 8, True, "cost")],
)
def test_shared_prefixes_and_chat_turns(form: Format, depth: int, block_size: int, small: bool, eviction: str) -> None:
    scenarios.shared_prefixes(form, depth=depth, block_size=block_size, small=small, eviction=eviction)


def test_shared_prefixes_with_erasure() -> None:
    seen = scenarios.shared_prefixes(depth=2, small=True, erase_freed_blocks=True, max_num_batched_tokens=32)
    assert seen.num_erased > 0 and seen.num_chunked > 0


def test_shared_prefixes_swapped_at_every_step() -> None:
    """What a sequence shares with others leaves and comes back, again and again, while others find it."""
    preempting: list[Preempting] = []

    def watch(engine: RealEngine) -> None:
        if not preempting:
            preempting.append(Preempting(engine, at_every_step()))

    seen = scenarios.shared_prefixes(
        count=40, preemption="swap", swap_space_bytes=4 << 20, watch=watch, max_num_batched_tokens=1024
    )
    assert preempting[0].num_times.total() > 200 and seen.num_swapped_in > 100


@DEPTHS
def test_a_request_takes_over_from_one_whose_row_fails(depth: int) -> None:
    scenarios.takeover(abort=False, depth=depth)


def test_a_request_takes_over_from_one_that_is_aborted() -> None:
    scenarios.takeover(abort=True, depth=2)


@DEPTHS
def test_a_published_prefix_is_shared_and_withdrawn(depth: int) -> None:
    scenarios.published(depth=depth)


# ---- several answers


@FORMATS
@pytest.mark.parametrize(("depth", "narrow"), [(1, False), (2, True)])
def test_several_answers_are_those_of_single_requests(form: Format, depth: int, narrow: bool) -> None:
    scenarios.parallel_samples(form, depth=depth, narrow=narrow)


def test_several_answers_with_blocks_of_one_token_and_without_cache() -> None:
    scenarios.parallel_samples(depth=2, block_size=1)
    scenarios.parallel_samples(enable_prefix_caching=False, max_num_batched_tokens=24)


# ---- preemption at every step


@DEPTHS
@WAYS
@FORMATS
def test_preempted_at_every_step(form: Format, way: str, depth: int) -> None:
    scenarios.preempted_at_every_step(form, way=way, depth=depth, enable_prefix_caching=False)
    seen = scenarios.preempted_at_every_step(form, way=way, depth=depth, erase_freed_blocks=True)
    assert seen.num_erased > 0


@pytest.mark.parametrize(("form", "way", "depth"), [(PLAIN, "swap", 1), (INT8, "recompute", 2)])
def test_preempted_once_at_each_of_64_tokens(form: Format, way: str, depth: int) -> None:
    scenarios.preempted_once_at(form, way=way, depth=depth, enable_prefix_caching=way == "swap")


# ---- too little memory, failing memory, ends in the middle


@ALL_FORMATS
@pytest.mark.parametrize(
    ("way", "depth", "erase", "caching"),
    [("swap", 1, True, True), ("swap", 2, False, False), ("recompute", 2, True, True), ("auto", 2, False, True)],
)
def test_everything_in_a_tiny_pool(form: Format, way: str, depth: int, erase: bool, caching: bool) -> None:
    seen = scenarios.tiny_pool(form, way=way, depth=depth, erase_freed_blocks=erase, enable_prefix_caching=caching)
    assert (seen.num_erased > 0) is erase


@DEPTHS
@pytest.mark.parametrize(("put_every", "get_every"), [(3, 0), (0, 2), (2, 3), (1, 0)])
def test_a_failing_tier_costs_time_alone(put_every: int, get_every: int, depth: int) -> None:
    scenarios.failing_tier(put_every=put_every, get_every=get_every, depth=depth)


@DEPTHS
@FORMATS
def test_whoever_is_aborted_takes_nobody_with_him(form: Format, depth: int) -> None:
    scenarios.aborts(form, depth=depth, erase_freed_blocks=depth == 2)


# ---- two ways of keeping KV: a window


@DEPTHS
@WAYS
def test_a_window_gives_blocks_back(windowed: Model, way: str, depth: int) -> None:
    seen = scenarios.shared_prefixes(model=windowed, block_size=8, depth=depth)
    assert seen.num_windows_left > 0
    seen = scenarios.preempted_at_every_step(model=windowed, way=way, depth=depth, block_size=8)
    assert seen.num_windows_left > 0
    scenarios.aborts(model=windowed, depth=depth, num_blocks=1 + 18)  # few, as windows need few


# ---- through text: stop strings, best_of


STORY = "Once upon a time, there was a little girl named Lily."
WISHES = [
    SamplingParams(temperature=0.0, max_tokens=64, stop=("garden", "park", "friends")),
    SamplingParams(temperature=1.0, seed=1, n=4, max_tokens=64, stop=(" was", "."), logprobs=1),
    SamplingParams(temperature=1.2, seed=2, max_tokens=64, stop=("~",), repetition_penalty=1.2, ignore_eos=True),
    SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=64, stop=("and",), include_stop_str_in_output=True),
    SamplingParams(temperature=1.0, seed=4, n=2, best_of=5, max_tokens=64, stop=("very",)),
    SamplingParams(beam_width=3, n=2, max_tokens=40),
]


def open_llm(**settings: Any) -> tuple[LLM, RealEngine]:
    """An LLM, and its engine to look into."""
    defaults = {"dtype": "bfloat16", "num_threads": 1, "num_blocks": 600, "block_size": 16, "max_num_seqs": 24}
    llm = LLM(str(STORIES.path), executor=WATCHED, **{**defaults, **settings})
    assert isinstance(llm._host, InlineHost) and llm._host._loop is not None
    return llm, RealEngine(llm._host._loop.core, llm.config, llm.close)


def answers_of(llm: LLM) -> list[list[CompletionOutput]]:
    return [output.outputs for output in llm.generate([STORY] * len(WISHES), WISHES)]


@DEPTHS
@WAYS
def test_text_and_stop_strings_survive_preemption_at_every_step(way: str, depth: int) -> None:
    llm, engine = open_llm(depth=depth, preemption=way, swap_space_bytes=32 << 20)
    with llm:
        expected = answers_of(llm)
        stopped = {(o.finish_reason, o.stop_reason) for outputs in expected for o in outputs}
        assert {("stop", " was"), ("stop", "."), ("stop", "and"), ("length", None)} <= stopped
        preempting = Preempting(engine, at_every_step())
        for due in (at_every_step(beam_stride=8), *(once_at(place) for place in range(0, 64, 5))):
            before = engine.stats.num_preemptions
            preempting.due = due
            assert answers_of(llm) == expected
            assert engine.stats.num_preemptions - before >= len(WISHES)
        assert (engine.stats.num_swap_preemptions > 0) is (way == "swap")
        assert llm.audit() == []


def test_best_of_chooses_among_the_answers_of_single_requests() -> None:
    drawn: list[CompletionOutput] = []
    llm, engine = open_llm()
    with llm:
        params = SamplingParams(temperature=1.0, seed=5, n=6, max_tokens=30, logprobs=0)
        [output] = llm.generate([STORY], params)
        drawn = sorted(output.outputs, key=lambda o: -sum(e.logprob for e in o.logprobs or []) / len(o.token_ids))
        [best] = llm.generate([STORY], msgspec.structs.replace(params, n=2, best_of=6))
        assert [o.token_ids for o in best.outputs] == [o.token_ids for o in drawn[:2]]
        assert [o.logprobs for o in best.outputs] == [o.logprobs for o in drawn[:2]]
        assert engine.seen.num_forks == 10


def test_a_chat_turn_finds_what_the_turn_before_generated() -> None:
    llm, _ = open_llm()
    other, engine = open_llm(enable_prefix_caching=False)
    params = SamplingParams(temperature=0.8, seed=6, max_tokens=40, ignore_eos=True, logprobs=2)
    with llm, other:
        prompt = list(llm.tokenizer.encode(STORY))
        for turn in range(4):
            [found], [expected] = llm.generate([prompt], params), other.generate([prompt], params)
            assert found.outputs == expected.outputs
            known = len(prompt) - 41
            assert turn == 0 or found.num_cached_tokens >= known > 0, "generated text, too, is there to the token"
            prompt += [*found.outputs[0].token_ids, 300 + turn]
        assert engine.stats.num_prefix_hit_tokens == 0


# ---- the default model


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return Model(resolve("smollm2-135m").path, 49152)


@pytest.mark.model
def test_the_default_model_preempted_at_every_step(smollm2: Model) -> None:
    scenarios.preempted_at_every_step(way="swap", model=smollm2, num_tokens=8, depth=2, num_threads=2)


@pytest.mark.model
def test_the_default_model_in_a_tiny_pool(smollm2: Model) -> None:
    scenarios.tiny_pool(
        INT8, way="auto", model=smollm2, count=14, room=256, swap_space=64 << 20, depth=2, num_threads=2
    )
