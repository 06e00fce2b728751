"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.types import Receive, Scope, Send

from octavo.engine.outputs import TextDelta
from octavo.errors import RequestError
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.server.body import read_json_object
from octavo.server.context import ServerContext
from octavo.server.gate import send_json
from octavo.server.line import Line, line_of
from octavo.server.openai.chunks import ChunkWriter
from octavo.server.openai.errors import UnsupportedFieldError
from octavo.server.openai.event_tap import EventTap
from octavo.server.openai.generation import LONG_PROMPT_CHARS, Answer, Generation, prepare
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.protocol import ChatRequest, parse_chat, sampling_params
from octavo.server.sse import json_bytes, send_events

ROLES = ("system", "developer", "user", "assistant")
"""Passed to the template as they are; what a template does not know it may refuse."""

TOOL_ROLES = ("tool", "function")
MAX_NAME_CHARS = 256
MAX_MESSAGES = 4096
MAX_PARTS = 4096
ANSWER_ROLE = "assistant"


class ChatCompletions:
    """The endpoint, as an ASGI application."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrival_s = time.perf_counter()
        context = self._context
        context.lifecycle.check_open()
        body = await read_json_object(scope, receive, context.http.max_body_bytes)
        request, unknown = parse_chat(body, context.http)
        context.report_unknown_fields(unknown)
        context.lifecycle.check_open()  # the body may have taken its time
        await context.lifecycle.run(self._answer(request, arrival_s, send, line_of(scope)), receive)

    async def _answer(self, request: ChatRequest, arrival_s: float, send: Send, line: Line | None) -> None:
        context = self._context
        context.check_model(request.model)
        params = chat_params(request)
        token_ids = await render(context, request)
        prompts = await prepare(context, [("messages", token_ids)], params, request)
        generation = Generation(context, prompts, params.n, arrival_s)
        reply = ChatReply(context, request, generation)
        if request.stream:
            await send_events(send, reply.frames(line), context.lifecycle)
        else:
            await send_json(send, 200, json_bytes(reply.whole(await generation.collect())))


def chat_params(request: ChatRequest) -> SamplingParams:
    """The request's sampling parameters. Without a limit an answer may fill the context."""
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return sampling_params(request, max_tokens=limit, logprobs=logprobs)


async def render(context: ServerContext, request: ChatRequest) -> list[int]:
    """The conversation as token ids, through the model's chat template."""
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    open_answer = request.add_generation_prompt is not False
    return await render_messages(context, request.messages, open_answer=open_answer, **kwargs)


async def render_messages(
    context: ServerContext, messages: list[dict[str, Any]] | None, *, open_answer: bool, **template_kwargs: Any
) -> list[int]:
    """Messages as token ids; with `open_answer` they end where the answer begins."""

    def work() -> list[int]:
        plain = plain_messages(messages)
        return context.engine.render_chat(plain, add_generation_prompt=open_answer, **template_kwargs)

    if _is_long(messages):
        return await asyncio.to_thread(work)
    return work()


def _is_long(messages: list[dict[str, Any]] | None) -> bool:
    """Whether rendering may take long enough for other streams to notice. Looks at a few messages only."""
    if messages is None or len(messages) > 64:
        return messages is not None
    texts = [message.get("content") for message in messages]
    num_chars = sum(len(text) for text in texts if isinstance(text, str))
    return num_chars > LONG_PROMPT_CHARS or any(isinstance(text, list) for text in texts)


def plain_messages(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
    """Messages with a known role and their content as one string.

    Raises:
        RequestError: Naming the message's field.
    """
    if not messages:
        raise RequestError("messages", message="messages: must hold at least one message")
    if len(messages) > MAX_MESSAGES:
        raise RequestError("messages", message=f"messages: {len(messages)} messages; must be at most {MAX_MESSAGES}")
    return [_plain_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def _plain_message(message: dict[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role in TOOL_ROLES:
        raise UnsupportedFieldError(f"{where}.role", f"{where}.role: {role} messages are not supported yet")
    if role not in ROLES:
        raise RequestError(f"{where}.role", role, "one of " + ", ".join(ROLES))
    for name in ("tool_calls", "function_call", "audio"):
        if message.get(name):
            raise UnsupportedFieldError(f"{where}.{name}")
    plain = {"role": role, "content": _plain_content(message.get("content"), f"{where}.content")}
    speaker = message.get("name")
    if speaker is not None:
        if not isinstance(speaker, str) or len(speaker) > MAX_NAME_CHARS:
            raise RequestError(f"{where}.name", speaker, f"a string of at most {MAX_NAME_CHARS} characters")
        plain["name"] = speaker
    return plain


def _plain_content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise RequestError(where, content, "a string or a list of parts")
    if len(content) > MAX_PARTS:
        raise RequestError(where, message=f"{where}: {len(content)} parts; must be at most {MAX_PARTS}")
    return "\n".join(_part_text(part, f"{where}[{j}]") for j, part in enumerate(content))


def _part_text(part: Any, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise RequestError(where, part, "an object with a type")
    kind = part.get("type")
    if kind != "text":
        if isinstance(kind, str) and kind:
            raise UnsupportedFieldError(
                f"{where}.type", f"{where}.type: {kind[:40]!r} parts are not supported; only text"
            )
        raise RequestError(f"{where}.type", kind, "text")
    text = part.get("text")
    if not isinstance(text, str):
        raise RequestError(f"{where}.text", text, "a string")
    return text


class ChatReply:
    """Writes the answer to one request, streamed or whole."""

    def __init__(self, context: ServerContext, request: ChatRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._tokenizer = context.engine.tokenizer
        self._head = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
            "created": int(time.time()),
            "model": request.model or context.model_name,
            "system_fingerprint": context.fingerprint,
        }
        self._writer = ChunkWriter(self._head, "chat", request, generation)
        self._started: set[int] = set()

    async def frames(self, line: Line | None = None) -> AsyncGenerator[bytes, None]:
        """The stream's frames, usage included, without the last `[DONE]`. Those that go over `line` are not among
        them."""
        tap = None if line is None else EventTap(self._generation, line, self._frames_of)
        async with aclosing(self._generation.deltas(tap)) as deltas:
            async for index, delta in deltas:
                if frames := self._frames_of(index, delta):
                    yield frames
        if self._request.include_usage:
            yield self._writer.usage()

    def _frames_of(self, index: int, delta: TextDelta) -> bytes:
        """What a delta adds to the stream."""
        chunk = self._writer.chunk(index, delta, delta.text, self._logprobs(delta.logprobs))
        if index in self._started:
            return chunk
        self._started.add(index)
        return self._writer.role(index, ANSWER_ROLE) + chunk

    def whole(self, answers: list[Answer]) -> dict[str, Any]:
        """The body of a reply that is not streamed."""
        body: dict[str, Any] = {
            **self._head,
            "choices": [self._whole_choice(answer) for answer in answers],
            "usage": self._generation.usage(),
        }
        prompt = self._generation.prompt_logprobs[0]
        if self._request.prompt_logprobs is not None and prompt is not None:
            body["prompt_logprobs"] = prompt_logprobs(self._tokenizer, prompt)
        return body

    def _whole_choice(self, answer: Answer) -> dict[str, Any]:
        choice = {
            "index": answer.index,
            "message": {"role": ANSWER_ROLE, "content": "".join(answer.text), "refusal": None},
            "logprobs": self._logprobs(answer.logprobs) if self._request.logprobs else None,
            "finish_reason": answer.finish_reason,
            "stop_reason": answer.stop_reason,
        }
        return choice if answer.score is None else {**choice, "score": answer.score}

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if not self._request.logprobs or not entries:
            return None
        return chat_logprobs(self._tokenizer, entries, self._request.top_logprobs or 0)
