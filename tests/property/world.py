"""One engine core on a worker that checks every read, and everything that can happen to it.

Each public method of `World` is an operation; `OPERATIONS` lists their arguments. A history is a shape and a list of
operations, so the hypothesis machine, the seeded driver and a failing test's report all speak of the same thing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import msgspec

from octavo.core.block_keys import ModelFingerprint
from octavo.core.buddy_pool import power_of_two
from octavo.core.engine_core import EngineCore
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.errors import RequestError
from octavo.messages import FINISH_ERROR, PUBLIC_TENANT, REFUSED_LENGTH, EngineRequest, SamplingParams, TokenDelta
from property.expected import Expected, expected_answer, expected_answers, expected_prompt_logprobs
from property.leftovers import leftovers
from property.tagged_kv import Failing, TaggedExecutor
from property.tags import EOS, STOP, VOCAB

STEP_LIMIT = 4000
IDLE_LIMIT = 12
"""Steps in a row that may compute nothing while there is work: a transfer, an erasure, a wait for a plan in flight, one
after the other, and at depth 2 twice."""
MAX_MODEL_LEN = 48
TENANTS = ("red", "blue")
FINGERPRINT = ModelFingerprint(weights="tags", kv_dtype="tag", block_size=1, layout_version=1, kernel_path="none")

SHAPE: dict[str, Sequence[Any]] = {
    "depth": (1, 2),
    "block_size": (4, 1, 2, 8),
    "window": (None, *range(1, 21)),
    "budget": (1, 2, 3, 4, *range(1, 25)),
    "max_num_seqs": range(1, 7),
    "capacity": (*range(8, 61), 120, 240, 480),
    "host_blocks": (40, 8, 0),
    "caching": (True, True, True, False),
    "eviction": ("lru", "cost"),
    "preemption": ("auto", "swap", "recompute"),
    "erases": (False, True),
    "num_groups": (2, 2, 1),
    "admission": ("fcfs", "fcfs", "skip"),
    "num_drafts": (0, 1, 2, 3, 8),
    "drafting": ("always", "always", "auto"),
    "layers": ("", "", "fww", "wfwv", "wwwf", "w", "wv", "wwv"),
    "second_window": range(1, 21),
}

DRAWN_LAST = ("num_drafts", "drafting", "layers", "second_window")
"""So that a seed's history is otherwise what it was before there were these."""

_WISHES: dict[str, Sequence[Any]] = {
    "tenant": TENANTS,
    "salt": (None, None, None, "pepper"),
    "adapter": (None, None, None, "lora"),
    "stops": ((), (STOP,), (STOP, EOS)),
    "ignore_eos": (False, True),
    "min_tokens": range(5),
    "logprobs": (None, 0),
}
_PROMPT: dict[str, Sequence[Any]] = {"family": range(2), "num_prompt": range(1, 31), "leave": (40, *range(1, 30))}
_PICK = range(64)

OPERATIONS: dict[str, tuple[int, dict[str, Sequence[Any]]]] = {
    "step": (24, {"count": range(1, 5), "late": (False, True)}),
    "add": (
        10,
        {
            **_PROMPT,
            **_WISHES,
            "max_tokens": range(25),
            "n": (1, 1, 1, 2, 3, 5),
            "prompt_logprobs": (None, None, None, 2),
        },
    ),
    "add_beams": (
        4,
        {
            **_PROMPT,
            **_WISHES,
            "max_tokens": range(1, 17),
            "width": range(1, 5),
            "length_penalty": (1.0, 0.0, 2.0),
            "early_stopping": (False, True, "never"),
        },
    ),
    "add_again": (3, {"pick": _PICK, "tenant": (None, None, *TENANTS)}),
    "add_crowd": (4, {**_PROMPT, "tenant": TENANTS, "count": range(2, 5), "dies": range(3), "after": (None, 1, 2, 3)}),
    "follow_up": (3, {"pick": _PICK, "more": range(1, 8)}),
    "abort": (3, {"pick": _PICK, "whole": (True, False)}),
    "abort_oldest": (1, {}),
    "resume_elsewhere": (2, {"pick": _PICK, "same_id": (False, True)}),
    "publish": (1, _PROMPT),
    "withdraw": (1, {"pick": _PICK}),
    "reset": (1, {"tenant": (None, *TENANTS)}),
    "fail_tier": (3, {"side": ("put", "get"), "first": range(1, 4), "forever": (False, True)}),
    "fail_row": (1, {"first": range(1, 4)}),
    "drop_everything": (1, {}),
}


class Answer:
    """What a sequence has received."""

    def __init__(self, request: EngineRequest, index: int, expected: Expected, wants_prompt: bool) -> None:
        self.request = request
        self.index = index
        self.token_ids: list[int] = []
        self.end: TokenDelta | None = None
        self._expected = expected
        self._wants_logprobs = request.sampling.logprobs is not None
        self._prompt_logprobs: list[Any] = []
        self._wanted_prompt = expected_prompt_logprobs(request) if wants_prompt else []
        self._tells_cached = False

    def receive(self, delta: TokenDelta, is_lost: bool, num_hit: int) -> None:
        """Tokens never go back, never repeat, and are the ones that the request alone would get.

        Args:
            is_lost: Whether the worker was made to fail this sequence.
            num_hit: Tokens that the worker did not compute when it first heard of this sequence.
        """
        assert self.end is None, "a finished sequence got more"
        expected = self._expected
        first, self.token_ids = len(self.token_ids), self.token_ids + delta.token_ids
        last = len(self.token_ids)
        # A text is published whole or not at all: it may have lost blocks, or its key to another content.
        may_fail = is_lost or self.is_refused(delta) or self.request.publish is not None
        is_injected = delta.finish_reason == FINISH_ERROR and may_fail
        assert self.token_ids == expected.token_ids[:last], f"{self.token_ids} is not of {expected.token_ids}"
        if self._wants_logprobs and not is_injected:
            assert (delta.logprobs or []) == expected.logprobs[first:last], "other logprobs"
        known = len(self._prompt_logprobs)
        fresh = delta.prompt_logprobs or []
        assert fresh == self._wanted_prompt[known : known + len(fresh)], "prompt logprobs out of order or repeated"
        self._prompt_logprobs += fresh
        self._check_cached(delta, num_hit)
        if delta.finish_reason is not None:
            self.end = delta
            if not is_injected:
                found = (self.token_ids, delta.finish_reason, delta.stop_reason, delta.score)
                wanted = (expected.token_ids, expected.finish_reason, expected.stop_reason, expected.score)
                assert found == wanted, f"{found} instead of {wanted}"
                if delta.finish_reason != FINISH_ERROR:
                    assert self._prompt_logprobs == self._wanted_prompt, "prompt logprobs are missing"

    @staticmethod
    def is_refused(delta: TokenDelta) -> bool:
        """Whether published prefixes, which nobody can evict, have left too little room for it."""
        return delta.refusal == REFUSED_LENGTH

    def _check_cached(self, delta: TokenDelta, num_hit: int) -> None:
        request = self.request
        if delta.token_ids and request.sampling.beam_width is None:
            is_first = not self._tells_cached
            self._tells_cached = True
            wanted = min(num_hit, request.num_prompt_tokens) if is_first and self.index == request.first_index else 0
            assert delta.num_cached_tokens == wanted, f"{delta.num_cached_tokens} cached tokens are told of {wanted}"
        if self._wanted_prompt:
            assert not delta.num_cached_tokens, "a hit, and the prompt's logprobs were asked for"


class World:
    """Tokens are right, blocks add up, everything drains; whatever happens, in whatever order."""

    def __init__(
        self,
        *,
        depth: int = 1,
        block_size: int = 4,
        window: int | None = None,
        budget: int = 24,
        max_num_seqs: int = 6,
        capacity: int = 60,
        host_blocks: int = 0,
        caching: bool = True,
        eviction: str = "lru",
        preemption: str = "auto",
        erases: bool = False,
        num_groups: int = 2,
        admission: str = "fcfs",
        num_drafts: int = 0,
        drafting: str = "auto",
        layers: str = "",
        second_window: int = 3,
        max_model_len: int = MAX_MODEL_LEN,
        kv_policy: str = "paged",
    ) -> None:
        """
        Args:
            layers: A letter per group: f sees everything, w has `window`, v `second_window`. By default `num_groups` of
                f and w.
        """
        if kv_policy != "paged":  # which shares nothing, guesses nothing, and has one kind of layers
            caching, layers, num_drafts = False, "f", 0
            admission = "fcfs" if kv_policy == "fastertransformer" else admission
        self.depth, self.block_size, self.caching, self.erases = depth, block_size, caching, erases
        windows = {"f": None, "w": window, "v": second_window}
        layers = layers or "fw"[:num_groups]
        groups = tuple(KVGroup(layers=(i,), window=windows[letter]) for i, letter in enumerate(layers))
        spec = KVSpec(groups=groups, block_size=block_size, bytes_per_block=64)
        limits = {
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": budget,
            "max_model_len": max_model_len,
        }
        # Room for a few sequences at most, whatever the block size, so that memory is short most of the time.
        num_blocks = 1 + max(1, len(groups) * capacity // block_size)
        if kv_policy != "paged":
            num_blocks += 2 * power_of_two(-(-max_model_len // block_size))
        self.executor = TaggedExecutor(spec, num_blocks, host_blocks, erases_freed_blocks=erases, **limits)
        self.core = EngineCore(
            self.executor,
            **limits,
            depth=depth,
            admission=admission,
            kv_policy=kv_policy,
            enable_prefix_caching=caching,
            eviction=eviction,
            preemption=preemption,
            erase_freed_blocks=erases,
            num_draft_tokens=num_drafts if depth == 1 else 0,
            drafting=drafting,
            secret=b"an octavo of leaves",
            fingerprint=FINGERPRINT,
        )
        self.answers: dict[tuple[int, int], Answer] = {}
        self.outages: list[Failing] = []
        """Faults besides the worker's that a test has planted: while one is on, requests may be refused and wait."""
        self.num_operations = 0
        self.seen: Counter[str] = Counter()
        """What happened that neither the plans nor the core's counters tell."""
        self._finished: list[tuple[EngineRequest, list[int]]] = []
        self._published: list[str] = []
        self._num_requests = 0
        self._num_idle = 0
        self._now_s = 0.0

    def perform(self, name: str, arguments: dict[str, Any]) -> None:
        """One operation, and everything that must hold after it."""
        self.num_operations += 1
        self.seen[name] += 1
        getattr(self, name)(**arguments)
        if name != "step":  # which has looked after each of its steps
            self.check()
            self._check_blocks()

    # ---- operations

    def add(self, *, family: int, num_prompt: int, leave: int, max_tokens: int, **wishes: Any) -> None:
        self.submit(_prompt(family, num_prompt, leave), max_tokens, **wishes)

    def add_beams(
        self,
        *,
        family: int,
        num_prompt: int,
        leave: int,
        max_tokens: int,
        width: int,
        length_penalty: float,
        early_stopping: bool | str,
        **wishes: Any,
    ) -> None:
        self.submit(
            _prompt(family, num_prompt, leave),
            max_tokens,
            n=1 + num_prompt % width,
            beam_width=width,
            length_penalty=length_penalty,
            early_stopping=early_stopping,
            **wishes,
        )

    def add_again(self, *, pick: int, tenant: str | None) -> None:
        """The prompt of somebody who is there, for the same tenant or for one who may not see its blocks."""
        known = self._pick(pick)
        if known is not None:
            request = self.answers[known].request
            self._add(msgspec.structs.replace(request, **self._identity(), tenant=tenant or request.tenant))

    def add_crowd(self, *, count: int, dies: int, after: int | None, tenant: str, **prompt: int) -> None:
        """The same prompt several times at once; who computes it, or who waits for it, may not live long."""
        tokens = _prompt(**prompt)
        victim = self._num_requests + 1 + dies % count
        for _ in range(count):
            self.submit(tokens, min(8, MAX_MODEL_LEN - len(tokens)), tenant=tenant, ignore_eos=True)
        if after is not None:
            self.step(count=after, late=False)
            self.core.abort(victim)
            self.answers.pop((victim, 0), None)

    def follow_up(self, *, pick: int, more: int) -> None:
        """A chat turn: what was asked, what was answered, and a little more."""
        if not self._finished:
            return
        request, answer = self._finished[pick % len(self._finished)]
        tokens = request.token_ids + answer + [(pick + i) % VOCAB for i in range(more)]
        room = MAX_MODEL_LEN - len(tokens)
        if room < 1:
            return
        sampling = SamplingParams(max_tokens=min(8, room), ignore_eos=True)
        self._add(
            msgspec.structs.replace(
                request,
                **self._identity(),
                token_ids=tokens,
                num_prompt_tokens=len(tokens),
                sampling=sampling,
                max_tokens=min(8, room),
                first_index=0,
            )
        )

    def publish(self, *, family: int, num_prompt: int, leave: int) -> None:
        name = f"text {self._num_requests}"
        tokens = _prompt(family, num_prompt, leave)
        if self.submit(tokens, 0, tenant=PUBLIC_TENANT, publish=name):
            self._published.append(name)

    def withdraw(self, *, pick: int) -> None:
        if self._published:
            name = self._published.pop(pick % len(self._published))
            is_there = any(prefix.name == name for prefix in self.core.published())
            assert self.core.withdraw(name) == is_there, f"{name!r} was {'' if is_there else 'not '}published"
            self.seen["withdrawn"] += is_there

    def abort(self, *, pick: int, whole: bool) -> None:
        known = self._pick(pick)
        if known is None:
            return
        request_id, index = known
        whole = whole or self.answers[known].request.sampling.beam_width is not None
        self.core.abort(request_id, None if whole else index)
        for key in [key for key in self.answers if key[0] == request_id and (whole or key[1] == index)]:
            del self.answers[key]

    def abort_oldest(self) -> None:
        """Most often the one that others wait for."""
        live = [key for key, answer in self.answers.items() if answer.end is None]
        if live:
            self.abort(pick=sorted(self.answers).index(min(live)), whole=True)

    def resume_elsewhere(self, *, pick: int, same_id: bool) -> None:
        """One sequence is dropped and comes back as prompt plus answer so far, as after an engine's death."""
        key = self._pick(pick)
        if key is None:
            return
        answer = self.answers[key]
        request = answer.request
        if answer.end is not None or not answer.token_ids:
            return
        self.core.abort(*key)
        del self.answers[key]
        sampling = msgspec.structs.replace(request.sampling, n=1, prompt_logprobs=None)
        again = msgspec.structs.replace(
            request,
            request_id=key[0] if same_id else self._identity()["request_id"],
            token_ids=request.token_ids + answer.token_ids,
            sampling=sampling,
            first_index=key[1],
        )
        rest = expected_answer(again, key[1])
        assert answer.token_ids + rest.token_ids == expected_answer(request, key[1]).token_ids
        self._add(again)

    def reset(self, *, tenant: str | None) -> None:
        num_blocks = self.core.reset_prefix_cache(tenant)
        assert num_blocks >= 0
        self.seen["reset_blocks"] += num_blocks

    def fail_tier(self, *, side: str, first: int, forever: bool) -> None:
        setattr(self.executor, f"{side}_fails", Failing(first, forever))

    def fail_row(self, *, first: int) -> None:
        self.executor.row_fails = Failing(first)

    def step(self, *, count: int, late: bool) -> None:
        for _ in range(count):
            self.advance(late)
            self.check()

    def drop_everything(self) -> None:
        """After an abort, two steps are enough to let go of every block."""
        for request_id in {request_id for request_id, _ in self.answers}:
            self.core.abort(request_id)
        self.answers.clear()
        for _ in range(2):
            self.advance(late=True)
        stats = self.core.kv_stats()
        busy = stats.num_held_blocks + stats.num_pinned_blocks - stats.num_published_blocks
        assert busy == 0, f"aborted requests hold {busy} blocks after two steps"
        assert stats.num_host_held_blocks == 0, "aborted requests hold host slots"

    # ---- what the operations are made of

    def _pick(self, pick: int) -> tuple[int, int] | None:
        keys = sorted(self.answers)
        return keys[pick % len(keys)] if keys else None

    def _identity(self) -> dict[str, int]:
        self._num_requests += 1
        return {"request_id": self._num_requests, "seed": self._num_requests}

    def submit(
        self,
        tokens: list[int],
        max_tokens: int,
        *,
        tenant: str = TENANTS[0],
        salt: str | None = None,
        adapter: str | None = None,
        stops: tuple[int, ...] = (),
        min_tokens: int = 0,
        publish: str | None = None,
        **wishes: Any,
    ) -> bool:
        """Add a request, if it is not refused, and know what it must get."""
        sampling = SamplingParams(
            max_tokens=max_tokens, stop_token_ids=stops, min_tokens=min(min_tokens, max_tokens), **wishes
        )
        return self._add(
            EngineRequest(
                **self._identity(),
                token_ids=tokens,
                num_prompt_tokens=len(tokens),
                sampling=sampling,
                max_tokens=max_tokens,
                eos_token_ids=(EOS,),
                tenant=tenant,
                adapter=adapter,
                cache_salt=salt,
                publish=publish,
            )
        )

    def _add(self, request: EngineRequest) -> bool:
        self.executor.expect(request)
        before = self.core.stats()
        try:
            self.core.add(request)
        except RequestError:
            assert self.core.stats() == before, "a refused request changed something"
            self.seen["refused"] += 1
            return False
        for index, expected in expected_answers(request).items():
            wants_prompt = request.sampling.prompt_logprobs is not None and index == 0
            self.answers[request.request_id, index] = Answer(request, index, expected, wants_prompt)
        return True

    def advance(self, late: bool = False) -> None:
        """One step of the core."""
        self.num_operations += 1
        executor, core = self.executor, self.core
        executor.late = late and self.depth > 1
        executor.free_blocks = list(core._pool.free_blocks())
        num_plans = executor.num_plans
        had_work = core.has_work
        self._now_s += 0.01
        for delta in core.step(self._now_s):
            self._receive(delta)
        plan = executor.last_plan
        is_idle = executor.num_plans == num_plans or plan is None or not plan.rows
        self._num_idle = self._num_idle + 1 if had_work and is_idle else 0
        assert self._num_idle <= IDLE_LIMIT or self._is_out, "work waits, and the steps are idle"

    @property
    def _is_out(self) -> bool:
        return any(outage.first for outage in self.outages)

    def _receive(self, delta: TokenDelta) -> None:
        key = delta.request_id, delta.index
        assert key in self.answers, f"a delta for sequence {key}, which is unknown or aborted"
        answer = self.answers[key]
        seed = answer.request.seed
        is_beam = answer.request.sampling.beam_width is not None
        lost = self.executor.lost_rows
        is_lost = any(s == seed for s, _ in lost) if is_beam else (seed, delta.index) in lost
        answer.receive(delta, is_lost, self.executor.first_hits.get((seed, delta.index), 0))
        if answer.is_refused(delta):
            assert self.core.published() or self._is_out, "a request was refused, and nothing was published"
            self.seen["refused_later"] += 1
        if answer.end is not None:
            self._finish(key, answer)

    def _finish(self, key: tuple[int, int], answer: Answer) -> None:
        if answer.end is not None and answer.end.finish_reason != FINISH_ERROR:
            self._finished = [*self._finished[-15:], (answer.request, answer.token_ids)]
        finished = [k for k, a in self.answers.items() if a.end is not None]
        if len(finished) > 8:  # enough to abort something that is over
            del self.answers[finished[0]]

    def check(self) -> None:
        broken = self.core.audit()
        assert not broken, broken
        stats = self.core.kv_stats()
        total = stats.num_held_blocks + stats.num_pinned_blocks + stats.num_cached_blocks + stats.num_free_blocks
        assert total == stats.num_blocks, f"{total} blocks of {stats.num_blocks}: {stats}"
        assert self.caching or not stats.num_cached_blocks, "blocks are cached and the cache is off"

    def _check_blocks(self) -> None:
        """Told one by one, the blocks are what they are in all."""
        stats, blocks = self.core.kv_stats(), self.core.kv_blocks()
        found = Counter(block.state for block in blocks)
        told = (stats.num_held_blocks, stats.num_pinned_blocks, stats.num_cached_blocks, stats.num_free_blocks)
        assert tuple(found[state] for state in ("held", "pinned", "cached", "free")) == told, f"{found} and {stats}"
        owners = Counter(block.owner for block in blocks if block.state == "cached")
        for account in stats.accounts:
            assert owners[account.tenant] == account.num_cached_blocks, f"{owners[account.tenant]} of {account}"
        assert all(block.age_s >= 0 and (block.owner is None) == (block.state == "free") for block in blocks)
        assert all(block.key is not None and block.num_tokens > 0 for block in blocks if block.state == "cached")

    # ---- the end

    def finish(self) -> None:
        """Faults stop; everyone finishes; nothing is left."""
        executor = self.executor
        for outage in (executor.put_fails, executor.get_fails, executor.row_fails, *self.outages):
            outage.first = 0
        self._num_idle = 0
        self.run_until_idle()
        for key, answer in self.answers.items():
            assert answer.end is not None, f"sequence {key} starved"
        for prefix in self.core.published():
            assert self.core.withdraw(prefix.name), f"{prefix.name!r} is published and cannot be withdrawn"
        self.core.reset_prefix_cache()
        self.run_until_idle()
        stats = self.core.kv_stats()
        assert stats.num_free_blocks == stats.num_blocks, f"blocks leaked: {stats}"
        assert stats.num_promised_blocks == 0 and stats.num_host_held_blocks == 0, f"leaked: {stats}"
        for account in stats.accounts:
            gauges = (account.num_held_blocks, account.num_promised_blocks, account.num_cached_blocks)
            assert not any(gauges) and not account.num_host_blocks, f"charged for nothing: {account}"
        assert not self.executor.rows, "the worker was not told of every released row"
        assert not self.erases or not self.executor.remains(), self.executor.remains()
        left = leftovers(self.core)
        assert not left, left

    def run_until_idle(self) -> None:
        steps = 0
        while self.core.has_work:
            self.advance(late=bool(steps % 2))
            self.check()
            steps += 1
            assert steps < STEP_LIMIT, "requests do not finish"

    def events(self) -> Counter[str]:
        """Everything that happened, by name."""
        counted = Counter(self.seen)
        counted.update(asdict(self.executor.events))
        stats = self.core.stats()
        counted.update({name: getattr(stats, name) for name in COUNTED})
        return counted


COUNTED = (
    "num_preemptions",
    "num_swap_preemptions",
    "num_recomputed_tokens",
    "num_recompute_faults",
    "num_copy_faults",
    "num_swap_faults",
    "num_wasted_slots",
    "num_errors",
    "num_prefix_hit_tokens",
    "num_evictions",
    "num_takeovers",
    "num_shared_waits",
    "num_drafts",
    "num_draft_tokens",
    "num_accepted_tokens",
)


def _prompt(family: int, num_prompt: int, leave: int) -> list[int]:
    """The beginning of a text that many share, and something else from position `leave` on."""
    shared = [(family + 3 * i) % VOCAB for i in range(min(leave, num_prompt))]
    return shared + [(family + leave + 5 * i) % VOCAB for i in range(len(shared), num_prompt)]


History = tuple[dict[str, Any], list[tuple[str, dict[str, Any]]]]
"""A shape and the operations that follow."""


def play(history: History, patch: Callable[[World], None] | None = None) -> World:
    """Live a history to its end."""
    shape, operations = history
    world = World(**shape)
    if patch is not None:
        patch(world)
    for name, arguments in operations:
        world.perform(name, arguments)
    world.finish()
    return world


def draw_history(choose: Callable[[Sequence[Any]], Any], num_operations: int) -> History:
    """A random history; `choose` picks one of a sequence."""
    shape = {name: choose(values) for name, values in SHAPE.items() if name not in DRAWN_LAST}
    operations = list(draw_operations(choose, num_operations))
    return shape | {name: choose(SHAPE[name]) for name in DRAWN_LAST}, operations


def draw_operations(choose: Callable[[Sequence[Any]], Any], count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    for _ in range(count):
        name = choose(WEIGHTED)
        yield name, {key: choose(values) for key, values in OPERATIONS[name][1].items()}


WEIGHTED = [name for name, (weight, _) in OPERATIONS.items() for _ in range(weight)]
