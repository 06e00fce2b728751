"""What sharing promises besides right answers: found to the token, computed once, copied no more than a block."""

from __future__ import annotations

import random
from typing import Any

import pytest

from octavo.messages import PUBLIC_TENANT
from property import tags
from property.tags import VOCAB
from property.world import World


@pytest.fixture(autouse=True)
def no_failing_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests count: no answer may end early because its scores are no numbers."""
    monkeypatch.setattr(tags, "FAILS_ONE_IN", 1 << 40)
    monkeypatch.setattr(tags, "BEAM_FAILS_ONE_IN", 1 << 40)


def roomy(**shape: Any) -> World:
    shape = {"capacity": 4000, "max_num_seqs": 32, "budget": 64, "max_model_len": 1200, **shape}
    return World(**shape)


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(2, VOCAB), k=length)


def ask(world: World, prompt: list[int], num_tokens: int = 4, **wishes: Any) -> tuple[int, list[int]]:
    """Run one request to its end. Returns its cached tokens and its answer."""
    assert world.submit(prompt, num_tokens, ignore_eos=True, **wishes)
    answer = world.answers[max(world.answers)]
    world.run_until_idle()
    assert answer.end is not None
    return world.executor.first_hits[answer.request.seed, 0], answer.token_ids


def num_common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("num_groups", [1, 2])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_a_hit_reaches_to_the_token(block_size: int, num_groups: int) -> None:
    """As far as the longest text computed before, generated tokens included, but for the last token of the prompt."""
    world = roomy(block_size=block_size, num_groups=num_groups)
    draw = random.Random(block_size)
    computed: list[list[int]] = []
    num_midway = 0
    for turn in range(12):  # an index entry remembers 8 ways to go on
        prompt = text(turn, draw.randint(1, 40))
        if computed and turn % 4:
            known = draw.choice(computed)
            prompt = known[: draw.randint(1, len(known))] + prompt[: draw.randint(1, 6)]
        num_cached, answer = ask(world, prompt)
        most = max((num_common(prompt, known) for known in computed), default=0)
        assert num_cached == min(most, len(prompt) - 1)
        num_midway += num_cached % block_size != 0
        computed.append((prompt + answer)[:-1])  # the last token is never computed
    assert num_midway > 3 or block_size == 1
    world.finish()


@pytest.mark.parametrize("wishes", [{"tenant": "blue"}, {"salt": "pepper"}, {"adapter": "lora"}])
def test_nobody_hits_what_is_not_theirs(wishes: dict[str, str]) -> None:
    world = roomy()
    prompt = text(1, 60)
    ask(world, prompt, tenant="red")
    assert ask(world, prompt, **wishes)[0] == 0
    assert ask(world, prompt, **wishes)[0] == 59
    assert ask(world, prompt, tenant="red")[0] == 59


def test_identical_prompts_in_flight_are_computed_once() -> None:
    world = roomy(budget=128, block_size=4, num_groups=1)
    for _ in range(8):
        world.submit(text(2, 100), 4, ignore_eos=True)
    world.run_until_idle()
    events = world.events()
    num_answer_tokens = 8 * 3
    assert world.executor.num_computed_tokens <= 100 + 7 * 4 + num_answer_tokens
    assert events["num_shared_waits"] == 7 and events["num_takeovers"] == 0


def test_a_waiter_takes_over_when_the_first_dies() -> None:
    world = roomy(budget=128, block_size=4, num_groups=1, depth=2)
    for _ in range(4):
        world.submit(text(3, 100), 4, ignore_eos=True)
    world.step(count=1, late=True)  # planned, not applied
    assert world.events()["num_shared_waits"] == 3
    world.core.abort(1)
    del world.answers[1, 0]
    world.run_until_idle()
    assert world.events()["num_takeovers"] == 1
    assert all(answer.end is not None for answer in world.answers.values())


@pytest.mark.parametrize("caching", [True, False])
def test_sixteen_answers_hold_one_prompt_and_sixteen_tails(caching: bool) -> None:
    world = roomy(block_size=16, budget=512, num_groups=1, caching=caching)
    world.submit(text(4, 1000), 6, n=16, ignore_eos=True)
    held = 0
    while world.core.has_work:
        world.advance()
        world.check()
        held = max(held, world.core.kv_stats().num_held_blocks)
    assert held == 1000 // 16 + 16
    assert world.events()["twins_sampled"] == 15
    assert world.events()["num_copy_faults"] == 15, "the last one writes in place"


def test_a_beam_search_copies_only_partial_blocks() -> None:
    def most_held(**wishes: Any) -> int:
        world = roomy(block_size=16, budget=512, num_groups=1)
        world.submit(text(5, 512), 64, ignore_eos=True, **wishes)
        most = 0
        while world.core.has_work:
            forks, copies = world.executor.events.forks, world.executor.events.copies
            world.advance()
            world.check()
            forks, copies = world.executor.events.forks - forks, world.executor.events.copies - copies
            assert copies <= 4, "more than a block for each beam is copied"
            most = max(most, world.core.kv_stats().num_held_blocks)
        if wishes:
            assert world.executor.events.forks > 20
        return most

    assert most_held(beam_width=4) <= 1.4 * most_held()


@pytest.mark.parametrize("num_groups", [1, 2])
def test_a_published_text_is_everybodys_until_it_is_withdrawn(num_groups: int) -> None:
    world = roomy(block_size=8, num_groups=num_groups, window=12)
    prompt = text(6, 60)
    assert world.submit(prompt, 0, tenant=PUBLIC_TENANT, publish="manual")
    world.run_until_idle()
    (prefix,) = world.core.published()
    assert (prefix.name, prefix.num_tokens) == ("manual", 56)
    for tenant in ("red", "blue"):
        assert ask(world, [*prompt[:56], 2, 3, 4], tenant=tenant)[0] == 56
    world.core.reset_prefix_cache()
    assert ask(world, [*prompt[:56], 5, 6, 7], tenant="red")[0] == 56, "a reset took what is published"
    assert world.core.kv_stats().num_published_blocks > 0
    assert world.core.withdraw("manual") and not world.core.withdraw("manual")
    world.core.reset_prefix_cache("red")
    assert ask(world, [*prompt[:56], 8, 9, 10], tenant="green")[0] == 0, "it was withdrawn"
    world.finish()


def test_a_published_text_stays_when_memory_is_short() -> None:
    world = World(capacity=48, block_size=4, num_groups=1)
    prompt = text(7, 16)
    world.submit(prompt, 0, tenant=PUBLIC_TENANT, publish="rules")
    world.run_until_idle()
    for turn in range(6):
        ask(world, text(100 + turn, 25), tenant="red")
    assert world.events()["num_evictions"] > 0
    assert ask(world, [*prompt, 2], tenant="blue")[0] == 16
    world.finish()


def test_a_preempted_reader_of_a_published_text_fits_again() -> None:
    """It needs the pool but for the published blocks. Back from the host with copies of those it would not fit."""
    world = World(block_size=1, num_groups=1, capacity=52, budget=4, host_blocks=60, preemption="swap")
    rules = text(10, 13)
    world.submit(rules, 0, tenant=PUBLIC_TENANT, publish="rules")
    world.run_until_idle()
    world.submit(text(11, 8), 24, ignore_eos=True)
    world.step(count=2, late=False)
    world.submit(rules + text(12, 29), 3, ignore_eos=True)
    reader = world.answers[3, 0]
    world.run_until_idle()
    assert world.events()["num_preemptions"] > 0
    assert reader.end is not None and reader.end.finish_reason == "length"
    world.finish()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_tenants_reset_leaves_the_others_alone(depth: int) -> None:
    world = roomy(depth=depth, erases=True)
    for tenant in ("red", "blue"):
        ask(world, text(8, 40), tenant=tenant)
    assert world.core.reset_prefix_cache("red") > 0
    world.run_until_idle()
    accounts = {account.tenant: account for account in world.core.kv_stats().accounts}
    assert accounts["red"].num_cached_blocks == 0 and accounts["blue"].num_cached_blocks > 0
    assert ask(world, text(8, 40), tenant="red")[0] == 0
    assert ask(world, text(8, 40), tenant="blue")[0] == 39


@pytest.mark.parametrize("depth", [1, 2])
def test_an_idle_engine_erases(depth: int) -> None:
    """Nobody arrives any more, and still everything freed is zeroed within a few steps."""
    world = roomy(depth=depth, erases=True, caching=False)
    world.submit(text(9, 50), 8, ignore_eos=True)
    world.step(count=4, late=False)
    for key in list(world.answers):
        world.core.abort(key[0])
    world.answers.clear()
    assert world.executor.remains()
    for _ in range(4):
        world.advance()
    assert not world.executor.remains() and not world.core.has_work
    assert world.executor.events.idle_erases > 0
