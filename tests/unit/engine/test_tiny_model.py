"""A real model behind every host: the same bits, also over the death of the engine."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncEngine, EngineConfig, RequestOutput, SamplingParams
from octavo.engine.process_host import ProcessHost
from octavo.errors import ModelFileError, RequestError
from support.paths import TESTS, TINYSTORIES

SETTINGS: dict[str, Any] = {
    "model": str(TINYSTORIES),
    "dtype": "float32",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "num_threads": 1,
}
PROMPTS = ["Once upon a time", "Lily", "The big dog ran to the park. " * 5, "<s>One day", "x"]


def params(i: int) -> SamplingParams:
    return SamplingParams(max_tokens=40 + i, temperature=0.8 * (i % 3), seed=i, n=1 + i % 2, logprobs=2, top_k=50)


def run(**settings: Any) -> list[RequestOutput]:
    with LLM(**{**SETTINGS, **settings}) as llm:
        outputs = llm.generate(PROMPTS, [params(i) for i in range(len(PROMPTS))])
        assert llm.audit() == []
    return outputs


@pytest.fixture(scope="module")
def expected() -> list[RequestOutput]:
    return run()


def test_it_tells_stories() -> None:
    with LLM(**SETTINGS) as llm:
        output = llm.generate("Once upon a time", SamplingParams(max_tokens=40, temperature=0))[0]
    assert output.outputs[0].text.startswith(", there was a little girl named Lily. She loved to play")
    assert output.prompt_token_ids[0] == 1, "a text gets its begin-of-sequence token"


def test_scoring_a_prompt_generates_nothing() -> None:
    with LLM(**SETTINGS) as llm:
        prompt = llm.tokenizer.encode("Once upon a time, there was a little girl. " * 3)
        output = llm.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs=1))[0]
        whole = llm.generate(prompt, SamplingParams(max_tokens=3, prompt_logprobs=1, n=2))[0]
    assert output.outputs[0].token_ids == [] and output.outputs[0].text == ""
    assert output.outputs[0].finish_reason == "length"
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert [entry and entry.token_id for entry in output.prompt_logprobs] == [None, *prompt[1:]]
    assert whole.prompt_logprobs == output.prompt_logprobs


@pytest.mark.parametrize("settings", [{"host": "thread"}, {"host": "process"}, {"depth": 2}, {"block_size": 4}])
def test_hosts_and_settings_change_nothing(expected: list[RequestOutput], settings: dict[str, Any]) -> None:
    for got, want in zip(run(**settings), expected, strict=True):
        assert got.outputs == want.outputs


KILLED = {
    "n": SamplingParams(max_tokens=40, n=3, seed=5, logprobs=1, temperature=0.9),
    "best_of": SamplingParams(max_tokens=40, n=2, best_of=4, seed=6, temperature=0.9),
    "beams": SamplingParams(max_tokens=40, n=2, beam_width=4),
}
"""Requests whose answers hang together: each goes on, is ranked, or is searched for again after a death."""


def test_a_killed_engine_gives_the_same_answer(expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    slow = {**SETTINGS, "host": "process", "executor": "support.slow_local:SlowLocalExecutor"}
    with LLM(**SETTINGS) as llm:
        wanted = [*expected, *llm.generate(["The cat"] * 3, list(KILLED.values()))]
    asked = [*((prompt, params(i)) for i, prompt in enumerate(PROMPTS)), *(("The cat", p) for p in KILLED.values())]

    async def collect(engine: AsyncEngine, prompt: str, given: SamplingParams) -> RequestOutput:
        async for output in engine.generate(prompt, given):
            last = output
        return last

    async def main() -> list[RequestOutput]:
        engine = await AsyncEngine.start(EngineConfig.of(**slow))
        host = engine._host
        assert isinstance(host, ProcessHost) and host.pid is not None
        first = host.pid
        tasks = [asyncio.create_task(collect(engine, *one)) for one in asked]
        for num_generated in (20, 200):  # once all are young, once the last three are under way
            killed = host.pid
            while (await engine.stats()).num_generated_tokens < num_generated:
                await asyncio.sleep(0.001)
            os.kill(host.pid, signal.SIGKILL)
            while host.pid in (killed, None):
                await asyncio.sleep(0.001)
        results = await asyncio.gather(*tasks)
        assert host.pid != first, "all was over before the kill"
        assert await engine.audit() == []
        await engine.close()
        return results

    for got, want in zip(asyncio.run(main()), wanted, strict=True):
        assert got.outputs == want.outputs
        assert got.finished and got.num_cached_tokens < len(got.prompt_token_ids)


STORY = "Once upon a time, there was a little girl named Lily. She liked to play in the garden with her red ball. "


@pytest.mark.parametrize("host", ["inline", "thread", "process"])
def test_memory_is_shared_and_accounted_for(host: str) -> None:
    with LLM(**SETTINGS, host=host, block_size=8, num_blocks=200) as llm:
        assert llm.kv_stats().num_free_blocks == 199
        first = llm.generate(STORY, SamplingParams(max_tokens=10, seed=1, n=4))[0]
        again = llm.generate(STORY, SamplingParams(max_tokens=10, seed=1, n=4))[0]
        assert again.outputs == first.outputs
        assert first.num_cached_tokens == 0 and again.num_cached_tokens == len(first.prompt_token_ids) - 1
        assert llm.generate(STORY, SamplingParams(max_tokens=2), cache_salt="mine")[0].num_cached_tokens == 0
        stats = llm.kv_stats()
        assert stats.num_cached_blocks > 0 == stats.num_held_blocks
        assert sum(account.num_copy_faults for account in stats.accounts) > 0
        blocks = llm.kv_blocks()
        assert len(blocks) == 199
        assert sum(block.state == "cached" for block in blocks) == stats.num_cached_blocks
        assert llm.reset_prefix_cache() == stats.num_cached_blocks
        assert llm.kv_stats().num_free_blocks == 199 and llm.audit(repair=True) == []
        for first_block, count in ((-1, 5), (1, 0), (1.5, 2)):
            with pytest.raises(RequestError):
                llm.kv_blocks(first_block, count)  # type: ignore[arg-type]


@pytest.mark.parametrize("host", ["inline", "process"])
def test_prefixes_are_published_and_withdrawn(host: str) -> None:
    with LLM(**SETTINGS, host=host, block_size=8, num_blocks=200) as llm:
        prefix = llm.publish("story", STORY)
        assert prefix.name == "story" and prefix.num_tokens == 8 * prefix.num_blocks > 16
        assert llm.published() == [prefix]
        llm.reset_prefix_cache()
        found = llm.generate(STORY + "One day", SamplingParams(max_tokens=2), cache_salt="mine")[0]
        assert found.num_cached_tokens >= prefix.num_tokens
        with pytest.raises(RequestError, match="withdraw it first"):
            llm.publish("story", STORY)
        with pytest.raises(RequestError, match="fill no block"):
            llm.publish("short", "Lily")
        assert llm.withdraw("story") and not llm.withdraw("story") and llm.published() == []
        assert llm.kv_stats().num_held_blocks == 0
        assert llm.publish("story", STORY) == prefix


def test_nothing_is_published_without_a_cache() -> None:
    with LLM(**SETTINGS, enable_prefix_caching=False) as llm, pytest.raises(RequestError, match="caching is off"):
        llm.publish("story", STORY * 3)


def test_beams_from_python() -> None:
    with LLM(**SETTINGS) as llm:
        found = llm.beam_search([STORY, "Lily"], beam_width=4, max_tokens=12)
        for output in found:
            scores = [answer.score for answer in output.outputs]
            assert len(scores) == 4 and scores == sorted(scores, reverse=True)  # type: ignore[type-var]
            for answer in output.outputs:
                assert answer.score == pytest.approx((answer.cumulative_logprob or 0.0) / len(answer.token_ids))
                assert answer.logprobs is None and answer.text
        params = SamplingParams(beam_width=4, n=2, max_tokens=12, logprobs=2)
        best = llm.generate(STORY, params)[0]
        assert [a.token_ids for a in best.outputs] == [a.token_ids for a in found[0].outputs[:2]]
        assert all(len(e.top) == 2 for answer in best.outputs for e in answer.logprobs or [])
        assert all(len(answer.logprobs or []) == len(answer.token_ids) for answer in best.outputs)
        deltas = list(llm.stream(STORY, params))
        assert [delta.index for delta in deltas] == [0, 1] and deltas[0].text == best.outputs[0].text
        short = llm.beam_search(STORY, beam_width=2, max_tokens=6, length_penalty=0.0, early_stopping=True)[0]
        assert short.outputs[0].score == pytest.approx(short.outputs[0].cumulative_logprob)
        with pytest.raises(RequestError, match="9 sequences at once"):
            llm.beam_search("Lily", beam_width=9)
        assert llm.kv_stats().num_held_blocks == 0 and llm.audit() == []


def test_default_sampling_is_what_the_makers_of_the_model_say(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    shutil.copytree(TINYSTORIES, folder)
    with LLM(**{**SETTINGS, "model": str(folder)}) as llm:
        assert llm.get_default_sampling_params() == SamplingParams()
    wish = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 9, "eos_token_id": 2}
    (folder / "generation_config.json").write_text(json.dumps(wish))
    with LLM(**{**SETTINGS, "model": str(folder)}) as llm:
        assert llm.get_default_sampling_params() == SamplingParams(temperature=0.6, top_k=20, max_tokens=9)
    (folder / "generation_config.json").write_text('{"top_p": 7}')
    with LLM(**{**SETTINGS, "model": str(folder)}) as llm, pytest.raises(ModelFileError, match=r"top_p.*is 7"):
        llm.get_default_sampling_params()
