"""POST /v1/chat/completions."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from octavo.engine.outputs import TextDelta
from octavo.engine.parsers.pieces import Piece, Text
from octavo.messages import SamplingParams, TokenLogprobs
from octavo.server.body import read_json_object
from octavo.server.context import ServerContext
from octavo.server.gate import send_json
from octavo.server.line import Line, line_of
from octavo.server.openai.chunks import ChunkWriter
from octavo.server.openai.event_tap import event_frames
from octavo.server.openai.generation import LONG_PROMPT_CHARS, Answer, Generation, prepare
from octavo.server.openai.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai.messages import plain_messages
from octavo.server.openai.parsed import delta_fields, message_fields
from octavo.server.openai.protocol import ChatRequest, parse_chat, sampling_params
from octavo.server.openai.tools import tool_use
from octavo.server.parsing import Parsing
from octavo.server.sse import json_bytes, send_events
from octavo.server.tool_use import ToolUse

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
        chat = await open_chat(context, request, arrival_s)
        if chat.parsing is None:
            reply = ChatReply(context, request, chat.generation)
        else:
            reply = ParsedChatReply(context, request, chat.generation, chat.parsing)
        if request.stream:
            await send_events(send, reply.frames(line), context.lifecycle)
        else:
            await send_json(send, 200, json_bytes(reply.whole(await chat.generation.collect())))


@dataclass(frozen=True, slots=True)
class OpenChat:
    """A chat that is ready to be answered: its prompt is checked and tokenized, and nothing runs yet."""

    generation: Generation
    parsing: Parsing | None
    """None where answers are text and nothing else."""
    tools: ToolUse | None

    def pieces(self, delta: TextDelta) -> list[Piece]:
        """What a delta adds to the first answer."""
        if self.parsing is not None:
            return self.parsing.pieces(0, delta)
        return [Text(delta.text)] if delta.text else []


async def open_chat(
    context: ServerContext, request: ChatRequest, arrival_s: float, *, param: str = "messages", fill: bool = False
) -> OpenChat:
    """Everything before the first token of a chat, whatever API it came through.

    Args:
        arrival_s: `time.perf_counter()` when the request came.
        param: The field that holds the conversation, for messages.
        fill: Whether a limit beyond the room after the prompt means that room, and is no error.

    Raises:
        RequestError, OverloadedError, ShuttingDownError: If it cannot be answered as asked.
    """
    context.check_model(request.model)
    params = chat_params(request)
    tools = tool_use(context, request)
    token_ids = await render(context, request, tools)
    if fill and params.max_tokens is not None and len(token_ids) + params.max_tokens > context.engine.max_tokens:
        params = msgspec.structs.replace(params, max_tokens=None)
    begin = _answer_begin(request)
    params, parsing = context.answer_format.parsing(token_ids, params, tools, answer_begin=begin)
    shown = frozenset[int]() if parsing is None else parsing.shown_special_ids
    prompts = await prepare(context, [(param, token_ids)], params, request, shown)
    reasoning = None if parsing is None else parsing.reasoning
    return OpenChat(Generation(context, prompts, params.n, arrival_s, reasoning), parsing, tools)


def chat_params(request: ChatRequest) -> SamplingParams:
    """The request's sampling parameters. Without a limit an answer may fill the context."""
    limit = request.max_completion_tokens if request.max_completion_tokens is not None else request.max_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return sampling_params(request, max_tokens=limit, logprobs=logprobs)


async def render(context: ServerContext, request: ChatRequest, tools: ToolUse | None = None) -> list[int]:
    """The conversation as token ids, through the model's chat template."""
    kwargs = dict(request.chat_template_kwargs or {})
    if request.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", request.reasoning_effort)
    continued = bool(request.continue_final_message)
    return await render_messages(
        context,
        request.messages,
        open_answer=request.add_generation_prompt is not False and not continued,
        continued=continued,
        tools=None if tools is None else tools.tools,
        **kwargs,
    )


async def render_messages(
    context: ServerContext,
    messages: list[dict[str, Any]] | None,
    *,
    open_answer: bool,
    continued: bool = False,
    tools: list[dict[str, Any]] | None = None,
    **template_kwargs: Any,
) -> list[int]:
    """Messages as token ids; with `open_answer` they end where the answer begins, and when `continued` where the last
    message ends."""

    def work() -> list[int]:
        plain = plain_messages(messages)
        return context.engine.render_chat(
            plain,
            add_generation_prompt=open_answer,
            continue_final_message=continued,
            tools=tools,
            **template_kwargs,
        )

    if _is_long(messages) or tools:
        return await asyncio.to_thread(work)
    return work()


def _answer_begin(request: ChatRequest) -> str:
    """What the prompt already holds of the answer."""
    content = (request.messages or [{}])[-1].get("content") if request.continue_final_message else None
    return content if isinstance(content, str) else ""


def _is_long(messages: list[dict[str, Any]] | None) -> bool:
    """Whether rendering may take long enough for other streams to notice. Looks at a few messages only."""
    if messages is None or len(messages) > 64:
        return messages is not None
    texts = [message.get("content") for message in messages]
    num_chars = sum(len(text) for text in texts if isinstance(text, str))
    return num_chars > LONG_PROMPT_CHARS or any(isinstance(text, list) for text in texts)


class ChatReply:
    """Writes the answer to one request, streamed or whole."""

    _first_content: str | None = ""

    def __init__(self, context: ServerContext, request: ChatRequest, generation: Generation) -> None:
        self._request = request
        self._generation = generation
        self._tokenizer = context.engine.tokenizer
        self._head = {
            "id": f"chatcmpl-{request.request_id or uuid.uuid4().hex}",
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
        async with aclosing(event_frames(self._generation, line, self._frames_of)) as events:
            async for frames in events:
                yield frames
        if self._request.include_usage:
            yield self._writer.usage()

    def _frames_of(self, index: int, delta: TextDelta) -> bytes:
        """What a delta adds to the stream."""
        chunk = self._chunk(index, delta)
        if index in self._started:
            return chunk
        self._started.add(index)
        return self._writer.role(index, ANSWER_ROLE, self._first_content) + chunk

    def _chunk(self, index: int, delta: TextDelta) -> bytes:
        return self._writer.chunk(index, delta, delta.text, self._logprobs(delta.logprobs))

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
        message, reason = self._message(answer)
        choice = {
            "index": answer.index,
            "message": message,
            "logprobs": self._logprobs(answer.logprobs) if self._request.logprobs else None,
            "finish_reason": reason,
            "stop_reason": answer.stop_reason,
        }
        return choice if answer.score is None else {**choice, "score": answer.score}

    def _message(self, answer: Answer) -> tuple[dict[str, Any], str | None]:
        """The message, and why it ended."""
        message = {"role": ANSWER_ROLE, "content": "".join(answer.text), "refusal": None}
        return message, answer.finish_reason

    def _logprobs(self, entries: list[TokenLogprobs] | None) -> dict[str, Any] | None:
        if not self._request.logprobs or not entries:
            return None
        return chat_logprobs(self._tokenizer, entries, self._request.top_logprobs or 0)


class ParsedChatReply(ChatReply):
    """A reply whose answers hold more than text."""

    _first_content = None

    def __init__(self, context: ServerContext, request: ChatRequest, generation: Generation, parsing: Parsing) -> None:
        super().__init__(context, request, generation)
        self._parsing = parsing
        self._with_reasoning = request.include_reasoning is not False

    def _chunk(self, index: int, delta: TextDelta) -> bytes:
        pieces = self._parsing.pieces(index, delta)
        if len(pieces) == 1 and delta.finish_reason is None and isinstance(text := pieces[0], Text):
            return self._writer.chunk(index, delta, text.text, self._logprobs(delta.logprobs))
        fields = delta_fields(pieces, with_reasoning=self._with_reasoning)
        reason = self._parsing.finish_reason(index, delta.finish_reason)
        return self._writer.message(index, fields, delta, self._logprobs(delta.logprobs), reason)

    def _message(self, answer: Answer) -> tuple[dict[str, Any], str | None]:
        parsed = self._parsing.whole(answer.index, "".join(answer.text), answer.finish_reason)
        reason = self._parsing.finish_reason(answer.index, answer.finish_reason)
        return {"role": ANSWER_ROLE, **message_fields(parsed, with_reasoning=self._with_reasoning)}, reason
