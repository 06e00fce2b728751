"""Histories of a real engine in which KV is shared, copied, swapped, evicted, lost and computed again.

Each function lives one, compares every answer with the same request run alone, bit for bit, and asserts that what it
is named for really happened. Expected answers are computed once per model and format.
"""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from octavo.messages import PUBLIC_TENANT, EngineRequest, SamplingParams
from support.core_runs import Answer, Answers, OnStep, RealEngine, Seen, assert_same, random_requests, run_alone
from support.memory_runs import FailingTier, Preempting, at_every_step, once_at
from support.paths import TINYSTORIES

EOS = (2,)


class Model(NamedTuple):
    path: Path
    vocab_size: int
    num_groups: int = 2
    """KV groups that its pools have room for."""


STORIES = Model(TINYSTORIES, 512, num_groups=1)


class Format(NamedTuple):
    """What decides the bits of an answer."""

    dtype: str = "bfloat16"
    kv_cache_dtype: str = "auto"
    quantization: str = "auto"


PLAIN, INT8 = Format(), Format(kv_cache_dtype="int8")


def request(
    request_id: int,
    prompt: list[int],
    *,
    tenant: str = "a",
    salt: str | None = None,
    publish: str | None = None,
    **sampling: Any,
) -> EngineRequest:
    params = SamplingParams(**sampling)
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling=params,
        seed=1000 + request_id,
        max_tokens=params.max_tokens or 0,
        eos_token_ids=EOS,
        tenant=tenant,
        cache_salt=salt,
        publish=publish,
    )


def some_tokens(rng: random.Random, count: int, vocab_size: int) -> list[int]:
    return [rng.randrange(3, vocab_size) for _ in range(count)]


def open_engine(model: Model, form: Format, *, watch: OnStep | None = None, **settings: Any) -> RealEngine:
    defaults = {"num_threads": 1, "max_model_len": 240, "max_num_batched_tokens": 256}
    engine = RealEngine.open(model.path, **form._asdict(), **{**defaults, **settings})
    engine.watch = watch
    return engine


def alone(model: Model, form: Format, requests: list[EngineRequest]) -> Answers:
    return run_alone(model.path, requests, num_threads=1, **form._asdict())


# ---- shared prefixes, chat turns


class Talk(NamedTuple):
    """Requests that share beginnings, and follow-ups whose prompts hold what was answered to the first ones."""

    first: list[EngineRequest]
    second: list[EngineRequest]
    expected: Answers


@cache
def talk(model: Model, form: Format, count: int) -> Talk:
    rng = random.Random(17)
    stems = [some_tokens(rng, length, model.vocab_size) for length in (20, 45, 90, 110)]
    plain = random_requests(rng, count, vocab_size=model.vocab_size, max_prompt=40, max_tokens=24, eos=EOS)
    first = [_after(r, _some_beginning(rng, stems) + r.token_ids, 0) for r in plain]
    answers = alone(model, form, first)
    second = [
        _after(r, r.token_ids + answers[r.request_id, 0].token_ids + some_tokens(rng, 5, model.vocab_size), 10_000)
        for r in first
    ]
    return Talk(first, second, answers | alone(model, form, second))


def _some_beginning(rng: random.Random, stems: list[list[int]]) -> list[int]:
    stem = rng.choice(stems)
    return stem[: rng.choice([len(stem), rng.randint(1, len(stem))])]


def _after(plain: EngineRequest, prompt: list[int], shift: int) -> EngineRequest:
    number = plain.request_id + shift
    return msgspec.structs.replace(plain, request_id=number, token_ids=prompt, num_prompt_tokens=len(prompt))


def shared_prefixes(
    form: Format = PLAIN, *, model: Model = STORIES, count: int = 80, small: bool = False, **settings: Any
) -> Seen:
    """Prompts that leave each other midway, then a second turn for each; in a small pool what was kept makes room."""
    first, second, expected = talk(model, form, count)
    size = settings.setdefault("block_size", 16)
    num_blocks = (300 if small else 12_000) // size * model.num_groups
    with open_engine(model, form, max_num_seqs=12, num_blocks=1 + num_blocks, **settings) as engine:
        found = engine.drive(first, random.Random(3)) | engine.drive(second, random.Random(4))
        assert_same(found, expected)
        seen = engine.seen
        assert seen.stats is not None
        assert seen.num_hits > count // 4, "few prompts hit anything"
        assert size == 1 or seen.num_partial_hits > count // 8, "few prompts left a block midway"
        assert seen.num_copies >= seen.num_partial_hits, "a partial hit copies"
        assert (seen.stats.num_evictions > 0) is small
        generated = [r for r, f in zip(second, first, strict=True)
                     if engine.num_cached_tokens.get(r.request_id, 0) > f.num_prompt_tokens]  # fmt: skip
        assert small or len(generated) > count // 3, "few second turns found what the first had generated"
        return seen


# ---- n answers of one request, and n requests for one each


@cache
def samples(model: Model, form: Format, count: int) -> tuple[list[EngineRequest], Answers]:
    """Requests for several answers, and what n = 1 gives for each child's noise (seed, i)."""
    rng = random.Random(23)
    plain = random_requests(rng, count, vocab_size=model.vocab_size, max_prompt=90, max_tokens=40, eos=EOS)
    requests = [
        msgspec.structs.replace(r, sampling=msgspec.structs.replace(r.sampling, n=rng.randint(2, 6))) for r in plain
    ]
    singles = [
        msgspec.structs.replace(
            r,
            request_id=100 * r.request_id + i,
            first_index=i,
            sampling=msgspec.structs.replace(r.sampling, n=1),
        )
        for r in requests
        for i in range(r.sampling.n)
    ]
    answers = alone(model, form, singles)
    return requests, {(number // 100, index): answer for (number, index), answer in answers.items()}


def parallel_samples(
    form: Format = PLAIN, *, model: Model = STORIES, count: int = 40, narrow: bool = False, **settings: Any
) -> Seen:
    """n = k equals k calls of n = 1. With few rows some children come later than their leader."""
    requests, expected = samples(model, form, count)
    size = settings.setdefault("block_size", 16)
    kinds = [r.sampling for r in requests]
    assert any(p.repetition_penalty != 1 for p in kinds) and any(p.logit_bias for p in kinds)
    assert any(p.min_tokens for p in kinds) and any(p.stop_token_ids for p in kinds) and any(p.logprobs for p in kinds)
    num_blocks = 1 + 12_000 // size
    with open_engine(model, form, max_num_seqs=4 if narrow else 200, num_blocks=num_blocks, **settings) as engine:
        assert_same(engine.drive(requests, random.Random(5)), expected)
        seen = engine.seen
    num_children = sum(p.n - 1 for p in kinds)
    assert 0 < seen.num_forks < num_children if narrow else seen.num_forks == num_children
    assert size == 1 or seen.num_copies > count // 2, "nobody wrote into a shared block"
    return seen


# ---- preemption at every step


@cache
def hard(model: Model, form: Format, num_tokens: int) -> tuple[list[EngineRequest], Answers]:
    """One of each kind, with answers of `num_tokens` tokens where the request decides."""
    rng = random.Random(29)
    long: dict[str, Any] = {"max_tokens": num_tokens, "ignore_eos": True}
    some = [some_tokens(rng, length, model.vocab_size) for length in (37, 21, 50, 18, 9)]
    requests = [
        request(0, some[0], temperature=1.1, presence_penalty=0.7, frequency_penalty=0.3, logprobs=2,
                logit_bias={some[0][0]: 3.0}, **long),
        request(1, some[1], temperature=0.0, repetition_penalty=1.2, logprobs=3, prompt_logprobs=2, **long),
        request(2, some[2], temperature=1.3, top_p=0.9, n=4, repetition_penalty=1.1, logprobs=0, **long),
        request(3, some[3], beam_width=3, n=2, logprobs=1, **long),
        request(4, some[4], temperature=1.5, min_tokens=num_tokens // 2, max_tokens=num_tokens, top_k=40,
                stop_token_ids=tuple(range(5, model.vocab_size, 2))),
    ]  # fmt: skip
    expected = alone(model, form, requests)
    assert num_tokens < 32 or len(expected[4, 0].token_ids) < num_tokens, "no stop token stops it"
    return requests, expected


def preempted_once_at(
    form: Format = PLAIN,
    *,
    way: str,
    places: range = range(64),
    model: Model = STORIES,
    num_tokens: int = 64,
    **settings: Any,
) -> Seen:
    """Each request of `hard` is preempted at each of its answer's tokens, one life per place."""
    requests, expected = hard(model, form, num_tokens)
    with _with_room(model, form, way, **settings) as engine:
        preempting = Preempting(engine, once_at(0))
        for place in places:
            preempting.due = once_at(place)
            preempting.num_times.clear()
            own = [msgspec.structs.replace(r, request_id=r.request_id + 100 * place) for r in requests]
            found = engine.drive(own)
            assert_same({(number % 100, index): answer for (number, index), answer in found.items()}, expected)
            for r in own:
                longest = max(len(a.token_ids) for (number, _), a in found.items() if number == r.request_id)
                assert preempting.num_times[r.request_id] == 1 or longest <= place + 1
        return _went_that_way(engine, way)


def preempted_at_every_step(
    form: Format = PLAIN, *, way: str, model: Model = STORIES, num_tokens: int = 64, **settings: Any
) -> Seen:
    """Each request of `hard` is preempted whenever it has advanced."""
    requests, expected = hard(model, form, num_tokens)
    with _with_room(model, form, way, **settings) as engine:
        beam_stride = 1 if way == "swap" else 8
        preempting = Preempting(engine, at_every_step(beam_stride))
        assert_same(engine.drive(requests), expected)
        for r in requests:
            longest = max(len(a.token_ids) for (number, _), a in expected.items() if number == r.request_id)
            stride = 1 if r.sampling.beam_width is None else beam_stride
            assert preempting.num_times[r.request_id] >= longest // stride - 1, "it advanced by more than a token"
        return _went_that_way(engine, way)


def _with_room(model: Model, form: Format, way: str, **settings: Any) -> RealEngine:
    """Blocks and tokens enough for `hard`: nobody is preempted but by order, and all come back in one step."""
    size = settings.setdefault("block_size", 16)
    settings.setdefault("max_num_batched_tokens", 1024)
    swap_space = 64 << 20 if way == "swap" else 0
    return open_engine(
        model,
        form,
        max_num_seqs=12,
        num_blocks=1 + 4000 // size,
        preemption=way,
        swap_space_bytes=swap_space,
        **settings,
    )


def _went_that_way(engine: RealEngine, way: str) -> Seen:
    seen = engine.seen
    stats = seen.stats
    assert stats is not None
    if way == "swap":
        assert stats.num_swap_preemptions == stats.num_preemptions and stats.num_swap_faults > 0
        assert seen.num_swapped_in > 0 and seen.num_copies > 0
    else:
        assert stats.num_swap_preemptions == 0
        if not engine.config.cache.caches_prefixes:
            assert stats.num_recompute_faults > 0 and stats.num_recomputed_tokens > 0
    return seen


# ---- too little memory


@cache
def crowd(model: Model, form: Format, count: int) -> tuple[list[EngineRequest], Answers]:
    """Requests of all kinds, beams and several answers too, that share some beginnings."""
    rng = random.Random(31)
    stems = [some_tokens(rng, length, model.vocab_size) for length in (33, 60)]
    requests = []
    for plain in random_requests(rng, count, vocab_size=model.vocab_size, max_prompt=60, max_tokens=30, eos=EOS):
        prompt = plain.token_ids
        if rng.random() < 0.4:
            prompt = _some_beginning(rng, stems) + prompt[:20]
        if rng.random() < 0.2:
            sampling: dict[str, Any] = {"beam_width": rng.choice([2, 3]), "n": 2, "max_tokens": plain.max_tokens,
                                        "early_stopping": rng.choice([True, False, "never"])}  # fmt: skip
            requests.append(request(plain.request_id, prompt, tenant=plain.tenant, **sampling))
        else:
            requests.append(_after(plain, prompt, 0))
    return requests, alone(model, form, requests)


def tiny_pool(
    form: Format = PLAIN,
    *,
    way: str,
    model: Model = STORIES,
    count: int = 60,
    room: int = 450,
    swap_space: int = 2 << 20,
    **settings: Any,
) -> Seen:
    """Everything at once in a pool of `room` tokens, little more than the longest request may need."""
    requests, expected = crowd(model, form, count)
    size = settings.setdefault("block_size", 16)
    settings.setdefault("max_num_batched_tokens", 64)
    with open_engine(
        model,
        form,
        max_num_seqs=12,
        max_model_len=128,
        num_blocks=1 + model.num_groups * room // size,
        preemption=way,
        swap_space_bytes=swap_space if way != "recompute" else 0,
        **settings,
    ) as engine:
        assert_same(engine.drive(requests, random.Random(7)), expected)
        seen, stats = engine.seen, engine.stats
    assert stats.num_preemptions > 0, "nobody was preempted"
    assert (stats.num_swap_preemptions > 0) is (way != "recompute")
    assert stats.num_evictions > 0 or not engine.config.cache.caches_prefixes, "nothing was evicted"
    assert seen.num_forks > 0 and seen.num_copies > 0
    return seen


def failing_tier(
    form: Format = PLAIN,
    *,
    put_every: int = 0,
    get_every: int = 0,
    model: Model = STORIES,
    count: int = 60,
    **settings: Any,
) -> Seen:
    """Swapping in a tiny pool, with a host tier that refuses now and then."""
    requests, expected = crowd(model, form, count)
    size = settings.setdefault("block_size", 16)
    with open_engine(
        model,
        form,
        max_num_seqs=12,
        max_model_len=128,
        max_num_batched_tokens=64,
        num_blocks=1 + 320 // size + 8,
        preemption="swap",
        swap_space_bytes=16 << 20,
        **settings,
    ) as engine:
        FailingTier.of(engine, put_every=put_every, get_every=get_every)
        # Nobody is preempted often enough by himself for every road to be gone.
        Preempting(engine, once_at(3))
        assert_same(engine.drive(requests, random.Random(9)), expected)
        seen = engine.seen
    assert (seen.num_failed_puts > 0) is (put_every > 0) and (seen.num_failed_gets > 0) is (get_every > 0)
    assert (seen.num_swapped_in > 0) is (put_every != 1)
    return seen


# ---- one computes, others wait


@cache
def twins(model: Model, form: Format) -> tuple[list[EngineRequest], Answers]:
    """Three long prompts, each again and again, answered differently: request 10 * f + i is the i-th of family f."""
    rng = random.Random(37)
    requests = []
    for family in range(3):
        prompt = some_tokens(rng, 150, model.vocab_size)
        requests += [
            request(10 * family + i, prompt + [3 + i] * (i % 3), n=1 + i % 2, max_tokens=12, ignore_eos=True)
            for i in range(5)
        ]
    return requests, alone(model, form, requests)


def takeover(form: Format = PLAIN, *, model: Model = STORIES, abort: bool, **settings: Any) -> Seen:
    """Whoever computes a prompt that others wait for dies: its row fails, or, with a plan in flight, it is aborted."""
    requests, expected = twins(model, form)
    settings = {"block_size": 8, "max_num_batched_tokens": 500, **settings}
    first = {r.request_id for r in requests if r.request_id % 10 == 0}
    with open_engine(model, form, max_num_seqs=24, num_blocks=1 + 800, **settings) as engine:
        killed: set[int] = set()

        def kill(engine: RealEngine) -> None:
            running = {s.request_id for s in engine.core._scheduler.running.values()}
            for number in (first & running) - killed if len(engine.core._scheduler.in_flight) else ():
                killed.add(number)
                engine.core.abort(number)

        if not abort:
            engine.executor.doomed_seeds = {r.seed for r in requests if r.request_id in first}
            engine.doomed = killed = first
        found = engine.drive(requests, None, kill if abort else None)
        assert killed == first
        assert_same(found, {key: answer for key, answer in expected.items() if key[0] not in first})
        stats, seen = engine.stats, engine.seen
    assert stats.num_takeovers >= len(first) and stats.num_shared_waits >= len(requests) - len(first)
    assert stats.num_errors == (0 if abort else len(first))
    assert seen.num_hits >= len(requests) - 2 * len(first), "what one computed was not used by the others"
    return seen


def published(form: Format = PLAIN, *, model: Model = STORIES, **settings: Any) -> Seen:
    """A prefix is published, found by two tenants, and withdrawn while some still read it."""
    requests = [r for r in twins(model, form)[0] if r.request_id < 10]
    expected = {key: answer for key, answer in twins(model, form)[1].items() if key[0] < 10}
    owned = [msgspec.structs.replace(r, tenant="ab"[i % 2]) for i, r in enumerate(requests)]
    settings.setdefault("block_size", 8)
    with open_engine(model, form, max_num_seqs=12, num_blocks=1 + 800, **settings) as engine:
        prefix = request(999, requests[0].token_ids, tenant=PUBLIC_TENANT, publish="prefix", max_tokens=0)
        engine.drive([prefix])
        [known] = engine.core.published()
        assert engine.core.reset_prefix_cache() == 0, "a reset took what is published"
        assert known.num_tokens == 144 and engine.core.kv_stats().num_published_blocks == 18
        withdrawn: list[bool] = []

        def withdraw(engine: RealEngine) -> None:
            if not withdrawn and engine.core.stats().num_generated_tokens > 20:
                withdrawn.append(engine.core.withdraw("prefix"))

        found = engine.drive(owned, None, withdraw)
        assert withdrawn == [True]
        assert_same(found, expected)
        assert all(engine.num_cached_tokens[r.request_id] >= known.num_tokens for r in owned), (
            "somebody did not find it"
        )
        assert engine.core.published() == [] and engine.stats.num_held_blocks == 0
        return engine.seen


# ---- ends in the middle


def aborts(
    form: Format = PLAIN, *, model: Model = STORIES, count: int = 60, num_blocks: int = 1 + 26, **settings: Any
) -> Seen:
    """Requests, and single answers of them, end at any moment; nobody else is touched."""
    requests, expected = crowd(model, form, count)
    rng = random.Random(41)
    settings = {"block_size": 16, "max_num_batched_tokens": 64, "swap_space_bytes": 4 << 20, **settings}
    dead: set[tuple[int, int]] = set()
    with open_engine(
        model, form, max_num_seqs=12, max_model_len=128, num_blocks=num_blocks, preemption="swap", **settings
    ) as engine:

        def abort(engine: RealEngine) -> None:
            known = engine.core._scheduler.requests
            if known and rng.random() < 0.1:
                number = rng.choice(list(known))
                index = rng.choice([None, rng.choice(list(known[number].sequences))])
                before = set(known)
                engine.core.abort(number, index)
                gone = before - set(engine.core._scheduler.requests)
                dead.update((n, i) for n, i in expected if n in gone or (n == number and i == index))

        found = engine.drive(requests, random.Random(11), abort)
        ended = {key for key, answer in found.items() if answer.finish_reason is not None}
        assert expected.keys() - ended <= dead, "an answer is missing that nobody aborted"
        for key, answer in found.items():
            whole = expected[key]
            begun = Answer() if key not in ended else whole
            assert answer.token_ids == whole.token_ids[: len(answer.token_ids)], f"{key} differs from running alone"
            assert key not in ended or answer == begun, f"{key} differs from running alone"
        assert len(expected.keys() - ended) > count // 8 and len(ended) > count // 4
        assert engine.stats.num_preemptions > 0
        return engine.seen
