"""AsyncEngine: the engine for servers. Everything that waits is a coroutine; nothing blocks the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from octavo.config import EngineConfig
from octavo.engine.build import find_files
from octavo.engine.dispatch import Dispatcher
from octavo.engine.front_end import FrontEnd
from octavo.engine.host import Host, make_host
from octavo.engine.input_processor import Prepared
from octavo.engine.loop import Batch
from octavo.engine.outputs import RequestOutput, TextDelta
from octavo.engine.request_output import new_output, update_output
from octavo.engine.tokenizer import Tokenizer
from octavo.errors import EngineDeadError, OctavoError, OverloadedError, ShuttingDownError
from octavo.messages import DEFAULT_TENANT, EngineInfo, EngineStats, SamplingParams


class AsyncEngine:
    """A running engine. Make one with `start`; use it from the event loop that started it.

    Attributes:
        config: What it was started with.
        info: What it settled on.
        tokenizer: The model's.
    """

    def __init__(self, config: EngineConfig, host: Host, info: EngineInfo, front_end: FrontEnd) -> None:
        self.config = config
        self.info = info
        self.tokenizer: Tokenizer = front_end.tokenizer
        self._front_end = front_end
        self._input = front_end.input_processor(info)
        self._host = host
        self._dispatcher = Dispatcher(host, front_end.tokenizer)
        self._loop = asyncio.get_running_loop()
        self._dead: EngineDeadError | None = None
        self._draining = False
        self._num_streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._closing = threading.Event()
        self._reader = threading.Thread(target=self._read, name="octavo-deltas", daemon=True)
        self._reader.start()

    @classmethod
    async def start(cls, config: EngineConfig) -> AsyncEngine:
        """Load a model and start the engine; the tokenizer loads while the weights do.

        Raises:
            ConfigError, ModelError, EngineDeadError: If it cannot run as asked.
        """
        files = await asyncio.to_thread(find_files, config)
        host = make_host(config.execution.host)
        loading = (asyncio.to_thread(host.start, config, files), asyncio.to_thread(FrontEnd.load, config, files))
        info, front_end = await asyncio.gather(*loading, return_exceptions=True)
        for result in (info, front_end):
            if isinstance(result, BaseException):
                await asyncio.to_thread(host.close)
                raise result
        assert isinstance(info, EngineInfo) and isinstance(front_end, FrontEnd)
        return cls(config, host, info, front_end)

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
    ) -> Prepared:
        """Check and tokenise a request; see `InputProcessor.prepare`. May be called from another thread.

        Raises:
            RequestError, ContextLengthError: If it cannot be served as asked.
            OverloadedError: If too many requests wait already.
            ShuttingDownError: If the engine drains.
        """
        if self._draining:
            raise ShuttingDownError("the server is shutting down")
        limit = self.info.max_num_seqs + self.config.scheduler.max_waiting
        if len(self._dispatcher) >= limit:
            raise OverloadedError(f"{len(self._dispatcher)} requests are running or waiting; try again later")
        return self._input.prepare(
            prompt,
            params,
            param=param,
            tenant=tenant,
            priority=priority,
            cache_salt=cache_salt,
            max_logprobs=max_logprobs,
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **template_kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation; see `FrontEnd.render_chat`. May be called from another thread."""
        return self._front_end.render_chat(
            messages, add_generation_prompt=add_generation_prompt, tools=tools, **template_kwargs
        )

    async def stream(self, prepared: Prepared) -> AsyncGenerator[TextDelta, None]:
        """Run a request. Closing or cancelling the iterator aborts the request at once.

        Raises:
            EngineDeadError: If the engine dies for good on the way.
            OctavoError: If this request fails in the engine.
        """
        self.check_health()
        news = asyncio.Event()
        mailbox = self._dispatcher.open(prepared, news.set)
        self._num_streams += 1
        self._idle.clear()
        try:
            while True:
                while unread := mailbox.take():
                    for delta in unread:
                        yield delta
                if mailbox.finished:
                    return
                await news.wait()
                news.clear()
        finally:
            self._dispatcher.close(mailbox)
            self._num_streams -= 1
            if self._num_streams == 0:
                self._idle.set()

    async def generate(
        self, prompt: str | list[int], params: SamplingParams, request_id: str | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a request and yield it as it grows: each output holds everything so far.

        `request_id` is only handed back; the engine's own ids are never the caller's.
        """
        prepared = self.prepare(prompt, params)
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

    async def audit(self) -> list[str]:
        """Broken invariants of the block memory, one sentence each."""
        return await asyncio.to_thread(self._host.audit)

    def check_health(self) -> None:
        """Raises EngineDeadError if the engine is gone for good."""
        if self._dead is not None:
            raise EngineDeadError(str(self._dead))
        if not self._host.alive or not self._reader.is_alive():
            raise EngineDeadError("the engine is not running")

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
            if batch is not None and batch.deltas:
                self._post(self._deliver, batch)

    def _post(self, function: Any, argument: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, argument)
        except RuntimeError:  # the event loop is closed: nobody is left to tell
            self._closing.set()

    def _deliver(self, batch: Batch) -> None:
        try:
            self._dispatcher.deliver(batch)
        except EngineDeadError as error:
            self._die(error)

    def _die(self, error: EngineDeadError) -> None:
        self._dead = error
        self._dispatcher.fail(error)
