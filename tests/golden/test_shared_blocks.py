"""What sharing saves on the default model, read from the accounts after every step."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from octavo import LLM, SamplingParams
from octavo.engine.host import InlineHost
from octavo.messages import EngineStats

pytestmark = pytest.mark.model

BLOCK_SIZE = 16
Peak = Callable[[list[int], SamplingParams], EngineStats]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("smollm2-135m", block_size=BLOCK_SIZE, num_blocks=600, max_num_seqs=16) as llm:
        yield llm


@pytest.fixture
def peak(llm: LLM) -> Peak:
    """Runs one request on an empty cache; the state at the step after which most blocks were held."""

    def run(prompt: list[int], params: SamplingParams) -> EngineStats:
        llm.reset_prefix_cache()
        assert isinstance(llm._host, InlineHost) and llm._host._loop is not None
        loop = llm._host._loop
        loop.add(llm._input.prepare(prompt, params).request)
        most, answers = loop.core.stats(), 0
        while loop.core.has_work:
            answers += sum(delta.finish_reason is not None for delta in loop.step().deltas)
            most = max(most, loop.core.stats(), key=lambda stats: stats.num_held_blocks)
        assert answers == params.n and llm.kv_stats().num_held_blocks == 0 and llm.audit() == []
        return most

    return run


def words(llm: LLM, count: int) -> list[int]:
    """A prompt of so many tokens."""
    return (llm.tokenizer.encode("The quick brown fox jumps over the lazy dog, and then it rests. ") * count)[:count]


def test_sixteen_answers_hold_one_prompt_and_sixteen_tails(llm: LLM, peak: Peak) -> None:
    prompt, num_new = words(llm, 1000), 20
    params = SamplingParams(n=16, max_tokens=num_new, ignore_eos=True, seed=1)
    stats = peak(prompt, params)
    whole = len(prompt) // BLOCK_SIZE
    # The last token is never computed, so its slot is not needed.
    tail = -(-(len(prompt) % BLOCK_SIZE + num_new - 1) // BLOCK_SIZE)
    assert stats.num_held_blocks == whole + 16 * tail


def test_four_beams_hold_little_more_than_one_answer(llm: LLM, peak: Peak) -> None:
    prompt = words(llm, 512)
    greedy = peak(prompt, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    beams = peak(prompt, SamplingParams(beam_width=4, n=4, max_tokens=64, ignore_eos=True))
    assert beams.num_held_blocks <= 1.4 * greedy.num_held_blocks, (beams.num_held_blocks, greedy.num_held_blocks)
