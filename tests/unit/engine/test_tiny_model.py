"""A real model behind every host: the same bits, also over the death of the engine."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

import pytest

from octavo import LLM, AsyncEngine, EngineConfig, RequestOutput, SamplingParams
from octavo.engine.outputs import TextDelta
from octavo.engine.process_host import ProcessHost
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


def test_a_killed_engine_gives_the_same_answer(expected: list[RequestOutput], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    slow = {**SETTINGS, "host": "process", "executor": "support.slow_local:SlowLocalExecutor"}

    async def collect(engine: AsyncEngine, i: int) -> list[TextDelta]:
        return [delta async for delta in engine.stream(engine.prepare(PROMPTS[i], params(i)))]

    async def main() -> list[list[TextDelta]]:
        engine = await AsyncEngine.start(EngineConfig.of(**slow))
        host = engine._host
        assert isinstance(host, ProcessHost) and host.pid is not None
        first = host.pid
        tasks = [asyncio.create_task(collect(engine, i)) for i in range(len(PROMPTS))]
        while (await engine.stats()).num_generated_tokens < 20:
            await asyncio.sleep(0.001)
        os.kill(first, signal.SIGKILL)
        results = await asyncio.gather(*tasks)
        assert host.pid != first, "all was over before the kill"
        assert await engine.audit() == []
        await engine.close()
        return results

    for deltas, want in zip(asyncio.run(main()), expected, strict=True):
        for answer in want.outputs:
            mine = [delta for delta in deltas if delta.index == answer.index]
            assert [i for delta in mine for i in delta.token_ids] == answer.token_ids
            assert "".join(delta.text for delta in mine) == answer.text
            assert [entry for delta in mine for entry in delta.logprobs or []] == answer.logprobs
