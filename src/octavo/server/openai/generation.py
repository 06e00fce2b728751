"""One HTTP request's work on the engine: from prompts to a single series of deltas, measured on the way."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from octavo.engine.outputs import TextDelta
from octavo.errors import RequestError
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.server.context import ServerContext
from octavo.server.tenants import current_tenant

if TYPE_CHECKING:
    from octavo.engine.dispatch import Tap
    from octavo.engine.input_processor import Prepared
    from octavo.server.openai.protocol import GenerationRequest
    from octavo.server.parsing import ReasoningCounter

LONG_PROMPT_CHARS = 4096
"""Longer texts are tokenized in a thread, so that other streams do not wait for them."""


async def prepare(
    context: ServerContext,
    prompts: list[tuple[str, str | list[int]]],
    params: SamplingParams,
    request: GenerationRequest,
    shown_special_ids: frozenset[int] = frozenset(),
) -> list[Prepared]:
    """Validate and tokenize prompts, each with the name it has in errors.

    Raises:
        RequestError, OverloadedError: See AsyncEngine.prepare.
    """

    limits = context.http

    def work() -> list[Prepared]:
        prepared: list[Prepared] = []
        num_tokens = 0
        for param, prompt in prompts:
            one = context.engine.prepare(
                prompt,
                params,
                param=param,
                tenant=current_tenant(),
                priority=request.priority or 0,
                cache_salt=request.cache_salt,
                max_logprobs=limits.max_logprobs,
                shown_special_ids=shown_special_ids,
                bad_token_ids=prepared[0].request.bad_token_ids if prepared else None,
            )
            num_tokens += len(one.prompt_token_ids)
            if num_tokens > limits.max_prompt_tokens:
                raise _too_many_tokens(param, num_tokens, limits.max_prompt_tokens)
            prepared.append(one)
        return prepared

    num_chars = sum(len(prompt) for _, prompt in prompts) + 2 * sum(map(len, params.bad_words))
    if num_chars > LONG_PROMPT_CHARS:
        prepared = await asyncio.to_thread(work)
    else:
        prepared = work()
    context.engine.check_room(len(prepared), sum(len(one.prompt_token_ids) for one in prepared))
    return prepared


def _too_many_tokens(param: str, num_tokens: int, limit: int) -> RequestError:
    up_to = f"up to {param} " if "[" in param else ""
    message = f"the prompts {up_to}hold {num_tokens} tokens; at most {limit} are allowed (--max-prompt-tokens)"
    return RequestError(param, message=message)


@dataclass
class Answer:
    """One choice, collected. `index` counts over prompts and their n."""

    index: int
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    score: float | None = None

    def add(self, delta: TextDelta) -> None:
        self.text.append(delta.text)
        self.token_ids += delta.token_ids
        self.logprobs += delta.logprobs or ()
        self.finish_reason = delta.finish_reason or self.finish_reason
        self.stop_reason = delta.stop_reason if delta.stop_reason is not None else self.stop_reason
        self.score = delta.score


class Generation:
    """The prompts of a request, running.

    Choices are numbered over all prompts: those of prompt i are `i * n` to `i * n + n - 1`.

    Args:
        reasoning: Told of every token, where reasoning is told apart.
    """

    def __init__(
        self,
        context: ServerContext,
        prompts: list[Prepared],
        n: int,
        arrival_s: float,
        reasoning: ReasoningCounter | None = None,
    ) -> None:
        self._reasoning = reasoning
        self.prompts = prompts
        self.n = n
        self.num_prompt_tokens = sum(len(prompt.prompt_token_ids) for prompt in prompts)
        self.num_cached_tokens = 0
        self.num_unchosen_tokens = 0
        """Generated for `best_of` and not returned."""
        self.num_tokens = [0] * (len(prompts) * n)
        self.prompt_logprobs: list[list[TokenLogprobs | None] | None] = [None] * len(prompts)
        self.stream_interval = context.http.stream_interval
        self._engine = context.engine
        self._meter = Meter(context, self, arrival_s)

    async def deltas(self, tap: Tap | None = None) -> AsyncGenerator[tuple[int, TextDelta], None]:
        """(choice, delta) as they come. Closing this aborts whatever still runs.

        Where there is one prompt, `tap` may take deltas before they come this way (see `AsyncEngine.stream`), and has
        to `note` them.
        """
        if len(self.prompts) == 1:
            merged = _only(self._engine.stream(self.prompts[0], tap))
        else:
            merged = _merge([self._engine.stream(prompt) for prompt in self.prompts])
        with self._meter:
            async with aclosing(merged):
                async for which, delta in merged:
                    choice = which * self.n + delta.index
                    self.note(which, choice, delta)
                    yield choice, delta

    async def collect(self) -> list[Answer]:
        """All answers, complete."""
        answers = [Answer(index) for index in range(len(self.num_tokens))]
        async with aclosing(self.deltas(_Collector(self, answers))) as deltas:
            async for choice, delta in deltas:
                answers[choice].add(delta)
        return answers

    def usage(self, choices: slice = slice(None)) -> dict[str, Any]:
        """The `usage` object: each prompt counted once, every generated token, those of answers not chosen too."""
        completion = sum(self.num_tokens[choices]) + self.num_unchosen_tokens
        usage: dict[str, Any] = {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.num_prompt_tokens + completion,
            "prompt_tokens_details": {"cached_tokens": self.num_cached_tokens},
        }
        if self._reasoning is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self._reasoning.num_tokens}
        return usage

    def note(self, which: int, choice: int, delta: TextDelta) -> None:
        """Count a delta of prompt number `which`."""
        self._meter.observe(choice, delta)
        self.num_tokens[choice] += len(delta.token_ids)
        if self._reasoning is not None:
            self._reasoning.push(choice, delta.token_ids)
        self.num_cached_tokens += delta.num_cached_tokens
        self.num_unchosen_tokens += delta.num_unchosen_tokens
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs[which] = delta.prompt_logprobs


class _Collector:
    """Collects the answers to one prompt as they grow, and wakes nobody before one ends."""

    def __init__(self, generation: Generation, answers: list[Answer]) -> None:
        self._generation = generation
        self._answers = answers

    def take(self, delta: TextDelta) -> bool:
        self._generation.note(0, delta.index, delta)
        self._answers[delta.index].add(delta)
        return True

    def flush(self) -> None:
        pass


class Meter:
    """Times one request and hands the values to the server's metrics."""

    def __init__(self, context: ServerContext, generation: Generation, arrival_s: float) -> None:
        self._metrics = context.metrics
        self._generation = generation
        self._arrival_s = arrival_s
        self._first_s: dict[int, float] = {}
        self._last_s: dict[int, float] = {}
        self._unfinished = len(generation.num_tokens)

    def __enter__(self) -> None:
        for prompt in self._generation.prompts:
            self._metrics.prompt_tokens.observe(len(prompt.prompt_token_ids))
            self._metrics.params_n.observe(prompt.params.n)
            if prompt.params.max_tokens is not None:
                self._metrics.params_max_tokens.observe(prompt.params.max_tokens)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        failed = kind is not None and issubclass(kind, Exception)
        self._metrics.finished["error" if failed else "abort"] += self._unfinished
        self._unfinished = 0

    def observe(self, choice: int, delta: TextDelta) -> None:
        now = time.perf_counter()
        count = len(delta.token_ids)
        if count and choice not in self._first_s:
            self._metrics.first_token.observe(now - self._arrival_s)
            self._first_s[choice] = now
        elif count:
            self._metrics.inter_token.observe((now - self._last_s[choice]) / count, count)
        if count:
            self._last_s[choice] = now
        if delta.finish_reason is not None:
            self._finish(choice, delta, now)

    def _finish(self, choice: int, delta: TextDelta, now: float) -> None:
        metrics = self._metrics
        tokens = self._generation.num_tokens[choice] + len(delta.token_ids)
        metrics.end_to_end.observe(now - self._arrival_s)
        metrics.generation_tokens.observe(tokens)
        if tokens > 1:
            metrics.per_output_token.observe((now - self._first_s[choice]) / (tokens - 1))
        if (reason := delta.finish_reason) in metrics.finished and reason is not None:
            metrics.finished[reason] += 1
        self._unfinished -= 1


async def _only(stream: AsyncGenerator[TextDelta, None]) -> AsyncGenerator[tuple[int, TextDelta], None]:
    async with aclosing(stream):
        async for delta in stream:
            yield 0, delta


async def _merge(streams: list[AsyncGenerator[TextDelta, None]]) -> AsyncGenerator[tuple[int, TextDelta], None]:
    """Deltas of all streams in the order they come. One that fails ends all.

    Each stream has a task that hands over one delta at a time, so a slow reader slows them all and nothing piles up.
    """
    queue: asyncio.Queue[tuple[int, TextDelta | Exception | None]] = asyncio.Queue(len(streams))

    async def pump(which: int, stream: AsyncGenerator[TextDelta, None]) -> None:
        try:
            async for _, delta in _only(stream):
                await queue.put((which, delta))
            await queue.put((which, None))
        except Exception as error:
            await queue.put((which, error))

    pumps = [asyncio.ensure_future(pump(which, stream)) for which, stream in enumerate(streams)]
    try:
        running = len(pumps)
        while running:
            which, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield which, item
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
