"""AsyncEngine: the engine for servers. Everything that waits is a coroutine; nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any, TypeVar

from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.engine.dispatch import Dispatcher, Tap
from octavo.engine.front_end import FrontEnd
from octavo.engine.host import Host, make_host
from octavo.engine.input_processor import Prepared
from octavo.engine.loop import Batch
from octavo.engine.outputs import RequestOutput, TextDelta
from octavo.engine.publications import check_unpublished, find_published
from octavo.engine.questions import (
    Audit,
    GetKVBlocks,
    GetKVStats,
    GetPublished,
    GetStats,
    Question,
    ResetPrefixCache,
    Withdraw,
    check_page,
)
from octavo.engine.request_output import new_output, update_output
from octavo.engine.step_watch import StepWatch
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import EngineDeadError, OctavoError, OverloadedError, ShuttingDownError
from octavo.messages import (
    DEFAULT_TENANT,
    EngineInfo,
    EngineStats,
    KVBlock,
    KVStats,
    PublishedPrefix,
    SamplingParams,
)

A = TypeVar("A")

MOST_UNDELIVERED = 8
"""Batches that wait for the event loop. More wait as the few bytes in which the engine sent them, not as objects."""
ANSWER_LIMIT_S = 30.0
"""A question waits for the step under way and for the questions before it; an engine that takes longer is stuck."""


class AsyncEngine:
    """A running engine. Make one with `start`; use it from the event loop that started it.

    Attributes:
        config: What it was started with.
        info: What it settled on.
        tokenizer: The model's.
    """

    def __init__(
        self, config: EngineConfig, host: Host, info: EngineInfo, front_end: FrontEnd, seed: int | None = None
    ) -> None:
        self.config = config
        self.info = info
        self.tokenizer: Tokenizer = front_end.tokenizer
        self._front_end = front_end
        self._input = front_end.input_processor(info, config, seed=seed)
        self._host = host
        self._dispatcher = Dispatcher(host, front_end.tokenizer)
        self._room = threading.Semaphore(MOST_UNDELIVERED)
        """For batches that the event loop has not delivered."""
        self._watch = StepWatch()
        self._loop = asyncio.get_running_loop()
        self._dead: EngineDeadError | None = None
        self._draining = False
        self._num_streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = threading.Event()
        self._asking = ThreadPoolExecutor(1, "octavo-questions")
        self._reader = threading.Thread(target=self._read, name="octavo-deltas", daemon=True)
        self._reader.start()

    @classmethod
    async def start(cls, config: EngineConfig, host: Host | None = None, *, seed: int | None = None) -> AsyncEngine:
        """Load a model and start the engine; the tokenizer loads while the weights do.

        Args:
            host: Where it shall run, not started yet; by default one as configured. It is closed when this fails.
            seed: Fixes the seeds of requests that bring none, in the order in which they are prepared.

        Raises:
            ConfigError, ModelError, EngineDeadError: If it cannot run as asked.
        """
        try:
            files = await asyncio.to_thread(find_files, config)
        except BaseException:
            if host is not None:
                await asyncio.to_thread(host.close)
            raise
        host = host or make_host(config.execution.host)
        loading = (asyncio.to_thread(host.start, config, files), asyncio.to_thread(FrontEnd.load, config, files))
        info, front_end = await asyncio.gather(*loading, return_exceptions=True)
        for result in (info, front_end):
            if isinstance(result, BaseException):
                await asyncio.to_thread(host.close)
                raise result
        assert isinstance(info, EngineInfo) and isinstance(front_end, FrontEnd)
        return cls(config, host, info, front_end, seed)

    def prepare(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        *,
        param: str = "prompt",
        tenant: str = DEFAULT_TENANT,
        priority: int = 0,
        cache_salt: str | None = None,
        max_logprobs: int = 20,
        shown_special_ids: frozenset[int] = frozenset(),
        bad_token_ids: tuple[tuple[int, ...], ...] | None = None,
    ) -> Prepared:
        """Check and tokenise a request; see `InputProcessor.prepare`. May be called from another thread.

        Raises:
            RequestError, ContextLengthError: If it cannot be served as asked.
            OverloadedError: If too many requests wait already.
            ShuttingDownError: If the engine drains.
        """
        self._check_open()
        self.check_room()  # before the work of tokenising
        return self._input.prepare(
            prompt,
            params,
            param=param,
            tenant=tenant,
            priority=priority,
            cache_salt=cache_salt,
            max_logprobs=max_logprobs,
            shown_special_ids=shown_special_ids,
            bad_token_ids=bad_token_ids,
        )

    def check_room(self, num_requests: int = 1, num_tokens: int = 1) -> None:
        """Whether so many more requests, with so many prompt tokens in all, may be queued. An idle engine takes any.

        Raises:
            OverloadedError: Naming the limit.
        """
        waiting, tokens = len(self._dispatcher), self._dispatcher.num_waiting_tokens
        scheduler = self.config.scheduler
        if waiting and waiting + num_requests > self.info.max_num_seqs + scheduler.max_waiting:
            why = f"{waiting} requests run or wait, with {scheduler.max_waiting} allowed to wait (--max-waiting)"
            raise OverloadedError(f"{why}; try again later")
        if tokens and tokens + num_tokens > scheduler.max_queued_tokens:
            why = f"{tokens} prompt tokens wait, of {scheduler.max_queued_tokens} allowed (--max-queued-tokens)"
            raise OverloadedError(f"{why}; try again later")

    def _check_open(self) -> None:
        if self._draining:
            raise ShuttingDownError("the server is shutting down")

    @property
    def chat_template_source(self) -> str | None:
        """The chat template's text; None where the model has none."""
        return self._front_end.template_source

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """What the model's generation_config.json holds; empty without one. Nothing here applies it."""
        return self._front_end.generation_config

    @property
    def max_tokens(self) -> int:
        """Tokens of prompt and answer together, at most."""
        return self._input.max_tokens

    def check_length(self, num_chars: int, param: str) -> None:
        """Refuse a text that cannot fit, before anything is done with it; see `InputProcessor.check_length`."""
        self._input.check_length(num_chars, param)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation; see `FrontEnd.render_chat`. May be called from another thread."""
        return self._front_end.render_chat(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            check_length=self._input.check_length,
            **template_kwargs,
        )

    async def stream(self, prepared: Prepared, tap: Tap | None = None) -> AsyncGenerator[TextDelta, None]:
        """Run a request. Closing or cancelling the iterator aborts the request at once.

        A `tap` is offered each delta that comes while the caller waits for the next one, but for the last of an
        answer; the iterator does not yield what it takes.

        Raises:
            EngineDeadError: If the engine dies for good on the way.
            OctavoError: If this request fails in the engine.
        """
        self.check_health()
        news = asyncio.Event()
        if not len(self._dispatcher):
            self._watch.begin(time.monotonic())
        mailbox = self._dispatcher.open(prepared, news.set, tap)
        self._num_streams += 1
        self._idle.clear()
        try:
            while True:
                while (delta := mailbox.take()) is not None:
                    yield delta
                if mailbox.finished:
                    return
                mailbox.at_rest = True
                await news.wait()
                news.clear()
        finally:
            self._dispatcher.close(mailbox)
            self._num_streams -= 1
            if self._num_streams == 0:
                self._idle.set()

    async def generate(
        self,
        prompt: str | list[int],
        params: SamplingParams,
        request_id: str | None = None,
        *,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request and yield it as it grows: each output holds everything so far.

        `request_id` is only handed back; the engine's own ids are never the caller's.
        """
        prepared = self.prepare(prompt, params, cache_salt=cache_salt)
        output = new_output(prepared, request_id)
        stream = self.stream(prepared)
        try:
            async for delta in stream:
                update_output(output, delta)
                yield output
        finally:
            await stream.aclose()

    async def stats(self) -> EngineStats:
        """The engine's state as last reported, at most some tens of milliseconds ago."""
        return self._host.stats()

    async def stats_now(self) -> EngineStats:
        """The engine's state between two steps from now."""
        return await self._ask(GetStats())

    async def audit(self, repair: bool = False) -> list[str]:
        """Broken invariants of the block memory, one sentence each. With `repair` they are mended too."""
        return await self._ask(Audit(repair))

    async def kv_stats(self) -> KVStats:
        """Where every KV block is, in all and by tenant."""
        return await self._ask(GetKVStats())

    async def kv_blocks(self, first: int = 1, count: int = 1000) -> list[KVBlock]:
        """At most `count` blocks, from the id `first` on. Block 0 holds nothing and is not told of."""
        check_page(first, count)
        return await self._ask(GetKVBlocks(first, count))

    async def reset_prefix_cache(self, tenant: str | None = None) -> int:
        """Forget the cached content of one tenant, or of all; what is held or published stays. Returns how many blocks
        that freed."""
        return await self._ask(ResetPrefixCache(tenant))

    async def publish(self, name: str, prompt: str | list[int], *, param: str = "prompt") -> PublishedPrefix:
        """Compute a prompt and keep its whole blocks, for every tenant, until `withdraw(name)`.

        Raises:
            RequestError: If the name is taken, or the prompt fills no block or cannot be served.
        """
        self._check_open()
        prepared = await asyncio.to_thread(self._input.prepare_publication, name, prompt, param=param)
        check_unpublished(name, await self.published())
        async with aclosing(self.stream(prepared)) as deltas:
            async for _ in deltas:
                pass
        return find_published(name, await self.published())

    async def withdraw(self, name: str) -> bool:
        """Let go of a published prefix; whether there was one of this name."""
        return await self._ask(Withdraw(name))

    async def published(self) -> list[PublishedPrefix]:
        """The published prefixes."""
        return await self._ask(GetPublished())

    async def _ask(self, question: Question[A]) -> A:
        """In a thread that asks one question after another, so that an engine in a long step costs one thread at most.

        Raises:
            OverloadedError: If the engine has not answered in time.
            EngineDeadError: If it is gone for good.
        """
        self.check_health()
        answer = self._loop.run_in_executor(self._asking, self._host.ask, question)
        try:
            return await asyncio.wait_for(answer, ANSWER_LIMIT_S)
        except TimeoutError:
            raise OverloadedError(f"the engine did not answer within {ANSWER_LIMIT_S:.0f} s") from None

    def check_health(self) -> None:
        """Raises EngineDeadError if the engine is gone for good."""
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))
        if not self._host.alive or not self._reader.is_alive():
            raise EngineDeadError("the engine is not running")

    def stalled_s(self) -> float:
        """For how many seconds requests have been in the engine and no step was made; 0 when there are none."""
        return self._watch.stalled_s(time.monotonic()) if len(self._dispatcher) else 0.0

    async def drain(self, timeout_s: float) -> None:
        """Take nothing new, and wait up to `timeout_s` seconds for what runs."""
        self._draining = True
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return

    async def close(self) -> None:
        """Stop at once; what still runs ends with EngineDeadError. Repeatable."""
        self._draining = True
        self._closing.set()
        self._dispatcher.fail(EngineDeadError("the engine was closed"))
        await asyncio.to_thread(self._host.close)
        await asyncio.to_thread(self._reader.join)
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _read(self) -> None:
        """Reader thread: bring each batch to the event loop."""
        while not self._closing.is_set():
            try:
                batch = self._host.next_batch(1.0)
            except OctavoError as error:
                self._post(self._die, EngineDeadError(str(error)))
                return
            except Exception as error:  # a fault of ours: streams must end rather than wait for ever
                self._post(self._die, EngineDeadError(f"the engine's answers cannot be read: {type(error).__name__}"))
                return
            if batch is None:
                continue
            self._watch.see(batch, time.monotonic())
            if batch.deltas:
                self._await_room()
                self._post(self._deliver, batch)

    def _await_room(self) -> None:
        while not self._room.acquire(timeout=0.5) and not self._closing.is_set():
            pass

    def _post(self, function: Any, argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            self._closing.set()

    def _deliver(self, batch: Batch) -> None:
        self._room.release()
        try:
            self._dispatcher.deliver(batch)
        except EngineDeadError as error:
            self._die(error)

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        self._dispatcher.fail(error)
