"""The loop body: requests in, steps run, tokens out."""

from __future__ import annotations

from collections import deque

from octavo.core.accounts import Accounts
from octavo.core.admission import ADMISSION
from octavo.core.audit import broken_invariants
from octavo.core.beam_group import BeamGroup
from octavo.core.block_keys import ModelFingerprint
from octavo.core.draft_policy import DRAFTING
from octavo.core.eviction import EVICTION
from octavo.core.kv_policies import Settings, build
from octavo.core.kv_report import kv_blocks, kv_stats, pinned_blocks
from octavo.core.preemption import WAYS
from octavo.core.repair import repair as repair_books
from octavo.core.request import Sequence, make_sequences, stop_tokens_of
from octavo.core.scheduler import ScheduledStep, Scheduler
from octavo.core.speculation import Speculation
from octavo.core.step import Executor, StepHandle
from octavo.errors import ConfigError, ContextLengthError, RequestError
from octavo.messages import (
    PUBLIC_TENANT,
    EngineRequest,
    EngineStats,
    KVBlock,
    KVStats,
    PublishedPrefix,
    TokenDelta,
)


class EngineCore:
    """Runs requests on an executor. Plain and synchronous: no clock, no lock, no thread.

    Args:
        executor: Computes the plans; says how the model keeps KV and how many blocks there are.
        max_num_seqs: Sequences running at once; rows of the block tables.
        max_num_batched_tokens: Tokens computed in one step.
        max_model_len: Longest prompt plus answer, in tokens.
        depth: 1, or 2 to plan a step while the one before it runs.
        kv_policy: "paged", or a baseline of the paper's: "orca-oracle", "orca-pow2", "orca-max" or
            "fastertransformer"; see `core.kv_policies`.
        admission: "fcfs", "skip" or "priority"; see `core.admission`.
        enable_prefix_caching: Let requests reuse blocks that hold what they need; None for wherever `kv_policy` can.
        eviction: "lru" or "cost"; see `core.eviction`.
        preemption: "auto", "swap" or "recompute"; see `core.preemption`.
        erase_freed_blocks: Have every freed block zeroed.
        num_draft_tokens: Most tokens guessed for a sequence in a step; 0 guesses none. Needs depth 1.
        drafting: "auto" or "always"; see `core.draft_policy`.
        secret: From which the tenants' secrets are derived, 16 bytes or more; block keys mean nothing without it.
        fingerprint: What decides the bits of a block besides its tokens; by default only what the executor says.

    Raises:
        ConfigError: If a number is out of range, or a setting contradicts `kv_policy`.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        depth: int = 1,
        kv_policy: str = "paged",
        admission: str = "fcfs",
        enable_prefix_caching: bool | None = None,
        eviction: str = "lru",
        preemption: str = "auto",
        erase_freed_blocks: bool = False,
        num_draft_tokens: int = 0,
        drafting: str = "auto",
        secret: bytes = b"octavo: no secret was given",
        fingerprint: ModelFingerprint | None = None,
    ) -> None:
        for name, value in (
            ("max_num_seqs", max_num_seqs),
            ("max_num_batched_tokens", max_num_batched_tokens),
            ("max_model_len", max_model_len),
        ):
            if value < 1:
                raise ConfigError(name, value, "at least 1")
        if depth not in (1, 2):
            raise ConfigError("depth", depth, "1 or 2")
        if num_draft_tokens and depth != 1:
            raise ConfigError("depth", depth, "1 with drafts: what comes of them decides the next step")
        if executor.num_blocks < 2:
            raise ConfigError("num_blocks", executor.num_blocks, "at least 2, the null block included")
        for name, choice, known in (
            ("admission", admission, list(ADMISSION)),
            ("eviction", eviction, list(EVICTION)),
            ("preemption", preemption, list(WAYS)),
            ("drafting", drafting, list(DRAFTING)),
        ):
            if choice not in known:
                raise ConfigError(name, choice, "one of " + ", ".join(known))
        self._executor = executor
        self._max_model_len = max_model_len
        self._max_num_seqs = max_num_seqs
        self._depth = depth
        self.accounts = Accounts()
        """Every tenant's KV memory and fault counters."""
        parts = build(
            Settings(
                kv_policy=kv_policy,
                spec=executor.kv_spec,
                num_blocks=executor.num_blocks,
                num_host_blocks=executor.num_host_blocks,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                depth=depth,
                admission=admission,
                enable_prefix_caching=enable_prefix_caching,
                eviction=eviction,
                erases=erase_freed_blocks,
                num_draft_tokens=num_draft_tokens,
                secret=secret,
                fingerprint=fingerprint,
            )
        )
        self._kv, self._pool, self._delivery = parts.kv, parts.kv.pool, parts.delivery
        self._scheduler = Scheduler(
            self._kv,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            num_host_blocks=parts.num_host_blocks,
            admission=parts.admission,
            way=WAYS[preemption](),
            speculation=Speculation(self._kv, DRAFTING[drafting](), num_draft_tokens) if num_draft_tokens else None,
        )
        self._in_flight: deque[tuple[ScheduledStep, StepHandle]] = deque()
        self._num_arrivals = 0

    def add(self, request: EngineRequest) -> None:
        """Queue a request.

        Raises:
            ContextLengthError: If prompt plus answer can never fit the context or the pool.
            RequestError: If a field contradicts another, or its id and index are in use. Nothing changed in either
                case.
        """
        self._check(request)
        sequences = self._sequences(request)
        self._scheduler.add(request.request_id, sequences, self._needed_blocks(request))

    def _sequences(self, request: EngineRequest) -> list[Sequence]:
        account, num_groups, first = self.accounts.open(request.tenant), self._kv.spec.num_groups, self._num_arrivals
        if request.sampling.beam_width is None:
            sequences = make_sequences(request, first, num_groups, account)
            self._num_arrivals += len(sequences)
            return sequences
        self._num_arrivals += request.sampling.beam_width
        return [BeamGroup(request, first, stop_tokens_of(request), num_groups, account).begin()]

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End all sequences of a request, or one of them. Unknown ones are ignored; nothing is emitted.

        Their blocks are free within two steps: as soon as no plan in flight names them.
        """
        self._delivery.forget(request_id, index)
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        group = next(iter(request.sequences.values())).beams
        if group is not None:
            # Its answers come all at once, so that nobody can be done with one of several before.
            if index is None or group.source.sampling.n == 1:
                self._scheduler.beams.end(group)
            return
        # From the last on, so that the one which computes the prompt for the others does not hand it on to each.
        for sequence in sorted(request.sequences.values(), key=lambda s: -s.index):
            if index is None or sequence.index == index:
                self._scheduler.end(sequence)

    def step(self, now_s: float) -> list[TokenDelta]:
        """Advance by one step and return what became known. Cheap when idle.

        With depth 2 a step plans the next pass, then takes the result of the one before it.

        Args:
            now_s: Seconds on the host's monotonic clock, or simulated time. First-come-first-served does not ask.

        Raises:
            Whatever the executor raised: the step failed as a whole, and this object is of no use any more.
        """
        self._pool.now_s = now_s
        if self._delivery.has_answers:  # before a plan is made that may begin what they would wait for next
            return self._delivery.pass_on([]) + self._advance()
        return self._advance()

    def _advance(self) -> list[TokenDelta]:
        scheduler = self._scheduler
        if scheduler.has_work and len(self._in_flight) < self._depth:
            step = scheduler.schedule()
            if step.plan.has_work:
                self._in_flight.append((step, self._executor.submit(step.plan)))
                if len(self._in_flight) < self._depth:
                    return self._deliver([])
        if not self._in_flight:
            return self._deliver([])
        step, handle = self._in_flight[0]
        result = handle.result()
        self._in_flight.popleft()
        return self._deliver(scheduler.apply(step, result))

    def _deliver(self, deltas: list[TokenDelta]) -> list[TokenDelta]:
        """What may be told now, refusals first."""
        deltas = self._delivery.pass_on(deltas)
        scheduler = self._scheduler
        if scheduler.refused:
            refused, scheduler.refused = scheduler.refused, []
            return refused + deltas
        return deltas

    @property
    def executor(self) -> Executor:
        return self._executor

    @property
    def scheduler(self) -> Scheduler:
        """Those that run and wait, and their blocks; to look at, not to change."""
        return self._scheduler

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do: sequences, results to take or to tell, or released rows a worker must
        hear of."""
        return self._scheduler.has_work or bool(self._in_flight) or self._delivery.has_answers

    def stats(self) -> EngineStats:
        """A snapshot. Blocks are counted without the null block; held, cached and free ones add up to all of them."""
        scheduler, pool, accounts = self._scheduler, self._pool, self.accounts
        num_pinned = len(pinned_blocks(scheduler))
        speculation = scheduler.speculation
        return EngineStats(
            num_blocks=pool.num_blocks,
            block_size=self._kv.block_size,
            num_held_blocks=pool.num_held - num_pinned,
            num_pinned_blocks=num_pinned,
            num_promised_blocks=self._kv.num_promised_blocks,
            num_cached_blocks=pool.num_cached,
            num_free_blocks=pool.num_free,
            num_running=len(scheduler.running),
            num_waiting=scheduler.num_waiting,
            num_swapped=len(scheduler.swapping),
            num_steps=scheduler.num_steps,
            num_preemptions=scheduler.num_preemptions,
            num_swap_preemptions=scheduler.num_swap_preemptions,
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_generated_tokens=scheduler.num_generated_tokens,
            num_recomputed_tokens=scheduler.num_recomputed_tokens,
            num_allocation_faults=accounts.total("num_allocation_faults"),
            num_copy_faults=accounts.total("num_copy_faults"),
            num_swap_faults=accounts.total("num_swap_faults"),
            num_recompute_faults=accounts.total("num_recompute_faults"),
            num_prefix_query_tokens=accounts.total("num_prefix_query_tokens"),
            num_prefix_hit_tokens=accounts.total("num_prefix_hit_tokens"),
            num_evictions=pool.num_evictions,
            num_shared_waits=scheduler.in_flight.num_waits,
            num_takeovers=scheduler.in_flight.num_takeovers,
            num_wasted_slots=scheduler.num_wasted_slots,
            num_errors=scheduler.num_errors,
            num_drafts=0 if speculation is None else speculation.num_drafts,
            num_draft_tokens=0 if speculation is None else speculation.num_draft_tokens,
            num_accepted_tokens=0 if speculation is None else speculation.num_accepted_tokens,
        )

    def tell_time(self, now_s: float) -> None:
        """Let ages be counted up to now, on the clock of `step`; an idle engine makes no steps."""
        self._pool.now_s = now_s

    def kv_stats(self) -> KVStats:
        """Where every block is, in all and per tenant."""
        return kv_stats(self._scheduler, self.accounts, self._kv.spec.bytes_per_block)

    def kv_blocks(self, first: int = 1, count: int = 1 << 31) -> list[KVBlock]:
        """Single blocks, from number `first` on."""
        return kv_blocks(self._scheduler, first, count)

    def reset_prefix_cache(self, tenant: str | None = None) -> int:
        """Let nothing be found that was computed so far, by one tenant or by all; published prefixes stay.

        Returns the number of blocks that became free.
        """
        return self._kv.reset(tenant)

    def withdraw(self, name: str) -> bool:
        """Publish a prefix no longer. False if there is none of that name."""
        return self._scheduler.published.withdraw(name)

    def published(self) -> list[PublishedPrefix]:
        return self._scheduler.published.report()

    def audit(self, repair: bool = False) -> list[str]:
        """Every invariant of block memory that is broken, one sentence each; empty when all is well.

        Walks everything, so it takes time that grows with the pool: for tests and for people.

        Args:
            repair: Also make the books right again; see `core.repair`.
        """
        broken = broken_invariants(self._scheduler, self.accounts)
        if broken and repair:
            repair_books(self._scheduler, self.accounts, [step for step, _ in self._in_flight])
        return broken

    def _check(self, request: EngineRequest) -> None:
        num_tokens, num_prompt = len(request.token_ids), request.num_prompt_tokens
        if num_tokens == 0:
            raise RequestError("token_ids", [], "at least one token")
        if not 1 <= num_prompt <= num_tokens:
            raise RequestError("num_prompt_tokens", num_prompt, f"from 1 to the number of tokens ({num_tokens})")
        if request.max_tokens < 0:
            raise RequestError("max_tokens", request.max_tokens, "at least 0")
        if request.first_index < 0:
            raise RequestError("first_index", request.first_index, "at least 0")
        if num_tokens > num_prompt and num_tokens - num_prompt >= request.max_tokens:
            raise RequestError(
                "max_tokens", request.max_tokens, f"above the {num_tokens - num_prompt} tokens already generated"
            )
        known = self._scheduler.requests.get(request.request_id)
        if known and any(request.first_index <= i < request.first_index + request.sampling.n for i in known.sequences):
            raise RequestError("request_id", request.request_id, "an id that is not in use")
        self._check_length(num_prompt, request.max_tokens)
        if request.sampling.beam_width is not None:
            self._check_beams(request, request.sampling.beam_width)
        if request.publish is not None:
            self._check_published(request, request.publish)

    def _check_beams(self, request: EngineRequest, width: int) -> None:
        num_tokens, num_prompt = len(request.token_ids), request.num_prompt_tokens
        if num_tokens > num_prompt:
            raise RequestError("token_ids", num_tokens, "the prompt alone: a beam search begins again from there")
        if request.max_tokens < 1:
            raise RequestError("max_tokens", request.max_tokens, "at least 1 with beam_width")
        if width > self._max_num_seqs:
            raise RequestError(
                "beam_width", width, f"at most max_num_seqs ({self._max_num_seqs}): all beams run together"
            )
        needed, usable = self._needed_blocks(request), self._kv.usable_blocks(num_prompt, request.max_tokens)
        if needed > usable:
            raise ContextLengthError(
                "beam_width",
                width,
                message=(
                    f"{num_prompt} prompt tokens {'shared by' if self._kv.shares else 'in each of'} {width} beams of "
                    f"{request.max_tokens} tokens take up to {needed} KV blocks of {self._kv.block_size} tokens, but "
                    f"the pool has {usable}"
                ),
            )

    def _needed_blocks(self, request: EngineRequest) -> int:
        """Most blocks that a request needs at once to get on."""
        return self._kv.needed_blocks(request.num_prompt_tokens, request.max_tokens, request.sampling.beam_width)

    def _check_published(self, request: EngineRequest, name: str) -> None:
        if self._kv.index is None:
            raise RequestError("publish", name, "left out: prefix caching is off")
        if request.tenant != PUBLIC_TENANT or request.max_tokens != 0 or request.sampling.n != 1:
            raise RequestError("publish", name, f"a request for no tokens by tenant {PUBLIC_TENANT!r}")
        if request.cache_salt is not None or request.adapter is not None:
            raise RequestError("publish", name, "left out with a cache salt or an adapter: nobody else would find it")
        being_published = (s.source for r in self._scheduler.requests.values() for s in r.sequences.values())
        taken = any(other.publish == name and other.token_ids != request.token_ids for other in being_published)
        if taken or name in self._scheduler.published:
            raise RequestError("publish", name, "a name that is not in use")

    def _check_length(self, num_prompt: int, max_tokens: int) -> None:
        total = num_prompt + max_tokens
        asked = f"{num_prompt} prompt tokens + {max_tokens} answer tokens = {total}"
        if total > self._max_model_len:
            raise ContextLengthError(
                "max_tokens",
                max_tokens,
                message=f"{asked}, but the context holds {self._max_model_len} tokens",
            )
        needed, usable = (
            self._kv.needed_blocks(num_prompt, max_tokens),
            self._kv.usable_blocks(num_prompt, max_tokens),
        )
        if needed > usable:
            raise ContextLengthError(
                "max_tokens",
                max_tokens,
                message=(
                    f"{asked}, which take {needed} KV blocks of {self._kv.block_size} tokens, but the pool has {usable}"
                ),
            )
