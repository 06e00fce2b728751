"""LLM: in order, offline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ConfigError, EngineDeadError, RequestError
from support.paths import TESTS, TINYSTORIES
from support.scripted import answer

MakeLLM = Callable[..., LLM]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeLLM]:
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    made: list[LLM] = []

    def make_llm(executor: str = "ScriptedExecutor", **settings: Any) -> LLM:
        base = {"executor": f"support.scripted:{executor}", "num_blocks": 256, "block_size": 8}
        made.append(LLM(str(TINYSTORIES), **{**base, **settings}))
        return made[-1]

    yield make_llm
    for llm in made:
        llm.close()


def text_of(llm: LLM, prompt: list[int], seed: int, count: int) -> str:
    return llm.tokenizer.decode(answer(prompt, seed, count))


@pytest.mark.parametrize("host", ["inline", "thread", "process"])
def test_answers_are_in_the_order_of_the_prompts(make: MakeLLM, host: str) -> None:
    llm = make(host=host)
    params = [SamplingParams(max_tokens=30 - i, seed=i) for i in range(20)]
    outputs = llm.generate([[1, 60 + i] for i in range(20)], params)
    for i, output in enumerate(outputs):
        assert output.prompt_token_ids == [1, 60 + i] and output.finished
        assert output.outputs[0].token_ids == answer([1, 60 + i], i, 30 - i)
        assert output.outputs[0].text == text_of(llm, [1, 60 + i], i, 30 - i)
        assert output.outputs[0].finish_reason == "length"
    assert llm.audit() == []
    assert llm.info.vocab_size == 512


def test_every_form_of_prompt(make: MakeLLM) -> None:
    llm = make()
    once = llm.tokenizer.encode("Once")
    params = SamplingParams(seed=1)
    texts = {
        llm.generate(form, params)[0].outputs[0].text  # type: ignore[arg-type]
        for form in ("Once", ["Once"], once, [once])
    }
    assert len(texts) == 1
    assert llm.generate("Once", params)[0].prompt == "Once"
    assert llm.generate(once, params)[0].prompt is None
    assert llm.generate([], params) == []
    assert len(llm.generate(["a", "b"])) == 2, "default parameters"


def test_stop_strings_n_and_logprobs(make: MakeLLM) -> None:
    llm = make()
    text = text_of(llm, [1, 9], 4, 50)
    output = llm.generate([1, 9], SamplingParams(max_tokens=50, seed=4, stop=text[10:12], logprobs=2, n=2))[0]
    first = output.outputs[0]
    assert first.text == text[: text.find(text[10:12])] and first.finish_reason == "stop"
    assert first.logprobs is not None and len(first.logprobs) == len(first.token_ids)
    assert [o.index for o in output.outputs] == [0, 1]
    assert llm.generate([1, 9], SamplingParams(logprobs=512))[0].outputs[0].logprobs is not None


def test_best_of_returns_the_likeliest_of_what_n_would(make: MakeLLM) -> None:
    llm = make("VariedExecutor")
    params = SamplingParams(n=6, max_tokens=5, seed=4, logprobs=0)
    drawn = llm.generate([1, 9], params)[0].outputs
    means = [(one.cumulative_logprob or 0.0) / len(one.token_ids) for one in drawn]
    order = sorted(range(6), key=lambda i: -means[i])
    assert order != list(range(6)), "another seed is needed"
    best = llm.generate([1, 9], SamplingParams(n=2, best_of=6, max_tokens=5, seed=4))[0].outputs
    assert [one.token_ids for one in best] == [drawn[i].token_ids for i in order[:2]]
    assert [one.text for one in best] == [drawn[i].text for i in order[:2]]
    assert [one.cumulative_logprob for one in best] == [drawn[i].cumulative_logprob for i in order[:2]]
    assert all(one.logprobs is None for one in best) and [one.index for one in best] == [0, 1]
    with pytest.raises(RequestError, match="best_of"):
        llm.stream([1, 9], SamplingParams(best_of=2))


def test_salts_are_one_for_all_or_one_for_each(make: MakeLLM) -> None:
    llm = make()
    for salt in (None, "mine", ["mine", None]):
        assert len(llm.generate([[1, 2], [1, 3]], cache_salt=salt)) == 2  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="cache_salt"):
        llm.generate([[1, 2], [1, 3]], cache_salt="")
    with pytest.raises(RequestError, match="cache_salt has 1 entries"):
        llm.generate([[1, 2], [1, 3]], cache_salt=["a"])


def test_seed_fixes_what_requests_leave_open(make: MakeLLM) -> None:
    texts = [[o.outputs[0].text for o in make(seed=seed).generate([[1, 5], [1, 5]])] for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]
    assert texts[0][0] != texts[0][1], "each request has a seed of its own"


def test_streams_may_be_interleaved_and_left(make: MakeLLM) -> None:
    llm = make("SlowExecutor")
    one = llm.stream([1, 5], SamplingParams(max_tokens=20, seed=1))
    two = llm.stream([1, 6], SamplingParams(max_tokens=200, seed=2))
    text = next(one).text + next(one).text
    next(two)
    two.close()  # type: ignore[attr-defined]
    text += "".join(delta.text for delta in one)
    assert text == text_of(llm, [1, 5], 1, 20)
    assert llm.generate([1, 5], SamplingParams(max_tokens=20, seed=1))[0].outputs[0].text == text
    assert llm.stats().num_running == 0
    assert llm.audit() == []


def test_a_bad_prompt_runs_nothing(make: MakeLLM) -> None:
    llm = make()
    with pytest.raises(RequestError) as caught:
        llm.generate([[1, 2], [1, 9999]])
    assert caught.value.param == "prompts[1][1]"
    for prompts, params in [("", None), (5, None), (["a", "b"], [SamplingParams()])]:
        with pytest.raises(RequestError):
            llm.generate(prompts, params)  # type: ignore[arg-type]
    with pytest.raises(RequestError):
        llm.stream([1, 9999])
    assert llm.stats().num_prompt_tokens == 0
    assert llm.generate([1, 2])[0].finished


def test_chat_needs_a_template_and_takes_one_from_a_file(make: MakeLLM, tmp_path: Path) -> None:
    conversation = [{"role": "user", "content": "Hi</s>"}]
    with pytest.raises(RequestError, match="no chat template"):
        make().chat(conversation)
    template = tmp_path / "chat.jinja"
    template.write_text("{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}")
    llm = make(chat_template=str(template))
    one = llm.chat(conversation, SamplingParams(seed=1))[0]
    both = llm.chat([conversation, conversation], SamplingParams(seed=1))
    assert [o.outputs[0].text for o in both] == [one.outputs[0].text] * 2
    assert one.prompt_token_ids[0] == 1 and one.prompt_token_ids[-1] == 2
    assert one.prompt_token_ids.count(2) == 1, "the user's own marker is text"


@pytest.mark.parametrize("host", ["inline", "thread"])
def test_a_dead_engine_is_told(make: MakeLLM, host: str) -> None:
    llm = make("RaisingExecutor", host=host)
    with pytest.raises(EngineDeadError):
        llm.generate([[1, 2], [1, 3]])
    with pytest.raises(EngineDeadError):
        llm.generate([1, 2])


def test_settings_have_vllms_names_too_and_typos_are_refused(make: MakeLLM) -> None:
    llm = make(gpu_memory_utilization=0.25, max_num_seqs=3)
    assert llm.config.cache.memory_fraction == 0.25 and llm.info.max_num_seqs == 3
    with pytest.raises(ConfigError, match="no such setting"):
        make(blok_size=8)
    with pytest.raises(ConfigError, match="seed"):
        make(seed="x")


def test_progress_and_context_manager(make: MakeLLM, capsys: pytest.CaptureFixture[str]) -> None:
    with make() as llm:
        assert len(llm.generate([[1, 2]] * 3, progress=True)) == 3
    with pytest.raises(EngineDeadError):
        llm.generate([1, 2])


@pytest.mark.parametrize("host", ["inline", "thread", "process"])
def test_blocks_of_an_idle_engine_grow_older(make: MakeLLM, host: str) -> None:
    llm = make(host=host)
    llm.generate([[5] * 20], SamplingParams(max_tokens=4, temperature=0))
    cached = [block for block in llm.kv_blocks() if block.state == "cached"]
    time.sleep(0.05)
    older = [block for block in llm.kv_blocks() if block.state == "cached"]
    assert cached and [b.block_id for b in older] == [b.block_id for b in cached]
    assert all(b.age_s >= a.age_s + 0.05 for a, b in zip(cached, older, strict=True))


def test_a_block_that_nobody_used_is_as_old_as_the_engine(make: MakeLLM) -> None:
    before_s = time.monotonic()
    llm = make()
    llm.generate([[5] * 20], SamplingParams(max_tokens=4, temperature=0))
    unused = llm.kv_blocks()[-1]
    assert unused.state == "free" and 0 < unused.age_s <= time.monotonic() - before_s


@pytest.mark.parametrize("beam_width", [0, -1, 1e308, "1", None, True, 2**63])
def test_a_beam_width_that_is_none_is_named(make: MakeLLM, beam_width: Any) -> None:
    with pytest.raises(RequestError) as refused:
        make().beam_search("Once", beam_width=beam_width)
    assert refused.value.param == "beam_width"
