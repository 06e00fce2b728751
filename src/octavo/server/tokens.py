"""POST /tokenize and /detokenize: the model's tokenizer, and its chat template, by themselves.

A text has here the ids that it has as a prompt of /v1/completions, and messages those that they have in a chat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from starlette.types import Scope, Send

from octavo.errors import RequestError
from octavo.server.context import ServerContext
from octavo.server.endpoint import Endpoint
from octavo.server.gate import send_json
from octavo.server.openai.chat import render
from octavo.server.openai.fields import REFUSED_TOKENIZE, check_other_fields
from octavo.server.openai.generation import LONG_PROMPT_CHARS
from octavo.server.openai.logprobs import token_text
from octavo.server.openai.protocol import convert, parse_chat
from octavo.server.openai.tools import tool_use
from octavo.server.sse import json_bytes

MAX_LONG_AT_ONCE = 2
"""Long texts in work at once. Each takes a thread, and prompts of other requests need some too."""

MAX_CHARS = 1 << 20
MAX_IDS = 1 << 20
"""Of one request: more than most contexts, for those who cut up documents, but some seconds of work and some hundred
megabytes of the tokenizer's memory at most."""

T = TypeVar("T")

_CHAT_FIELDS = (
    "messages",
    "tools",
    "add_generation_prompt",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
)


class TokenizeRequest(msgspec.Struct, kw_only=True):
    """Either a `prompt`, or `messages` with what else the chat template reads."""

    model: str | None = None
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    add_special_tokens: bool | None = None
    """What the tokenizer puts around a text, such as a begin-of-sequence token. The template's own in a chat."""
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    return_token_strs: bool | None = None


class TokenizeReply(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None
    """The text of each token, `bytes:\\x..` for what is no whole UTF-8 text, when asked for."""


class DetokenizeRequest(msgspec.Struct, kw_only=True):
    model: str | None = None
    tokens: list[int]
    skip_special_tokens: bool | None = None


class DetokenizeReply(msgspec.Struct, kw_only=True):
    prompt: str


class Tokenize(Endpoint[TokenizeRequest]):
    """POST /tokenize."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._long = _LongWork()

    def parse(self, body: dict[str, Any]) -> tuple[TokenizeRequest, list[str]]:
        unknown = check_other_fields(body, TokenizeRequest.__struct_fields__, REFUSED_TOKENIZE)
        request = convert(body, TokenizeRequest)
        if (request.prompt is None) == (request.messages is None):
            raise RequestError("prompt", message="exactly one of prompt and messages must be given")
        if request.messages is not None and request.add_special_tokens:
            raise RequestError("add_special_tokens", True, "false with messages: their template writes these tokens")
        for name in _CHAT_FIELDS[1:]:
            if request.prompt is not None and getattr(request, name) is not None:
                raise RequestError(name, message=f"{name}: is allowed only with messages")
        return request, unknown

    async def answer(self, request: TokenizeRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        context = self.context
        context.check_model(request.model)
        token_ids = await self._ids(request)
        tokenizer = context.engine.tokenizer
        texts = [token_text(tokenizer.token_bytes(i)) for i in token_ids] if request.return_token_strs else None
        limit = context.engine.info.max_model_len
        reply = TokenizeReply(count=len(token_ids), max_model_len=limit, tokens=token_ids, token_strs=texts)
        await send_json(send, 200, json_bytes(reply))

    async def _ids(self, request: TokenizeRequest) -> list[int]:
        text = request.prompt
        if text is None:
            given = {name: value for name in _CHAT_FIELDS if (value := getattr(request, name)) is not None}
            chat, _ = parse_chat(given, self.context.http)
            return await render(self.context, chat, tool_use(self.context, chat))
        _check_size("prompt", len(text), "characters", MAX_CHARS)
        tokenizer, special = self.context.engine.tokenizer, request.add_special_tokens is not False
        return await self._long.run(len(text), lambda: tokenizer.encode(text, add_special_tokens=special))


class Detokenize(Endpoint[DetokenizeRequest]):
    """POST /detokenize."""

    def __init__(self, context: ServerContext) -> None:
        super().__init__(context)
        self._long = _LongWork()

    def parse(self, body: dict[str, Any]) -> tuple[DetokenizeRequest, list[str]]:
        return convert(body, DetokenizeRequest), unknown_fields(body, DetokenizeRequest)

    async def answer(self, request: DetokenizeRequest, scope: Scope, send: Send, arrival_s: float) -> None:
        self.context.check_model(request.model)
        width, token_ids = self.context.engine.info.vocab_size, request.tokens
        _check_size("tokens", len(token_ids), "ids", MAX_IDS)
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < width:
            where = next(i for i, token_id in enumerate(token_ids) if not 0 <= token_id < width)
            raise RequestError(f"tokens[{where}]", token_ids[where], f"a token id from 0 to {width - 1}")
        tokenizer, skip = self.context.engine.tokenizer, bool(request.skip_special_tokens)
        text = await self._long.run(len(token_ids), lambda: tokenizer.decode(token_ids, skip_special_tokens=skip))
        await send_json(send, 200, json_bytes(DetokenizeReply(prompt=text)))


def _check_size(param: str, size: int, what: str, most: int) -> None:
    if size > most:
        raise RequestError(param, message=f"{param}: has {size} {what}; at most {most} are allowed")


class _LongWork:
    """Runs short work at once and long work in threads, a few at a time."""

    def __init__(self) -> None:
        self._slots = asyncio.Semaphore(MAX_LONG_AT_ONCE)

    async def run(self, size: int, work: Callable[[], T]) -> T:
        if size <= LONG_PROMPT_CHARS:
            return work()
        async with self._slots:
            return await asyncio.to_thread(work)


def unknown_fields(body: dict[str, Any], kind: type[msgspec.Struct]) -> list[str]:
    """The names in `body` that are no fields of `kind`."""
    return [name for name in body if name not in kind.__struct_fields__]
