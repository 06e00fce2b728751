"""Run requests through the real core and executor, in this process, step by step."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from octavo.config import EngineConfig
from octavo.core.engine_core import EngineCore
from octavo.core.step import StepHandle, StepPlan, StepResult
from octavo.engine.build import build_engine
from octavo.executor.local import LocalExecutor
from octavo.messages import FINISH_ERROR, EngineRequest, EngineStats, SamplingParams, TokenDelta, TokenLogprobs
from octavo.weights.sources import ModelFiles, find

MOST_SILENT_STEPS = 1000
"""Steps without a word after which an engine that has work counts as stuck."""


class Answer(msgspec.Struct):
    """Everything one sequence was answered with. Equal answers are equal to the last bit."""

    token_ids: list[int] = []
    logprobs: list[TokenLogprobs] = []
    prompt_logprobs: list[TokenLogprobs | None] = []
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None


WATCHED = "support.core_runs:WatchedExecutor"
"""What to call the executor in a configuration, so that a `RealEngine` can look into it."""

Key = tuple[int, int]
"""Request id and index."""
Answers = dict[Key, Answer]


class Seen(msgspec.Struct):
    """What really happened in a run, from its plans and their results."""

    num_steps: int = 0
    num_mixed: int = 0
    """Steps that held a decode beside a prefill."""
    num_chunked: int = 0
    """Prompts that did not fit one step."""
    largest_batch: int = 0
    num_forks: int = 0
    num_copies: int = 0
    num_hits: int = 0
    num_partial_hits: int = 0
    """Hits that end inside a block."""
    num_windows_left: int = 0
    """Table entries that became the null block."""
    num_swapped_out: int = 0
    num_swapped_in: int = 0
    num_erased: int = 0
    num_discarded: int = 0
    num_failed_puts: int = 0
    num_failed_gets: int = 0
    stats: EngineStats | None = None

    def note(self, plan: StepPlan, block_size: int) -> None:
        new = {setup.row: setup for setup in plan.setups}
        counts = dict(zip(plan.rows, plan.num_new_tokens, strict=True))
        arriving = set(new) - set(counts)
        self.num_steps += 1
        self.largest_batch = max(self.largest_batch, len(plan.rows))
        self.num_chunked += sum(
            counts[row] < len(new[row].token_ids) - new[row].num_computed_tokens for row in new if row in counts
        )
        self.num_mixed += bool(new) and any(n == 1 and row not in new for row, n in counts.items())
        hits = [s.num_computed_tokens for row, s in new.items() if s.num_computed_tokens and row not in arriving]
        self.num_hits += len(hits)
        self.num_partial_hits += sum(num_tokens % block_size > 0 for num_tokens in hits)
        self.num_forks += len(plan.forks)
        self.num_copies += len(plan.copies)
        self.num_windows_left += sum(entry[3] == 0 for entry in plan.table_growth)
        self.num_swapped_out += len(plan.swap_out)
        self.num_swapped_in += len(plan.swap_in)
        self.num_erased += len(plan.erases)
        self.num_discarded += len(plan.discards)


class WatchedExecutor:
    """The local executor, with a note taken of each plan. Named in the configuration, it is built as any other."""

    def __init__(self, inner: LocalExecutor) -> None:
        self.inner = inner
        self.info = inner.info
        self.kv_spec = inner.kv_spec
        self.num_blocks = inner.num_blocks
        self.num_host_blocks = inner.num_host_blocks
        self.seen = Seen()
        self.doomed_seeds: set[int] = set()
        """Rows with these seeds fail alone when they are first sampled, as those do whose scores are not numbers."""
        self._seed_of: dict[int, int] = {}

    @classmethod
    def load(cls, config: EngineConfig, files: ModelFiles) -> WatchedExecutor:
        return cls(LocalExecutor.load(config, files))

    def submit(self, plan: StepPlan) -> StepHandle:
        self.seen.note(plan, self.kv_spec.block_size)
        self._seed_of |= {setup.row: setup.seed for setup in plan.setups}
        for fork in plan.forks:
            self._seed_of[fork.row] = self._seed_of[fork.source_row]
        doomed = [row for row in plan.sample_rows if self._seed_of.get(row) in self.doomed_seeds]
        return _WatchedHandle(self.inner.submit(plan), self.seen, plan, doomed)

    def close(self) -> None:
        self.inner.close()


class _WatchedHandle:
    def __init__(self, inner: StepHandle, seen: Seen, plan: StepPlan, doomed: list[int]) -> None:
        self._inner = inner
        self._seen = seen
        self._plan = plan
        self._doomed = doomed
        self._noted = False

    def result(self) -> StepResult:
        result = self._inner.result()
        if not self._noted:
            self._noted = True
            self._seen.num_failed_puts += len(result.failed_swap_out)
            self._seen.num_failed_gets += len(result.failed_swap_in)
            for row in self._doomed:
                result.token_ids[self._plan.sample_rows.index(row)] = -1
                result.row_errors = [*(result.row_errors or []), (row, "its scores are not numbers")]
        return result


OnStep = Callable[["RealEngine"], None]


class RealEngine:
    """An engine as `octavo serve` builds it, on a `WatchedExecutor`, driven by hand."""

    def __init__(self, core: EngineCore, config: EngineConfig, close: Callable[[], None]) -> None:
        self.core = core
        self.config = config
        self._close = close
        self.answers: Answers = {}
        """Of all requests so far."""
        self.num_cached_tokens: dict[int, int] = {}
        """By request: prompt tokens that were found."""
        self.doomed: set[int] = set()
        """Requests that may fail; they count as not answered."""
        self.watch: OnStep | None = None
        """Called after each step."""

    @classmethod
    def open(cls, model: Path, **settings: Any) -> RealEngine:
        """Build one.

        Args:
            model: Folder or name.
            settings: As `EngineConfig.of`.
        """
        config = EngineConfig.of(model=str(model), executor=WATCHED, **settings)
        core, _, close = build_engine(config, find(config.model))
        return cls(core, config, close)

    def __enter__(self) -> RealEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    @property
    def executor(self) -> WatchedExecutor:
        executor = self.core._executor
        assert isinstance(executor, WatchedExecutor)
        return executor

    @property
    def seen(self) -> Seen:
        """What has happened, up to now."""
        self.executor.seen.stats = self.core.stats()
        return self.executor.seen

    @property
    def stats(self) -> EngineStats:
        return self.core.stats()

    def step(self) -> list[TokenDelta]:
        """One step of the core; what it says is entered in `answers`."""
        deltas = self.core.step(0.0)
        for delta in deltas:
            if delta.request_id in self.doomed and delta.finish_reason == FINISH_ERROR:
                continue
            assert delta.finish_reason != FINISH_ERROR, delta.error
            answer = self.answers.setdefault((delta.request_id, delta.index), Answer())
            assert answer.finish_reason is None, "a delta after the end"
            answer.token_ids += delta.token_ids
            answer.logprobs += delta.logprobs or []
            answer.prompt_logprobs += delta.prompt_logprobs or []
            answer.finish_reason, answer.stop_reason, answer.score = (
                delta.finish_reason,
                delta.stop_reason,
                delta.score,
            )
            if delta.num_cached_tokens:
                self.num_cached_tokens[delta.request_id] = delta.num_cached_tokens
        if self.watch is not None:
            self.watch(self)
        return deltas

    def drive(
        self,
        requests: Iterable[EngineRequest],
        arrivals: random.Random | None = None,
        on_step: OnStep | None = None,
    ) -> Answers:
        """Answer requests, until nothing is left to do.

        Args:
            arrivals: Spreads the requests over the steps at random; without it all are there at the start.
            on_step: Called after each step.

        Returns:
            The answers to these requests, as far as they were not aborted.
        """
        left = list(requests)[::-1]
        wanted = {r.request_id for r in left}
        core, num_silent = self.core, 0
        while left or core.has_work:
            while left and (arrivals is None or not core.has_work or arrivals.random() < 0.4):
                core.add(left.pop())
            num_silent = 0 if self.step() else num_silent + 1
            assert num_silent < MOST_SILENT_STEPS, "the engine is stuck"
            if on_step is not None:
                on_step(self)
        assert core.audit() == []
        stats = core.kv_stats()
        published = stats.num_published_blocks
        assert (stats.num_held_blocks, stats.num_pinned_blocks) == (published, 0), "blocks leaked"
        assert stats.num_promised_blocks == stats.num_host_held_blocks == 0, "promises or host slots leaked"
        return {key: answer for key, answer in self.answers.items() if key[0] in wanted}


def run(
    model: Path, requests: Sequence[EngineRequest], *, arrivals: random.Random | None = None, **settings: Any
) -> tuple[Answers, Seen]:
    """Answer all requests on one engine; see `RealEngine`."""
    with RealEngine.open(model, **settings) as engine:
        return engine.drive(requests, arrivals), engine.seen


def run_alone(model: Path, requests: Sequence[EngineRequest], **settings: Any) -> Answers:
    """Answer each request on an engine that has nothing else to do, and remembers nothing: no batch, no chunk, no
    preemption, no hit. Of n answers each computes the prompt for itself; only beams run beside each other."""
    widest = max((request.sampling.beam_width or 1 for request in requests), default=1)
    answers: Answers = {}
    for width in range(1, widest + 1):
        own = [request for request in requests if (request.sampling.beam_width or 1) == width]
        if own:
            with RealEngine.open(model, max_num_seqs=width, enable_prefix_caching=False, **settings) as engine:
                for request in own:
                    answers |= engine.drive([request])
    return answers


def assert_same(found: Answers, expected: Answers) -> None:
    """Every answer is there, and equal to the last bit."""
    assert found.keys() == expected.keys()
    for key, answer in expected.items():
        assert found[key] == answer, f"request {key[0]}, sequence {key[1]} differs from running alone"


def random_requests(
    rng: random.Random, count: int, *, vocab_size: int, max_prompt: int, max_tokens: int, eos: tuple[int, ...]
) -> list[EngineRequest]:
    """Requests of every kind: greedy and seeded, filtered, penalised, biased, with logprobs of answer and prompt."""
    return [_random_request(rng, i, vocab_size, max_prompt, max_tokens, eos) for i in range(count)]


def _random_request(
    rng: random.Random, request_id: int, vocab_size: int, max_prompt: int, max_tokens: int, eos: tuple[int, ...]
) -> EngineRequest:
    prompt = [rng.randrange(3, vocab_size) for _ in range(rng.choice([1, 2, 9, 16, 33, rng.randint(1, max_prompt)]))]
    limit = rng.randint(1, max_tokens)
    sampling = SamplingParams(
        n=rng.choice([1, 1, 1, 2]),
        temperature=rng.choice([0.0, 0.0, 0.7, 1.0, 1.5]),
        top_p=rng.choice([1.0, 1.0, 0.9]),
        top_k=rng.choice([0, 0, 20]),
        min_p=rng.choice([0.0, 0.0, 0.05]),
        repetition_penalty=rng.choice([1.0, 1.0, 1.3]),
        presence_penalty=rng.choice([0.0, 0.0, 0.8]),
        frequency_penalty=rng.choice([0.0, 0.0, -0.4]),
        logit_bias=rng.choice([None, None, {rng.randrange(vocab_size): 4.0}]),
        min_tokens=rng.choice([0, 0, limit]),
        max_tokens=limit,
        logprobs=rng.choice([0, 0, 3]),
        prompt_logprobs=rng.choice([None, None, None, 2]),
        stop_token_ids=rng.choice([(), (rng.randrange(vocab_size),)]),
    )
    return EngineRequest(
        request_id=request_id,
        token_ids=prompt,
        num_prompt_tokens=len(prompt),
        sampling=sampling,
        seed=rng.getrandbits(63),
        max_tokens=limit,
        eos_token_ids=eos,
        tenant=rng.choice(["a", "b"]),
    )
