"""Streams of text for the terminal, from an engine in this process or a server by URL, behind one face."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from octavo.cli.http_client import Endpoint, HTTPError, first_model, stream
from octavo.config import EngineConfig
from octavo.messages import SamplingParams

if TYPE_CHECKING:
    from octavo.engine.async_engine import AsyncEngine

Message = dict[str, str]
"""`role` and `content`."""


class Source(Protocol):
    """Who answers. Closing a stream early stops the work behind it."""

    name: str

    def chat(self, messages: list[Message], sampling: dict[str, Any]) -> AsyncGenerator[str, None]:
        """The pieces of an answer to a conversation. `sampling` holds fields of SamplingParams."""
        ...

    async def close(self) -> None: ...


class Local:
    """An engine of our own."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.name = engine.info.model

    async def chat(self, messages: list[Message], sampling: dict[str, Any]) -> AsyncGenerator[str, None]:
        prompt = self.engine.render_chat(messages, add_generation_prompt=True)
        async with contextlib.aclosing(self.complete(prompt, SamplingParams(**sampling))) as deltas:
            async for delta in deltas:
                yield delta.text

    async def close(self) -> None:
        await self.engine.close()

    async def complete(self, prompt: Any, params: SamplingParams) -> AsyncGenerator[Any, None]:
        """TextDeltas of one prompt, text or token ids."""
        async with contextlib.aclosing(self.engine.stream(self.engine.prepare(prompt, params))) as deltas:
            async for delta in deltas:
                yield delta


async def local(config: EngineConfig) -> Local:
    """Start an engine. Raises ConfigError or ModelError."""
    from octavo.engine.async_engine import AsyncEngine

    return Local(await AsyncEngine.start(config))


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


class Remote:
    """A running OpenAI-compatible server."""

    def __init__(self, at: Endpoint, model: str) -> None:
        self.at, self.name = at, model

    async def chat(self, messages: list[Message], sampling: dict[str, Any]) -> AsyncGenerator[str, None]:
        body = {"model": self.name, "messages": messages, "stream": True, **sampling}
        async with contextlib.aclosing(stream(self.at, "/v1/chat/completions", body)) as events:
            async for data in events:
                chunk = msgspec.json.decode(data, type=_Chunk)
                if chunk.error is not None:
                    raise HTTPError(0, f"the server broke off: {chunk.error}")
                for choice in chunk.choices:
                    if choice.delta.content:
                        yield choice.delta.content

    async def close(self) -> None:
        """Nothing is kept open between answers."""


async def remote(url: str, api_key: str | None, model: str | None) -> Remote:
    """Find the server and, without a name, its first model."""
    at = Endpoint.parse(url, api_key)
    return Remote(at, model or await first_model(at))
