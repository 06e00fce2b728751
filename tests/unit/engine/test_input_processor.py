"""Requests are checked against the model, by name, before anything runs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest

from octavo.engine.input_processor import InputProcessor
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ContextLengthError, RequestError
from octavo.messages import SamplingParams
from support.infos import tiny_info

INFO = tiny_info(max_model_len=64, num_blocks=32, eos_token_ids=(2, 7))


@pytest.fixture
def inputs(tinystories: Tokenizer) -> InputProcessor:
    return InputProcessor(INFO, tinystories)


def test_a_request_is_settled(inputs: InputProcessor) -> None:
    prepared = inputs.prepare("Once upon", SamplingParams(max_tokens=5), tenant="ann", priority=3)
    request = prepared.request
    assert prepared.prompt_text == "Once upon"
    assert request.token_ids == prepared.prompt_token_ids == inputs._tokenizer.encode("Once upon")
    assert request.num_prompt_tokens == len(request.token_ids)
    assert request.eos_token_ids == (2, 7), "the model's and the tokenizer's, each once"
    assert (request.tenant, request.priority, request.max_tokens) == ("ann", 3, 5)
    assert 0 <= request.seed < 1 << 63 and prepared.params.seed == request.seed == prepared.seed
    assert inputs.prepare([5, 6], SamplingParams()).prompt_text is None


def test_a_priority_that_nobody_looks_at_is_refused(tinystories: Tokenizer) -> None:
    inputs = InputProcessor(INFO, tinystories, takes_priorities=False)
    with pytest.raises(RequestError, match="priority = 3: must be 0"):
        inputs.prepare([1], SamplingParams(), priority=3)
    assert inputs.prepare([1], SamplingParams(), priority=0).request.priority == 0


def test_ids_and_seeds_differ_and_a_given_seed_is_kept(inputs: InputProcessor, tinystories: Tokenizer) -> None:
    several = [inputs.prepare([1], SamplingParams()) for _ in range(50)]
    assert len({p.request_id for p in several}) == len({p.seed for p in several}) == 50
    assert inputs.prepare([1], SamplingParams(seed=-5)).seed == -5
    first, second = (InputProcessor(INFO, tinystories, seed=1).prepare([1], SamplingParams()) for _ in range(2))
    assert first.seed == second.seed


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        ([3, 512], "prompt[1]"),
        ([-1], "prompt[0]"),
        ([1, 2, True], "prompt[2]"),
        ([1, "a"], "prompt[1]"),
        ([1.0], "prompt[0]"),
        ([1 << 70], "prompt[0]"),
        (None, "prompt"),
        (5, "prompt"),
        ({"a": 1}, "prompt"),
        ("a\ud800", "prompt"),
    ],
)
def test_bad_prompts(inputs: InputProcessor, prompt: Any, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        inputs.prepare(prompt, SamplingParams())
    assert caught.value.param == param
    with pytest.raises(RequestError) as caught:
        inputs.prepare(prompt, SamplingParams(), param="prompts[3]")
    assert caught.value.param == param.replace("prompt", "prompts[3]", 1)


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"logprobs": 21}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"stop_token_ids": (512,)}, "stop_token_ids"),
        ({"logit_bias": {5: 1.0, 512: 1.0}}, "logit_bias"),
        ({"logit_bias": {1 << 70: 1.0}}, "logit_bias"),
        ({"stop": ("x",), "detokenize": False}, "stop"),
        ({"stop": ("\udfff",)}, "stop"),
        ({"max_tokens": None, "min_tokens": 10**9}, "min_tokens"),
    ],
)
def test_bad_parameters(inputs: InputProcessor, params: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        inputs.prepare([1], SamplingParams(**params))
    assert caught.value.param == param


def test_limits_on_logprobs_are_the_callers(inputs: InputProcessor) -> None:
    inputs.prepare([1], SamplingParams(logprobs=20, prompt_logprobs=20))
    inputs.prepare([1], SamplingParams(logprobs=512), max_logprobs=1 << 30)
    with pytest.raises(RequestError, match="at most 512"):
        inputs.prepare([1], SamplingParams(logprobs=513), max_logprobs=1 << 30)
    with pytest.raises(RequestError, match="at most 0"):
        inputs.prepare([1], SamplingParams(logprobs=1), max_logprobs=0)


def test_prompt_and_answer_must_fit_the_context(inputs: InputProcessor) -> None:
    assert inputs.prepare([1] * 60, SamplingParams(max_tokens=None)).request.max_tokens == 4
    assert inputs.prepare([1] * 60, SamplingParams(max_tokens=4)).request.max_tokens == 4
    assert inputs.prepare([1] * 64, SamplingParams(max_tokens=0)).request.max_tokens == 0
    for length, max_tokens, param in [
        (60, 5, "max_tokens"),
        (64, 1, "max_tokens"),
        (64, None, "prompt"),
        (65, 0, "prompt"),
        (1000, None, "prompt"),
    ]:
        with pytest.raises(ContextLengthError, match=r"prompt has \d+ tokens.*context holds 64") as caught:
            inputs.prepare([1] * length, SamplingParams(max_tokens=max_tokens))
        assert caught.value.param == param
    with pytest.raises(ContextLengthError, match="prompt has 1 token and max_tokens is 64"):
        inputs.prepare([1], SamplingParams(max_tokens=64))


def test_the_prompts_of_a_request_share_the_ids_of_its_bad_words(inputs: InputProcessor) -> None:
    params = SamplingParams(bad_words=("bad", "word"))
    found = inputs.prepare([1], params).request.bad_token_ids
    assert len(found) >= 2
    assert inputs.prepare([1], params, bad_token_ids=found).request.bad_token_ids is found


def test_a_pool_of_few_blocks_may_hold_a_long_context(tinystories: Tokenizer) -> None:
    """Blocks come back from windows: how long a context the pool holds is settled where it is sized."""
    inputs = InputProcessor(msgspec.structs.replace(INFO, num_blocks=4), tinystories)
    assert inputs.prepare([1] * 20, SamplingParams(max_tokens=None)).request.max_tokens == 44


def test_a_giant_text_is_refused_without_tokenising_it(inputs: InputProcessor) -> None:
    start = time.process_time()
    with pytest.raises(ContextLengthError, match="50000000 characters"):
        inputs.prepare("a" * 50_000_000, SamplingParams())
    assert time.process_time() - start < 1


def test_best_of_is_drawn_and_beams_are_scored(inputs: InputProcessor) -> None:
    def drawn(**params: Any) -> tuple[int, int | None, int | None]:
        prepared = inputs.prepare([1], SamplingParams(**params))
        assert msgspec.structs.replace(prepared.params, seed=None) == SamplingParams(**params), "the caller's own stay"
        sampling = prepared.request.sampling
        return sampling.n, sampling.best_of, sampling.logprobs

    assert drawn(n=2) == (2, None, None)
    assert drawn(n=2, best_of=2) == (2, None, None)
    assert drawn(n=2, best_of=5) == (5, None, 0), "the choice needs logprobs"
    assert drawn(n=2, best_of=5, logprobs=3) == (5, None, 3)
    assert drawn(n=2, beam_width=4) == (2, None, 0)


@pytest.mark.parametrize(
    ("params", "param", "said"),
    [
        ({"beam_width": 9}, "beam_width", "9 sequences at once, but this engine runs at most 8"),
        ({"beam_width": 4, "max_tokens": 0}, "max_tokens", "at least 1"),
    ],
)
def test_a_search_that_cannot_run_is_refused_with_the_reason(
    inputs: InputProcessor, params: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(RequestError, match=said) as caught:
        inputs.prepare([1], SamplingParams(**params))
    assert caught.value.param == param


@pytest.mark.parametrize("value", [1, 0, 1.0, "soon", None])
def test_early_stopping_is_a_switch_or_never(value: Any) -> None:
    """1 equals True, and a search that compares by identity would have taken it for False."""
    with pytest.raises(RequestError, match='true, false or "never"'):
        SamplingParams(beam_width=2, early_stopping=value)


def test_a_search_wider_than_half_the_vocabulary_is_refused(tinystories: Tokenizer) -> None:
    inputs = InputProcessor(tiny_info(vocab_size=512, max_num_seqs=1000), tinystories)
    assert inputs.prepare([1], SamplingParams(beam_width=256)).request.sampling.beam_width == 256
    with pytest.raises(RequestError, match="half the vocabulary"):
        inputs.prepare([1], SamplingParams(beam_width=257))


@pytest.mark.parametrize("salt", ["", "x" * 257, "a\x00b", "a\n", "\x1b", "\x7f", "\x9f", "\ud800", 5])
def test_bad_salts_are_refused_and_not_repeated(inputs: InputProcessor, salt: Any) -> None:
    with pytest.raises(RequestError) as caught:
        inputs.prepare([1], SamplingParams(), cache_salt=salt)
    assert caught.value.param == "cache_salt"
    assert len(str(caught.value)) < 100


def test_a_salt_goes_with_the_request(inputs: InputProcessor) -> None:
    for salt in (None, "x", "é 🔒" * 64):
        assert inputs.prepare([1], SamplingParams(), cache_salt=salt).request.cache_salt == salt
