"""A grammar changes no answer but its own: rows that obey one are forked, preempted, swapped, planned ahead, and stand
beside others that are guessed. Every answer is compared with the same request run alone, to the last bit.
"""

from __future__ import annotations

import random
import re
from functools import cache
from typing import Any

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.engine.front_end import FrontEnd
from octavo.engine.vocabulary import vocabulary
from octavo.messages import EngineRequest
from octavo.structured import JSON_SCHEMA, LARK, REGEX, Grammar
from octavo.weights.sources import resolve
from support.core_runs import Answers, RealEngine, assert_same, random_requests
from support.memory_runs import Preempting
from support.paths import TINYSTORIES

GRAMMARS = [
    Grammar(REGEX, r"([A-Z][a-z ]{3,20}\. ){2,9}"),
    Grammar(JSON_SCHEMA, '{"type":"array","items":{"type":"string","minLength":3,"maxLength":9},"minItems":2}'),
    Grammar(LARK, 'start: "one" (" two" | " three")* "."'),
    Grammar(REGEX, "[0-9]{2,4}"),
]
"""Each engine compiles them in this order, so that their ids are 1 to 4."""

PATTERNS = {1: re.compile(r"([A-Z][a-z ]{3,20}\. ){2,9}"), 4: re.compile("[0-9]{2,4}")}
COUNT = 60


@cache
def files() -> Any:
    return resolve(str(TINYSTORIES))


@cache
def front_end() -> FrontEnd:
    return FrontEnd.load(EngineConfig.of(model=str(TINYSTORIES)), files())


@cache
def requests() -> list[EngineRequest]:
    """Of every kind, most of them with a grammar, some with tokens that they may not choose."""
    rng = random.Random(11)
    made = []
    for plain in random_requests(rng, COUNT, vocab_size=512, max_prompt=60, max_tokens=40, eos=(2,)):
        grammar_id = rng.choice([None, 1, 2, 3, 4])
        allowed = rng.choice([None, tuple(range(3, 500)), tuple(range(3, 512, 2))]) if grammar_id is None else None
        sampling = msgspec.structs.replace(plain.sampling, allowed_token_ids=allowed, ignore_eos=rng.random() < 0.3)
        bad = tuple(tuple(rng.randrange(260, 512) for _ in range(rng.randint(1, 2))) for _ in range(rng.choice([0, 9])))
        made.append(msgspec.structs.replace(plain, sampling=sampling, grammar_id=grammar_id, bad_token_ids=bad))
    return made


def engine(**settings: Any) -> RealEngine:
    """One that has compiled all grammars."""
    opened = RealEngine.open(TINYSTORIES, max_model_len=160, **settings)
    grammars = opened.executor.inner.grammars
    grammars.use_vocabulary(lambda: vocabulary(front_end().tokenizer, 512, (2,)))
    assert [grammars.compile(grammar) for grammar in GRAMMARS] == [1, 2, 3, 4]
    return opened


@cache
def alone() -> Answers:
    with engine(max_num_seqs=1, enable_prefix_caching=False) as one:
        answers: Answers = {}
        for request in requests():
            answers |= one.drive([request])
        return answers


def test_answers_obey_their_grammars() -> None:
    tokenizer = front_end().tokenizer
    num_whole = 0
    for request in requests():
        pattern = PATTERNS.get(request.grammar_id or 0)
        for (request_id, _), answer in alone().items():
            if request_id != request.request_id or pattern is None or answer.finish_reason != "stop":
                continue
            if answer.stop_reason is None:
                text = b"".join(map(tokenizer.token_bytes, answer.token_ids[:-1])).decode()
                assert pattern.fullmatch(text), text
                num_whole += 1
    assert num_whole > 10


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("preemption", ["recompute", "swap"])
def test_whatever_happens_to_a_row(depth: int, preemption: str) -> None:
    settings = {"depth": depth, "preemption": preemption, "max_num_seqs": 12, "num_blocks": 26, "block_size": 8}
    with engine(**settings, max_num_batched_tokens=48) as many:
        rng = random.Random(3)
        Preempting(many, lambda gang: rng.random() < 0.05)
        found = many.drive(requests(), random.Random(depth))
        stats = many.stats
        assert stats.num_preemptions > 20 and many.seen.largest_batch > 4
        assert (stats.num_swap_preemptions > 0) == (preemption == "swap")
        assert_same(found, alone())


def test_beside_rows_that_are_guessed() -> None:
    drafting = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 1, "adaptive": False}
    with engine(speculative_config=drafting, max_num_seqs=12, num_blocks=300, block_size=8) as many:
        found = many.drive(requests(), random.Random(7))
        assert many.stats.num_accepted_tokens > 0
        assert_same(found, alone())
