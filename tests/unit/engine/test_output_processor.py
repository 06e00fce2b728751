"""Tokens become text; stop strings, finish reasons, logprobs and counts are right however the tokens come."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.engine.input_processor import InputProcessor
from octavo.engine.output_processor import OutputProcessor
from octavo.engine.outputs import TextDelta
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import ContextLengthError, OctavoError, RequestError
from octavo.messages import SamplingParams, TokenDelta, TokenLogprobs
from support.infos import tiny_info


def make(tokenizer: Tokenizer, prompt: str = "Once", **params: Any) -> OutputProcessor:
    inputs = InputProcessor(tiny_info(), tokenizer)
    return OutputProcessor(inputs.prepare(prompt, SamplingParams(**{"max_tokens": 100, **params})), tokenizer)


def delta(*token_ids: int, index: int = 0, finish: str | None = None, **fields: Any) -> TokenDelta:
    return TokenDelta(1, index, list(token_ids), finish, **fields)


def run(processor: OutputProcessor, deltas: list[TokenDelta]) -> tuple[str, list[int], str | None, Any]:
    """Everything said about index 0, joined."""
    said = [text for d in deltas if (text := processor.process(d)) is not None]
    return (
        "".join(text.text for text in said),
        [token_id for text in said for token_id in text.token_ids],
        said[-1].finish_reason,
        said[-1].stop_reason,
    )


def spelled(tokenizer: Tokenizer, text: str) -> list[int]:
    """Ids that spell `text` byte by byte, so that every character may be cut."""
    return [3 + byte for byte in text.encode()]


def test_stop_strings_over_tokens_and_inside_a_token(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "ABCDE")
    assert run(make(tinystories, stop="CDE"), [delta(i) for i in ids]) == ("AB", ids, "stop", "CDE")
    once = tinystories.encode(" Once", add_special_tokens=False)
    assert run(make(tinystories, stop="nc"), [delta(*once)])[0].strip() == "O"


def test_nothing_is_lost_before_a_stop_string_in_the_same_token(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "?\n")
    assert run(make(tinystories, stop="\n"), [delta(*ids)]) == ("?", ids, "stop", "\n")


def test_tokens_after_a_stop_string_are_dropped_and_not_counted(tinystories: Tokenizer) -> None:
    processor = make(tinystories, stop="b")
    ids = spelled(tinystories, "abc")
    logprobs = [TokenLogprobs(i, -1.0, 1, []) for i in ids]
    said = processor.process(delta(*ids, logprobs=logprobs))
    assert said is not None and said.token_ids == ids[:2] and said.logprobs == logprobs[:2] and said.text == "a"
    assert processor.finished
    assert processor.process(delta(5)) is None, "what was under way when the answer was aborted"


def test_end_by_token_is_no_text_but_counts(tinystories: Tokenizer) -> None:
    a, b = spelled(tinystories, "ab")
    assert run(make(tinystories), [delta(a), delta(b, finish="stop", stop_reason=b)]) == ("a", [a, b], "stop", b)
    kept = make(tinystories, stop_token_ids=[b], include_stop_str_in_output=True)
    assert run(kept, [delta(a), delta(b, finish="stop", stop_reason=b)]) == ("ab", [a, b], "stop", b)
    assert run(make(tinystories), [delta(a), delta(2, finish="stop")]) == ("a", [a, 2], "stop", None)


def test_held_text_comes_out_at_every_kind_of_end(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "xEN")
    for last in (delta(*ids, finish="length"), delta(*ids, 2, finish="stop")):
        assert run(make(tinystories, stop="END"), [last])[0] == "xEN"
    first = [delta(i) for i in ids]
    assert run(make(tinystories, stop="END"), [*first, delta(finish="abort")])[::2] == ("xEN", "abort")


def test_a_cut_character_shows_at_the_end_as_a_whole_decode_shows_it(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "a世")[:-1]
    assert run(make(tinystories), [delta(i) for i in ids] + [delta(finish="length")])[0] == "a\ufffd"


def test_a_stop_string_on_the_last_token_wins_over_length(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "ab")
    assert run(make(tinystories, stop="b"), [delta(*ids, finish="length")])[2:] == ("stop", "b")


def test_stop_strings_count_only_after_min_tokens(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "abab")
    assert run(make(tinystories, stop="b", min_tokens=2), [delta(i) for i in ids])[0] == "aba"


def test_first_words_space_belongs_to_the_answer_only_after_a_prompt(tinystories: Tokenizer) -> None:
    there = tinystories.encode("there", add_special_tokens=False)
    assert run(make(tinystories, "Once"), [delta(*there)])[0] == " there"
    inputs = InputProcessor(tiny_info(), tinystories)
    bare = OutputProcessor(inputs.prepare([1], SamplingParams(max_tokens=5)), tinystories)
    assert run(bare, [delta(*there)])[0] == "there"


def test_special_tokens_and_detokenize(tinystories: Tokenizer) -> None:
    (a,) = spelled(tinystories, "a")
    assert run(make(tinystories), [delta(a, 1, a)])[0] == "aa"
    assert run(make(tinystories, skip_special_tokens=False), [delta(a, 1, a)])[0] == "a<s>a"
    assert run(make(tinystories, detokenize=False), [delta(a), delta(a, finish="length")])[:2] == ("", [a, a])


def test_prompt_logprobs_come_whole_and_first(tinystories: Tokenizer) -> None:
    processor = make(tinystories, prompt_logprobs=0)
    entries = [TokenLogprobs(i, -1.0, 1, []) for i in range(3)]
    assert processor.process(delta(prompt_logprobs=[None, entries[0]])) is None
    said = processor.process(delta(5, prompt_logprobs=entries[1:]))
    assert said is not None and said.prompt_logprobs == [None, *entries]
    later = processor.process(delta(6))
    assert later is not None and later.prompt_logprobs is None


def test_max_tokens_zero_gives_the_prompt_only(tinystories: Tokenizer) -> None:
    processor = make(tinystories, max_tokens=0, prompt_logprobs=0)
    said = processor.process(delta(9, finish="length", prompt_logprobs=[None], logprobs=[]))
    assert said is not None
    assert (said.text, said.token_ids, said.finish_reason, said.prompt_logprobs) == ("", [], "length", [None])


def test_several_answers_are_kept_apart(tinystories: Tokenizer) -> None:
    a, b = spelled(tinystories, "ab")
    processor = make(tinystories, n=2, stop="b")
    first = processor.process(delta(b, index=1))
    assert first is not None and (first.index, first.finish_reason) == (1, "stop")
    assert not processor.finished
    second = processor.process(delta(a, index=0, finish="length"))
    assert second is not None and second.text == "a" and processor.finished


def test_a_failed_sequence_raises_its_reason(tinystories: Tokenizer) -> None:
    with pytest.raises(OctavoError, match="not a number"):
        make(tinystories).process(delta(finish="error", error="a logit was not a number"))


@given(st.text(alphabet="ab世\n", max_size=12), st.sampled_from(["b世", "ab", "世", "\n\n"]), st.data())
def test_however_tokens_are_grouped_the_answer_is_the_same(
    tinystories: Tokenizer, text: str, stop: str, data: st.DataObject
) -> None:
    ids = [*spelled(tinystories, text), 2]
    one_by_one = run(make(tinystories, stop=stop), [*map(delta, ids[:-1]), delta(2, finish="stop")])
    groups: list[TokenDelta] = []
    left = ids
    while left:
        size = data.draw(st.integers(1, len(left)))
        groups.append(delta(*left[:size], finish="stop" if size == len(left) else None))
        left = left[size:]
    assert run(make(tinystories, stop=stop), groups) == one_by_one
    before = text.find(stop)
    assert one_by_one[0] == (text if before < 0 else text[:before])


def test_deltas_are_text_deltas(tinystories: Tokenizer) -> None:
    said = make(tinystories).process(delta(5, num_cached_tokens=4))
    assert isinstance(said, TextDelta) and said.num_cached_tokens == 4 and said.logprobs is None


def test_a_beam_comes_whole_with_its_score(tinystories: Tokenizer) -> None:
    ids = spelled(tinystories, "ab")
    logprobs = [TokenLogprobs(i, -0.5, 1, []) for i in ids]
    for wanted in (None, 0):
        processor = make(tinystories, beam_width=4, n=2, logprobs=wanted)
        first = processor.process(delta(*ids, finish="length", logprobs=list(logprobs), score=-0.5))
        assert first is not None and (first.text, first.score, first.cumulative_logprob) == ("ab", -0.5, -1.0)
        assert (first.logprobs is None) == (wanted is None)
        assert not processor.finished
        second = processor.process(delta(ids[0], 2, index=1, finish="stop", logprobs=list(logprobs), score=-0.7))
        assert second is not None and (second.text, second.index) == ("a", 1)
        assert processor.finished


def test_only_the_first_answer_says_what_was_cached(tinystories: Tokenizer) -> None:
    processor = make(tinystories, n=2)
    said = [processor.process(delta(100, index=i, num_cached_tokens=16)) for i in (1, 0)]
    assert [text.num_cached_tokens for text in said if text is not None] == [0, 16]


@pytest.mark.parametrize(
    ("refusal", "kind"), [("length", ContextLengthError), ("request", RequestError), (None, OctavoError)]
)
def test_a_refusal_of_the_core_is_the_callers_fault(
    tinystories: Tokenizer, refusal: str | None, kind: type[OctavoError]
) -> None:
    with pytest.raises(OctavoError, match="too much") as caught:
        make(tinystories).process(delta(finish="error", error="too much", refusal=refusal))
    assert type(caught.value) is kind
