"""How KV memory is managed changes when a token is computed, never which: pages and every baseline answer alike."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from octavo.core.contiguous import ContiguousKVManager
from octavo.core.kv_policies import KV_POLICIES
from octavo.core.step import StepPlan
from octavo.errors import ConfigError
from octavo.messages import EngineRequest
from support.core_runs import Answers, Seen, assert_same, random_requests, run, run_alone
from support.core_scripts import request
from support.paths import TINYSTORIES

FORM = {"dtype": "bfloat16", "num_threads": 1, "block_size": 16}
CONTIGUOUS = [name for name in KV_POLICIES if name != "paged"]


@cache
def requests() -> list[EngineRequest]:
    """Requests of every kind, several answers and searches among them."""
    rng = random.Random(8)
    plain = random_requests(rng, 30, vocab_size=512, max_prompt=100, max_tokens=30, eos=(2,))
    searches = [
        request(100 + i, token_ids=[rng.randrange(3, 512) for _ in range(20 + i)], max_tokens=12, beam_width=3, n=2)
        for i in range(4)
    ]
    return [*plain[:15], *searches, *plain[15:]]


@cache
def alone() -> Answers:
    return run_alone(TINYSTORIES, requests(), **FORM)


def mixed(name: str, **settings: Any) -> tuple[Answers, Seen]:
    """All of them, arriving at random, in a pool of five contexts."""
    return run(
        TINYSTORIES,
        requests(),
        arrivals=random.Random(2),
        kv_policy=name,
        max_num_seqs=6,
        max_num_batched_tokens=64,
        max_model_len=144,
        num_blocks=1 + 5 * 16,
        **FORM,
        **settings,
    )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("name", KV_POLICIES)
def test_every_policy_answers_as_requests_do_alone(name: str, depth: int) -> None:
    found, seen = mixed(name, depth=depth)
    assert_same(found, alone())
    assert seen.stats is not None
    assert seen.largest_batch > 2 and seen.num_chunked > 0 and seen.num_copies > 0
    if name != "paged":
        assert seen.stats.num_preemptions == seen.num_hits == seen.num_swapped_out == 0
        # Each beam that forked copied all of its parent's blocks: two or three, for contexts of 20 to 35 tokens.
        assert seen.num_copies >= 2 * seen.num_forks > 0


def test_a_beam_without_its_parent_s_blocks_answers_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison notices a copy that is not made."""
    end_plan = ContiguousKVManager.end_plan

    def forget(kv: ContiguousKVManager, plan: StepPlan) -> None:
        end_plan(kv, plan)
        plan.copies.clear()

    monkeypatch.setattr(ContiguousKVManager, "end_plan", forget)
    with pytest.raises(AssertionError, match="differs from running alone"):
        assert_same(mixed("orca-oracle")[0], alone())


@pytest.mark.parametrize("name", CONTIGUOUS)
@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"enable_prefix_caching": True}, "enable_prefix_caching"),
        ({"swap_space_bytes": 1 << 20}, "swap_space_bytes"),
        ({"speculative_config": '{"method": "ngram"}'}, "speculative_config"),
        ({"num_blocks": 8, "max_model_len": 100}, "num_blocks"),
    ],
)
def test_an_engine_says_what_contradicts_its_policy(name: str, settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        run(TINYSTORIES, [], **{"kv_policy": name, **FORM, **settings})
    assert caught.value.field == field
