"""The loop body: requests in, steps run, tokens out."""

from __future__ import annotations

from collections import deque

from octavo.core.accounts import Accounts
from octavo.core.audit import broken_invariants
from octavo.core.block_pool import BlockPool
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import make_sequences
from octavo.core.scheduler import ScheduledStep, Scheduler
from octavo.core.step import Executor, StepHandle
from octavo.errors import ConfigError, ContextLengthError, RequestError
from octavo.messages import EngineRequest, EngineStats, TokenDelta


class EngineCore:
    """Runs requests on an executor. Plain and synchronous: no clock, no lock, no thread.

    Args:
        executor: Computes the plans; says how the model keeps KV and how many blocks there are.
        max_num_seqs: Sequences running at once; rows of the block tables.
        max_num_batched_tokens: Tokens computed in one step.
        max_model_len: Longest prompt plus answer, in tokens.
        depth: 1, or 2 to plan a step while the one before it runs.

    Raises:
        ConfigError: If a number is out of range.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        depth: int = 1,
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
        if executor.num_blocks < 2:
            raise ConfigError("num_blocks", executor.num_blocks, "at least 2, the null block included")
        self._executor = executor
        self._max_model_len = max_model_len
        self._depth = depth
        self.accounts = Accounts()
        """Every tenant's KV memory and fault counters."""
        self._pool = BlockPool(executor.num_blocks)
        self._kv = KVCacheManager(executor.kv_spec, self._pool, max_chunk=max_num_batched_tokens, depth=depth)
        self._scheduler = Scheduler(self._kv, max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens)
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
        sequences = make_sequences(
            request, self._num_arrivals, self._kv.spec.num_groups, self.accounts.open(request.tenant)
        )
        self._num_arrivals += len(sequences)
        self._scheduler.add(request.request_id, sequences)

    def abort(self, request_id: int, index: int | None = None) -> None:
        """End all sequences of a request, or one of them. Unknown ones are ignored; nothing is emitted.

        Their blocks are free within two steps: as soon as no plan in flight names them.
        """
        request = self._scheduler.requests.get(request_id)
        if request is None:
            return
        for sequence in list(request.sequences.values()):
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
        if self._scheduler.has_work and len(self._in_flight) < self._depth:
            step = self._scheduler.schedule()
            if step.plan.has_work:
                self._in_flight.append((step, self._executor.submit(step.plan)))
                if len(self._in_flight) < self._depth:
                    return []
        if not self._in_flight:
            return []
        step, handle = self._in_flight[0]
        result = handle.result()
        self._in_flight.popleft()
        return self._scheduler.apply(step, result)

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do: sequences, results to take, or released rows a worker must hear of."""
        return self._scheduler.has_work or bool(self._in_flight)

    def stats(self) -> EngineStats:
        """A snapshot. Blocks are counted without the null block; held, cached and free ones add up to all of them."""
        scheduler, pool, accounts = self._scheduler, self._pool, self.accounts
        return EngineStats(
            num_blocks=pool.num_blocks,
            block_size=self._kv.block_size,
            num_held_blocks=pool.num_held,
            num_promised_blocks=self._kv.num_promised_blocks,
            num_free_blocks=pool.num_free,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_steps=scheduler.num_steps,
            num_preemptions=scheduler.num_preemptions,
            num_prompt_tokens=scheduler.num_prompt_tokens,
            num_generated_tokens=scheduler.num_generated_tokens,
            num_recomputed_tokens=scheduler.num_recomputed_tokens,
            num_allocation_faults=accounts.total("num_allocation_faults"),
            num_recompute_faults=accounts.total("num_recompute_faults"),
            num_wasted_slots=scheduler.num_wasted_slots,
            num_errors=scheduler.num_errors,
        )

    def audit(self) -> list[str]:
        """Every invariant of block memory that is broken, one sentence each; empty when all is well.

        Walks everything, so it takes time that grows with the pool: for tests and for people.
        """
        return broken_invariants(self._scheduler, self.accounts)

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

    def _check_length(self, num_prompt: int, max_tokens: int) -> None:
        total = num_prompt + max_tokens
        asked = f"{num_prompt} prompt tokens + {max_tokens} answer tokens = {total}"
        if total > self._max_model_len:
            raise ContextLengthError(
                "max_tokens",
                max_tokens,
                message=f"{asked}, but the context holds {self._max_model_len} tokens",
            )
        # The last token of an answer is never computed, so it needs no slot.
        needed = self._kv.peak_blocks(num_prompt + max(1, max_tokens) - 1)
        if needed > self._pool.num_blocks:
            raise ContextLengthError(
                "max_tokens",
                max_tokens,
                message=(
                    f"{asked}, which take {needed} KV blocks of {self._kv.block_size} tokens, "
                    f"but the pool has {self._pool.num_blocks}"
                ),
            )
