"""Any interleaving of arrivals, aborts and steps, on a worker that checks every read (see tagged_kv)."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.core.engine_core import EngineCore
from octavo.core.kv_spec import KVGroup, KVSpec
from octavo.errors import ContextLengthError
from octavo.messages import EngineRequest, SamplingParams, TokenDelta
from property.tagged_kv import EOS, STOP, VOCAB, Expected, TaggedExecutor, expected_answer, logprob_at

TENANTS = ("red", "blue")
STEP_LIMIT = 4000
seen: dict[str, int] = {}
"""What the runs of this process really did, summed up; the tests ask whether it happened at all."""


class Answer:
    """What a sequence has received."""

    def __init__(self, request: EngineRequest, index: int) -> None:
        self.request = request
        self.index = index
        self.token_ids: list[int] = []
        self.logprobs: list[Any] = []
        self.prompt_logprobs: list[Any] = []
        self.end: TokenDelta | None = None

    def receive(self, delta: TokenDelta) -> None:
        assert self.end is None, "a finished sequence got more"
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or []
        self.prompt_logprobs += delta.prompt_logprobs or []
        if delta.finish_reason is not None:
            self.end = delta

    def check_so_far(self) -> None:
        """Tokens never go back, never repeat, and are the ones that the request alone would get."""
        expected = expected_answer(self.request, self.index)
        assert self.token_ids == expected.token_ids[: len(self.token_ids)], f"{self.token_ids} is not of {expected}"
        first = len(self.request.token_ids)
        if self.request.sampling.logprobs is not None:
            assert self.logprobs == [logprob_at(first + i, token) for i, token in enumerate(self.token_ids)], (
                f"{len(self.logprobs)} logprobs for {len(self.token_ids)} tokens, or others"
            )
        prompt = self.request.token_ids[: self.request.num_prompt_tokens]
        wanted = [None, *(logprob_at(i, prompt[i]) for i in range(1, len(prompt)))]
        assert self.prompt_logprobs == wanted[: len(self.prompt_logprobs)], "prompt logprobs out of order or repeated"
        if self.end is not None:
            found = Expected(self.token_ids, str(self.end.finish_reason), self.end.stop_reason)  # type: ignore[arg-type]
            assert found == expected, f"{found} instead of {expected}"
            asked = self.request.sampling.prompt_logprobs is not None and self.index == 0
            assert len(self.prompt_logprobs) == (len(prompt) if asked else 0), "prompt logprobs are missing"


class CoreMachine(RuleBasedStateMachine):
    """Tokens are right, blocks add up, everything drains; whatever happens, in whatever order."""

    @initialize(
        depth=st.sampled_from([1, 2]),
        block_size=st.sampled_from([1, 2, 4, 8]),
        window=st.integers(1, 20),
        budget=st.integers(1, 24),
        max_num_seqs=st.integers(1, 5),
        capacity=st.integers(2, 60),
    )
    def start(self, depth: int, block_size: int, window: int, budget: int, max_num_seqs: int, capacity: int) -> None:
        self.depth = depth
        groups = (KVGroup(layers=(0, 2)), KVGroup(layers=(1,), window=window))
        spec = KVSpec(groups=groups, block_size=block_size, bytes_per_block=64)
        limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": budget, "max_model_len": 48}
        # Room for a few sequences at most, whatever the block size, so that memory is short most of the time.
        num_blocks = 1 + max(1, 2 * capacity // block_size)
        self.executor = TaggedExecutor(spec, num_blocks, **limits)
        self.core = EngineCore(self.executor, **limits, depth=depth)
        self._poison_what_is_freed()
        self.answers: dict[tuple[int, int], Answer] = {}
        self.num_requests = 0

    def _poison_what_is_freed(self) -> None:
        eviction = self.core._pool.eviction
        put = eviction.put

        def poison_and_put(block_id: int) -> None:
            self.executor.poison(block_id)
            put(block_id)

        eviction.put = poison_and_put  # type: ignore[method-assign]

    @rule(
        num_prompt=st.integers(1, 30),
        max_tokens=st.integers(0, 24),
        n=st.sampled_from([1, 1, 1, 2, 3]),
        tenant=st.sampled_from(TENANTS),
        adapter=st.sampled_from([None, "lora"]),
        stops=st.sampled_from([(), (STOP,), (STOP, EOS)]),
        ignore_eos=st.booleans(),
        min_tokens=st.integers(0, 4),
        logprobs=st.sampled_from([None, 0]),
        prompt_logprobs=st.sampled_from([None, 2]),
        salt=st.integers(0, 1 << 20),
    )
    def add(self, num_prompt: int, max_tokens: int, salt: int, tenant: str, adapter: str | None, **wishes: Any) -> None:
        self.num_requests += 1
        stops, wishes["min_tokens"] = wishes.pop("stops"), min(wishes["min_tokens"], max_tokens)
        sampling = SamplingParams(max_tokens=max_tokens, stop_token_ids=stops, **wishes)
        # Two tenants ask the same things, so that a block of the one would look right to the other but for its tag.
        request = EngineRequest(
            request_id=self.num_requests,
            token_ids=[(salt % 7 + 3 * i) % VOCAB for i in range(num_prompt)],
            num_prompt_tokens=num_prompt,
            sampling=sampling,
            seed=self.num_requests,
            max_tokens=max_tokens,
            eos_token_ids=(EOS,),
            tenant=tenant,
            adapter=adapter,
        )
        self._submit(request)

    def _submit(self, request: EngineRequest) -> None:
        self.executor.tenant_of_seed[request.seed] = request.tenant
        before = self.core.stats()
        try:
            self.core.add(request)
        except ContextLengthError:
            assert self.core.stats() == before, "a refused request changed something"
            return
        for index in range(request.first_index, request.first_index + request.sampling.n):
            self.answers[request.request_id, index] = Answer(request, index)

    @precondition(lambda self: self.answers)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request_id, index = data.draw(st.sampled_from(sorted(self.answers)))
        self.core.abort(request_id, None if whole else index)
        for key in [key for key in self.answers if key[0] == request_id and (whole or key[1] == index)]:
            del self.answers[key]
        seen["aborts"] = seen.get("aborts", 0) + 1

    @precondition(lambda self: self.answers)
    @rule(data=st.data())
    def resume_elsewhere(self, data: st.DataObject) -> None:
        """One sequence is dropped and comes back as prompt plus answer so far, as after an engine's death."""
        key = data.draw(st.sampled_from(sorted(self.answers)))
        answer = self.answers[key]
        if answer.end is not None or not answer.token_ids:
            return
        self.core.abort(*key)
        del self.answers[key]
        self.num_requests += 1
        request = answer.request
        again = msgspec.structs.replace(
            request,
            request_id=self.num_requests,
            token_ids=request.token_ids + answer.token_ids,
            sampling=msgspec.structs.replace(request.sampling, n=1, prompt_logprobs=None),
            first_index=key[1],
        )
        rest = expected_answer(again, key[1])
        whole = expected_answer(request, key[1])
        assert answer.token_ids + rest.token_ids == whole.token_ids
        self._submit(again)

    @rule(steps=st.integers(1, 6), late=st.booleans())
    def step(self, steps: int, late: bool) -> None:
        for _ in range(steps):
            self._step(late)
            self._audit()

    @rule()
    def drop_everything(self) -> None:
        """After an abort, two steps are enough to free every block."""
        for request_id, _ in self.answers:
            self.core.abort(request_id)
        self.answers.clear()
        self._step(late=True)
        self._step(late=True)
        stats = self.core.stats()
        assert stats.num_free_blocks == stats.num_blocks, "aborted requests hold blocks after two steps"

    def _step(self, late: bool) -> None:
        self.executor.late = late and self.depth > 1
        stats = self.core.stats()
        num_plans = len(self.executor.plans)
        is_busy = stats.num_running + stats.num_waiting > 0
        for delta in self.core.step(0.0):
            self._receive(delta)
        if self.depth == 1 and is_busy:
            assert len(self.executor.plans) > num_plans and self.executor.plans[-1].rows, "work waits, the step is idle"

    def _receive(self, delta: TokenDelta) -> None:
        key = delta.request_id, delta.index
        assert key in self.answers, f"a delta for sequence {key}, which is unknown or aborted"
        answer = self.answers[key]
        answer.receive(delta)
        answer.check_so_far()

    @invariant()
    def _audit(self) -> None:
        if not hasattr(self, "core"):
            return
        broken = self.core.audit()
        assert not broken, broken
        stats = self.core.stats()
        assert stats.num_held_blocks + stats.num_cached_blocks + stats.num_free_blocks == stats.num_blocks

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        steps = 0
        while self.core.has_work:
            self._step(late=bool(steps % 2))
            self._audit()
            steps += 1
            assert steps < STEP_LIMIT, "requests do not finish"
        for key, answer in self.answers.items():
            assert answer.end is not None, f"sequence {key} starved"
        stats = self.core.stats()
        assert stats.num_free_blocks == stats.num_blocks, "blocks leaked"
        assert not self.executor.rows, "the worker was not told of every released row"
        assert not self.core._scheduler.requests and not len(self.core._scheduler.waiting)
        assert stats.num_promised_blocks == 0
        self._note(stats)

    def _note(self, stats: Any) -> None:
        for name in ("num_preemptions", "num_recomputed_tokens", "num_recompute_faults", "num_wasted_slots"):
            seen[name] = seen.get(name, 0) + getattr(stats, name)
        seen["num_errors"] = seen.get("num_errors", 0) + stats.num_errors
        for plan in self.executor.plans:
            long_rows = [row for row, count in zip(plan.rows, plan.num_new_tokens, strict=True) if count > 1]
            chunks = set(plan.rows) - set(plan.sample_rows)
            seen["chunks"] = seen.get("chunks", 0) + len(chunks)
            seen["mixed"] = seen.get("mixed", 0) + (0 < len(long_rows) < len(plan.rows))
            seen["windows_left"] = seen.get("windows_left", 0) + sum(entry[3] == 0 for entry in plan.table_growth)
